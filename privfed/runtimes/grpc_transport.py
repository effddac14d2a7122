"""Both ends of a gRPC connection: a server with Flower's servicer, and a client that answers."""

from __future__ import annotations

import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from flwr.server.client_manager import ClientManager

from privfed.foundation.errors import ConfigError
from privfed.runtimes.flower_internals import (
    ClientMessage,
    FlowerServiceServicer,
    FlowerServiceStub,
    GrpcBridge,
    GrpcBridgeClosed,
    InsWrapper,
    ResWrapper,
    ServerMessage,
    ServicerInterface,
    add_FlowerServiceServicer_to_server,
)
from privfed.runtimes.ports import in_use

KEEPALIVE = [
    # A connection that is lost without a message is noticed within twenty seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]
SENDING = 1.0
"""Seconds that sending a question may take, beyond the time for its answer."""


@dataclass(frozen=True)
class Certificates:
    """PEM contents: the authority's certificate, the server's own, and its private key."""

    root: bytes
    own: bytes
    key: bytes

    @classmethod
    def read(cls, folder: Path) -> Certificates:
        """Read ca.crt, server.crt and server.key from a folder.

        Raises:
            ConfigError: if a file cannot be read or is no PEM file.
        """
        return cls(*(read_pem(folder / name) for name in ("ca.crt", "server.crt", "server.key")))


def read_pem(path: Path) -> bytes:
    """Return the content of a PEM file.

    Raises:
        ConfigError: if it cannot be read or is no PEM file.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if b"-----BEGIN" not in content:
        raise ConfigError(f"{path}: is not a PEM file")
    return content


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT.

    Raises:
        ConfigError: if it has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address}: must be HOST:PORT, for example 127.0.0.1:8080")
    return host.strip("[]"), int(port)


class ClientBridge(GrpcBridge):
    """Flower's link between a question and its answer, for clients that are not trusted.

    Closing it ends the connection. Flower counts the seconds of a timeout from when the question
    was sent. A client that keeps its connection alive and reads nothing never lets that happen, so
    here they count from when it was asked.

    Args:
        hang_up: ends the connection.
    """

    def __init__(self, hang_up: Callable[[], object]) -> None:
        super().__init__()
        self.hang_up = hang_up

    def request(self, ins_wrapper: InsWrapper) -> ResWrapper:
        """Ask a question and wait for the answer, at most as long as the question allows."""
        if ins_wrapper.timeout is None:
            return super().request(ins_wrapper)
        late = threading.Timer(ins_wrapper.timeout + SENDING, self.close)
        late.daemon = True
        late.start()
        try:
            return super().request(ins_wrapper)
        finally:
            late.cancel()

    def close(self) -> None:
        """End the connection: nothing more is asked or heard."""
        super().close()
        self.hang_up()


class StrictServicer(ServicerInterface):
    """Flower's servicer for clients that are not trusted: one answer per question.

    A message that was not asked for ends the connection unread. Flower's own servicer buffers
    whatever a client sends: an answer could be sent ahead of its round, and memory filled.
    """

    def __init__(self, manager: ClientManager) -> None:
        self.manager = manager

    def Join(
        self, request_iterator: Iterator[ClientMessage], context: grpc.ServicerContext
    ) -> Iterator[ServerMessage]:
        """Ask questions and take answers until the connection ends."""
        asked = 0

        def answers() -> Iterator[ClientMessage]:
            for number, message in enumerate(request_iterator, start=1):
                if number > asked:
                    return
                yield message

        servicer = FlowerServiceServicer(self.manager, lambda: ClientBridge(context.cancel))
        try:
            for question in servicer.Join(answers(), context):
                asked += 1
                yield question
        except GrpcBridgeClosed:
            return


@contextmanager
def listening(
    manager: ClientManager, address: str, certificates: Certificates | None, largest: int, most: int
) -> Iterator[int]:
    """Start a server that registers every connection with a client manager.

    Args:
        manager: is told about connections.
        address: HOST:PORT to listen on; port 0 takes a free one.
        certificates: for TLS; plain text if None.
        largest: most bytes of a message to the server; a longer one ends its connection unread.
        most: most connections at a time.

    Yields:
        The port that the server listens on.

    Raises:
        ConfigError: if the server cannot listen there, or key and certificate do not fit.
    """
    host, port = split_address(address)
    if port and in_use(host, port):
        raise ConfigError(f"{address}: the port is in use; choose another, or 0 for a free one")
    options = [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", most),
        ("grpc.so_reuseport", 0),
        *KEEPALIVE,
    ]
    server = grpc.server(ThreadPoolExecutor(most), maximum_concurrent_rpcs=most, options=options)
    add_FlowerServiceServicer_to_server(StrictServicer(manager), server)
    try:
        if certificates is None:
            bound = server.add_insecure_port(address)
        else:
            pair = ((certificates.key, certificates.own),)
            bound = server.add_secure_port(
                address, grpc.ssl_server_credentials(pair, certificates.root)
            )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"{address}: cannot listen there, or the certificate and key do not fit"
        ) from error
    server.start()
    try:
        yield bound
    finally:
        server.stop(grace=1.0).wait(5.0)


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
        with socket.create_connection((host, port), timeout=timeout) as plain:
            if roots is not None:
                context = ssl.create_default_context(cadata=roots.decode("ascii"))
                context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"{address}: the server's certificate is not trusted ({error.verify_message})"
        ) from error
    except ssl.SSLError as error:
        raise ConfigError(
            f"{address}: does not speak TLS, or not with us ({error.reason})"
        ) from error
    except UnicodeError as error:
        raise ConfigError(f"{address}: the root certificates are not a PEM file") from error
    except OSError as error:
        raise ConnectionError(
            f"{address}: cannot be reached ({error.strerror or error})"
        ) from error


def converse(
    address: str,
    roots: bytes | None,
    answer: Callable[[ServerMessage], ClientMessage],
    over: Callable[[], bool],
) -> None:
    """Answer the server's messages one by one.

    Args:
        address: HOST:PORT of the server.
        roots: PEM content of the authority's certificate; None for plain text.
        answer: returns the answer to a message.
        over: returns whether the last message was the last one of the run.

    Raises:
        grpc.RpcError: if the connection breaks.
    """
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        *KEEPALIVE,
    ]
    if roots is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(roots), options=options)
    answers: queue.SimpleQueue[ClientMessage | None] = queue.SimpleQueue()
    with channel:
        stream = FlowerServiceStub(channel).Join(iter(answers.get, None))
        for message in stream:
            answers.put(answer(message))
            if over():
                break
        answers.put(None)
        time.sleep(0.05 if over() else 0.0)  # the last answer is still on its way
