"""Both ends of a gRPC connection: a server with Flower's servicer, and a client that answers."""

from __future__ import annotations

import queue
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
from privfed.runtimes.file_limit import make_room
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
from privfed.runtimes.places import PER_NODE, NoPlaceError, Places
from privfed.runtimes.ports import in_use
from privfed.runtimes.reachability import split_address

KEEPALIVE = 10.0
"""Seconds between pings on a quiet connection, and seconds to wait for the answer to one."""
TOLERATED = 0.5
"""Seconds between pings that a server accepts; it ends connections that ping more often."""
TICKET = "privfed-ticket-bin"
"""Key of a node's ticket in the metadata of its call; see :mod:`privfed.runtimes.places`."""
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


class ClientBridge(GrpcBridge):
    """Flower's link between a question and its answer, for clients that are not trusted.

    Closing it ends the connection. Flower counts the seconds of a timeout from when the question
    was sent. A client that keeps its connection alive and reads nothing never lets that happen, so
    here they count from when it was asked.

    Args:
        hang_up: ends the connection.
        proven: called with the name of the node, once it was proven.
    """

    def __init__(
        self, hang_up: Callable[[], object], proven: Callable[[str], None] = lambda node: None
    ) -> None:
        super().__init__()
        self.hang_up, self.proven = hang_up, proven

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


def keepalive_options(seconds: float) -> list[tuple[str, int]]:
    """Return channel options by which a lost connection is noticed within 2 x `seconds`.

    gRPC ignores unknown names of options without a word. Without the last one a server takes pings
    of quiet connections for an attack and ends them: a client may be silent for minutes while it
    computes.
    """
    interval = round(1000 * seconds)
    return [
        ("grpc.keepalive_time_ms", interval),
        ("grpc.keepalive_timeout_ms", interval),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", round(1000 * TOLERATED)),
    ]


class StrictServicer(ServicerInterface):
    """Flower's servicer for clients that are not trusted: one answer per question.

    A message that was not asked for ends the connection unread. Flower's own servicer buffers
    whatever a client sends: an answer could be sent ahead of its round, and memory filled.
    """

    def __init__(self, manager: ClientManager, places: Places) -> None:
        self.manager, self.places = manager, places

    def Join(
        self, request_iterator: Iterator[ClientMessage], context: grpc.ServicerContext
    ) -> Iterator[ServerMessage]:
        """Ask questions and take answers until the connection ends."""
        try:
            ticket = dict(context.invocation_metadata()).get(TICKET)
            address = str(context.peer()).rpartition(":")[0]
            place = self.places.claim(address, ticket)
        except NoPlaceError as error:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        context.add_callback(lambda: self.places.leave(place))
        asked = 0

        def answers() -> Iterator[ClientMessage]:
            for number, message in enumerate(request_iterator, start=1):
                if number > asked:
                    return
                yield message

        def proven(node: str) -> None:
            self.places.prove(place, node)

        servicer = FlowerServiceServicer(self.manager, lambda: ClientBridge(context.cancel, proven))
        try:
            for question in servicer.Join(answers(), context):
                asked += 1
                yield question
        except GrpcBridgeClosed:
            return
        finally:
            self.places.leave(place)


@contextmanager
def listening(
    manager: ClientManager,
    address: str,
    certificates: Certificates | None,
    largest: int,
    places: Places,
    keepalive: float = KEEPALIVE,
) -> Iterator[int]:
    """Start a server that registers every connection with a client manager.

    Args:
        manager: is told about connections.
        address: HOST:PORT to listen on; port 0 takes a free one.
        certificates: for TLS; plain text if None.
        largest: most bytes of a message to the server; a longer one ends its connection unread.
        places: how many may connect.
        keepalive: seconds between pings on a quiet connection.

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
        ("grpc.max_concurrent_streams", PER_NODE),
        ("grpc.so_reuseport", 0),
        *keepalive_options(keepalive),
    ]
    make_room(places.most)
    pool = ThreadPoolExecutor(places.most)
    server = grpc.server(pool, maximum_concurrent_rpcs=places.most, options=options)
    add_FlowerServiceServicer_to_server(StrictServicer(manager, places), server)
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


def converse(
    address: str,
    roots: bytes | None,
    answer: Callable[[ServerMessage], ClientMessage],
    over: Callable[[], bool],
    ticket: bytes | None = None,
    keepalive: float = KEEPALIVE,
) -> None:
    """Answer the server's messages one by one.

    Args:
        address: HOST:PORT of the server.
        roots: PEM content of the authority's certificate; None for plain text.
        answer: returns the answer to a message.
        over: returns whether the last message was the last one of the conversation.
        ticket: what the node shows to get one of its own places; None: it is a stranger.
        keepalive: seconds between pings on a quiet connection.

    Raises:
        grpc.RpcError: if the connection breaks.
    """
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        *keepalive_options(keepalive),
    ]
    if roots is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(roots), options=options)
    answers: queue.SimpleQueue[ClientMessage | None] = queue.SimpleQueue()
    with channel:
        shown = None if ticket is None else [(TICKET, ticket)]
        stream = FlowerServiceStub(channel).Join(iter(answers.get, None), metadata=shown)
        for message in stream:
            answers.put(answer(message))
            if over():
                break
        answers.put(None)
        time.sleep(0.05 if over() else 0.0)  # the last answer is still on its way
