"""gRPC's two ends: a server that Flower's own servicer answers on, and a client that keeps the conversation going."""

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
from flwr.proto.transport_pb2 import ClientMessage, ServerMessage
from flwr.proto.transport_pb2_grpc import FlowerServiceServicer as Service
from flwr.proto.transport_pb2_grpc import FlowerServiceStub, add_FlowerServiceServicer_to_server
from flwr.server.client_manager import ClientManager
from flwr.server.superlink.fleet.grpc_bidi.flower_service_servicer import FlowerServiceServicer
from flwr.server.superlink.fleet.grpc_bidi.grpc_bridge import (
    GrpcBridge,
    GrpcBridgeClosed,
    InsWrapper,
    ResWrapper,
)

from privfed.foundation.errors import ConfigError

KEEPALIVE = [
    # A connection that died in silence is noticed within twenty seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]


SENDING = 1.0
"""Seconds a question may be on its way before its answer is waited for."""


@dataclass(frozen=True)
class Certificates:
    """PEM contents: the authority's certificate, the server's own, and its private key."""

    root: bytes
    own: bytes
    key: bytes

    @classmethod
    def read(cls, folder: Path) -> Certificates:
        """From a folder with ca.crt, server.crt and server.key."""
        return cls(*(read_pem(folder / name) for name in ("ca.crt", "server.crt", "server.key")))


def read_pem(path: Path) -> bytes:
    """The content of a PEM file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if b"-----BEGIN" not in content:
        raise ConfigError(f"{path}: is not a PEM file")
    return content


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT, or a clear error."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address}: must be HOST:PORT, for example 127.0.0.1:8080")
    return host.strip("[]"), int(port)


class Conversation(GrpcBridge):
    """Flower's link between a question and its answer, for clients that are not trusted: closing it ends the connection.

    Flower counts the seconds from when a question was sent. A client that keeps its connection alive and reads nothing never
    lets that happen, so here they count from when it was asked.
    """

    def __init__(self, hang_up: Callable[[], object]) -> None:
        super().__init__()
        self.hang_up = hang_up

    def request(self, ins_wrapper: InsWrapper) -> ResWrapper:
        """Ask, and wait for the answer no longer than the question allows."""
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
        """Nothing more will be asked or heard."""
        super().close()
        self.hang_up()


class OneAnswerAQuestion(Service):
    """Flower's servicer for clients that are not trusted: what was not asked for ends the connection unread.

    Flower's own buffers whatever a client sends; so an answer could be sent ahead of its round, and memory filled.
    """

    def __init__(self, manager: ClientManager) -> None:
        self.manager = manager

    def Join(
        self, request_iterator: Iterator[ClientMessage], context: grpc.ServicerContext
    ) -> Iterator[ServerMessage]:
        """One conversation."""
        asked = 0

        def answers() -> Iterator[ClientMessage]:
            for number, message in enumerate(request_iterator, start=1):
                if number > asked:
                    return
                yield message

        servicer = FlowerServiceServicer(self.manager, lambda: Conversation(context.cancel))
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
    """A server that registers whoever connects with the manager; the port it listens on.

    largest: bytes a message to the server may have; what is longer ends its connection before it is read.
    most: connections at a time.
    """
    host, port = split_address(address)
    if port and _answers(host, port):
        raise ConfigError(f"{address}: the port is in use; choose another, or 0 for a free one")
    options = [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", most),
        ("grpc.so_reuseport", 0),
        *KEEPALIVE,
    ]
    server = grpc.server(ThreadPoolExecutor(most), maximum_concurrent_rpcs=most, options=options)
    add_FlowerServiceServicer_to_server(OneAnswerAQuestion(manager), server)
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


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def check_reachable(address: str, roots: bytes | None, timeout: float) -> None:
    """Raise ConnectionError when nobody listens (waiting may help), ConfigError when the server is not to be trusted."""
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
    """Answer the server's messages one by one until it is over; raises grpc.RpcError when the connection breaks."""
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
