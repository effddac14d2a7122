"""A client in the hands of a test: it proves who it is, then says whatever it is told to say."""

from __future__ import annotations

import queue
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

import grpc
from flwr.common import (
    Code,
    FitRes,
    GetPropertiesRes,
    Scalar,
    Status,
    ndarrays_to_parameters,
    serde,
)
from flwr.proto.transport_pb2 import ClientMessage, ServerMessage
from flwr.proto.transport_pb2_grpc import FlowerServiceStub

from privfed import __version__
from privfed.federation.identity import prove

OK = Status(Code.OK, "")
# The smallest buffers there are, so that what a puppet does not read stays with its sender.
OPTIONS = [
    ("grpc.http2.lookahead_bytes", 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # every puppet has a connection of its own
]


def fitted(step: object, *arrays: object, users: int = 10**6) -> ClientMessage:
    """An answer to a step with these arrays; what is bytes already is sent as it is."""
    parameters = ndarrays_to_parameters([array for array in arrays if not isinstance(array, bytes)])
    parameters.tensors += [array for array in arrays if isinstance(array, bytes)]
    return ClientMessage(
        fit_res=serde.fit_res_to_proto(FitRes(OK, parameters, users, {"step": step}))
    )


def properties(**told: Scalar) -> ClientMessage:
    """An answer of the door's protocol."""
    return ClientMessage(
        get_properties_res=serde.get_properties_res_to_proto(GetPropertiesRes(OK, told))
    )


def asked(question: ServerMessage) -> dict[str, Scalar]:
    """What a question of the door's protocol, or the announcement of a step, says."""
    if question.WhichOneof("msg") == "fit_ins":
        return serde.fit_ins_from_proto(question.fit_ins).config
    return serde.get_properties_ins_from_proto(question.get_properties_ins).config


class Puppet:
    """One connection, without TLS. It reads nothing before it is told to."""

    def __init__(self, port: int, name: str = "nobody", token: str = "") -> None:
        self.name, self.token = name, token
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)
        self.outbox: queue.SimpleQueue[ClientMessage | None] = queue.SimpleQueue()
        self.stream = FlowerServiceStub(self.channel).Join(iter(self.outbox.get, None))
        self.reader = ThreadPoolExecutor(1)

    def __enter__(self) -> Puppet:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self.outbox.put(None)
        self.channel.close()
        self.reader.shutdown()

    def listen(self) -> ServerMessage:
        """The next question; grpc.RpcError or StopIteration if the server ended the connection."""
        return self.reader.submit(self._listen).result(timeout=60)

    def _listen(self) -> ServerMessage:
        question = next(self.stream, None)
        if question is None:
            raise ConnectionError("the server has ended the conversation")
        return question

    def say(self, *messages: ClientMessage) -> None:
        for message in messages:
            self.outbox.put(message)

    def introduce(self) -> None:
        """Answer hello."""
        challenge = asked(self.listen())["hello"]
        assert isinstance(challenge, bytes)
        self.say(
            properties(
                node=self.name, proof=prove(self.token, self.name, challenge), version=__version__
            )
        )

    def enter(self) -> Puppet:
        """Prove who it is; be let in, once the name is free."""
        self.introduce()
        question = asked(self.listen())
        assert "welcome" in question, question
        self.say(properties(ready=True))
        return self

    def is_cut_off(self) -> bool:
        """Whether the server ends the connection; what it may still say is not answered."""
        try:
            while True:
                self.listen()
        except (grpc.RpcError, ConnectionError):
            return True


def announce_gigabytes(port: int, length: int) -> bytes:
    """Announce a gRPC message of `length` bytes on a bare HTTP/2 connection; send a few of them.

    Return what comes back.
    """

    def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content
        )

    def field(name: bytes, value: bytes) -> bytes:
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    headers = b"".join(
        field(*pair)
        for pair in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/flwr.proto.FlowerService/Join"),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        raw.sendall(
            frame(1, 4, 1, headers)
            + frame(0, 0, 1, b"\0" + struct.pack(">I", length) + b"x" * 1000)
        )
        heard = b""
        try:
            while b"grpc-status" not in heard and (more := raw.recv(65536)):
                heard += more
        except TimeoutError:
            pass
        return heard
