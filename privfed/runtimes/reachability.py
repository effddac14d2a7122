"""Whether a trusted server can be reached, directly or through the proxy that gRPC would use."""

from __future__ import annotations

import base64
import ipaddress
import os
import socket
import ssl
from urllib.parse import unquote, urlsplit

from privfed.foundation.errors import ConfigError

PROXIES, EXCEPTIONS = ("grpc_proxy", "https_proxy", "http_proxy"), ("no_grpc_proxy", "no_proxy")
"""Environment variables that gRPC reads; the first that is set counts."""
ANSWER = 8192
"""Most bytes of a proxy's answer that are read."""
LATER = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""A balancer without a server behind it ends a handshake so: waiting may help."""


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT.

    Raises:
        ConfigError: if it has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address}: must be HOST:PORT, for example 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def proxy_for(host: str) -> str | None:
    """Return the address of the HTTP proxy that gRPC uses for a host, as a URL; None: none.

    Args:
        host: name or address of the server.
    """
    proxy = next((os.environ[name] for name in PROXIES if os.environ.get(name)), None)
    spared = next((os.environ[name] for name in EXCEPTIONS if os.environ.get(name)), "")
    for entry in (each.strip() for each in spared.split(",")):
        if entry and (entry == "*" or host.endswith(entry.lstrip("*")) or _within(host, entry)):
            return None
    return proxy


def _within(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def check_reachable(address: str, roots: bytes | None, timeout: float) -> None:
    """Check that a trusted server listens.

    Args:
        address: HOST:PORT.
        roots: PEM content of the authority's certificate; None for plain text.
        timeout: seconds to wait.

    Raises:
        ConnectionError: if nobody listens; waiting may help.
        ConfigError: if the server is not trusted.
    """
    host, port = split_address(address)
    try:
        with connected(host, port, timeout) as plain:
            if roots is not None:
                context = ssl.create_default_context(cadata=roots.decode("ascii"))
                context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"{address}: the server's certificate is not trusted ({error.verify_message})"
        ) from error
    except LATER as error:
        raise ConnectionError(
            f"{address}: the connection was ended before TLS was agreed on"
        ) from error
    except ssl.SSLError as error:
        words = f"{address}: does not speak TLS, or not with us ({error.reason})"
        if speaks_plain_grpc(host, port, timeout):
            raise ConfigError(f"{words}; it speaks plain text, for which --insecure is") from error
        raise ConnectionError(words) from error
    except UnicodeError as error:
        raise ConfigError(f"{address}: the root certificates are not a PEM file") from error
    except OSError as error:
        raise ConnectionError(
            f"{address}: cannot be reached ({error.strerror or error})"
        ) from error


def connected(host: str, port: int, timeout: float) -> socket.socket:
    """Return a connection, through the proxy if there is one.

    Raises:
        OSError: if there is none in time.
        ConfigError: if the proxy in the environment is no HTTP proxy.
    """
    proxy = proxy_for(host)
    if proxy is None:
        return socket.create_connection((host, port), timeout=timeout)
    place = urlsplit(proxy)
    if place.scheme != "http" or not place.hostname:
        raise ConfigError(f"{proxy}: must be http://HOST:PORT (https_proxy in the environment)")
    plain = socket.create_connection((place.hostname, place.port or 80), timeout=timeout)
    try:
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
        if place.username:
            who = f"{unquote(place.username)}:{unquote(place.password or '')}".encode()
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(who).decode()}")
        plain.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = b""
        while b"\r\n\r\n" not in answer and len(answer) < ANSWER:
            more = plain.recv(1)
            if not more:
                break
            answer += more
        status = answer.split(b"\r\n", 1)[0].decode("latin-1")
        if status.split(" ")[1:2] != ["200"]:
            raise ConnectionError(f"the proxy {place.hostname} answers {status[:60]!r}")
        return plain
    except BaseException:
        plain.close()
        raise


def speaks_plain_grpc(host: str, port: int, timeout: float) -> bool:
    """Return whether a server answers the preface of plain HTTP/2 with its settings."""
    try:
        with connected(host, port, timeout) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            head = plain.recv(9)
            return len(head) == 9 and head[3] == 4
    except OSError:
        return False
