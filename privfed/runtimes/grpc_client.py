"""A client of a federation over gRPC: connect, answer the server, connect again if cut off."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import grpc
from flwr.common import Code, GetPropertiesRes, Status

from privfed.federation.participant import Participant, TurnedAwayError
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.runtimes.flower_internals import (
    ClientMessage,
    Reason,
    ServerMessage,
    evaluate_ins_from_proto,
    evaluate_res_to_proto,
    fit_ins_from_proto,
    fit_res_to_proto,
    get_properties_ins_from_proto,
    get_properties_res_to_proto,
)
from privfed.runtimes.grpc_transport import check_reachable, converse

OK = Status(Code.OK, "")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds between attempts to connect."""


class GrpcClient:
    """Translates between Flower's gRPC messages and a participant.

    Args:
        participant: answers for the users of this node.
    """

    def __init__(self, participant: Participant) -> None:
        self.participant = participant
        self.finished = False
        """Whether the server has said that the run is over."""
        self.questions = 0
        """Number of messages received."""

    def answer(self, message: ServerMessage) -> ClientMessage:
        """Return the reply to one message of the server.

        Raises:
            PrivfedError: if the message is not part of the protocol, or the participant refuses.
        """
        self.questions += 1
        kind = message.WhichOneof("msg")
        if kind == "get_properties_ins":
            question = get_properties_ins_from_proto(message.get_properties_ins).config
            told = GetPropertiesRes(OK, self.participant.properties(question))
            return ClientMessage(get_properties_res=get_properties_res_to_proto(told))
        if kind == "fit_ins" and self.participant.made is not None:
            fitted = self.participant.fit(fit_ins_from_proto(message.fit_ins))
            return ClientMessage(fit_res=fit_res_to_proto(fitted))
        if kind == "evaluate_ins" and self.participant.made is not None:
            judged = self.participant.evaluate(evaluate_ins_from_proto(message.evaluate_ins))
            return ClientMessage(evaluate_res=evaluate_res_to_proto(judged))
        if kind == "reconnect_ins":
            self.finished = True
            return ClientMessage(disconnect_res=ClientMessage.DisconnectRes(reason=Reason.ACK))
        raise PrivfedError(f"the server sent {kind!r}, which is not part of the protocol")


@dataclass(frozen=True)
class ServerAddress:
    """Where the server listens, and how long a client tries to reach it.

    Attributes:
        address: HOST:PORT.
        roots: PEM content of the authority's certificate; None for plain text.
        patience: seconds to keep trying after the last conversation.

    Raises:
        ConfigError: if `patience` is no number of seconds.
    """

    address: str
    roots: bytes | None
    patience: float

    def __post_init__(self) -> None:
        if not 0 <= self.patience < math.inf:
            allowed = "must be a number of seconds, at least 0"
            raise ConfigError.of("--patience", self.patience, allowed)

    @property
    def connect_timeout(self) -> float:
        """Seconds that one attempt to connect may take."""
        return max(1.0, min(10.0, self.patience))


def take_part(participant: Participant, server: ServerAddress) -> None:
    """Answer the server until it says that the run is over.

    Args:
        participant: answers for the users of this node.
        server: where to connect.

    Raises:
        TurnedAwayError: if the server refuses this client for good.
        ConfigError: if the server cannot be reached in time or is not trusted.
    """
    client = GrpcClient(participant)
    deadline, pause = time.monotonic() + server.patience, FIRST_PAUSE
    while True:
        asked = client.questions
        try:
            check_reachable(server.address, server.roots, server.connect_timeout)
            converse(server.address, server.roots, client.answer, lambda: client.finished)
            reason = f"{server.address}: ended the conversation"
        except TurnedAwayError as error:
            if not error.later:
                raise
            reason, asked = str(error), client.questions
        except ConnectionError as error:
            reason = str(error)
        except grpc.RpcError as error:
            code = error.code()
            words = code.name.lower().replace("_", " ")
            reason = f"{server.address}: {words} ({error.details()})"
            if server.roots is None and code == grpc.StatusCode.UNAVAILABLE:
                reason += "; a server that speaks TLS needs --root-certificates"
        if client.finished:
            return
        if client.questions > asked:  # the server had accepted the connection
            deadline, pause = time.monotonic() + server.patience, FIRST_PAUSE
            name = participant.identity.name
            participant.say(f"{name}: connection lost, trying again for {server.patience:g} s")
        if time.monotonic() + pause > deadline:
            raise ConfigError(f"{reason}; gave up after {server.patience:g} s")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def wait_until_reachable(server: ServerAddress) -> None:
    """Wait until a trusted server listens.

    Raises:
        ConfigError: if there is none in time, or it is not trusted.
    """
    deadline = time.monotonic() + server.patience
    while True:
        try:
            return check_reachable(server.address, server.roots, server.connect_timeout)
        except ConnectionError as error:
            if time.monotonic() + 1.0 > deadline:
                raise ConfigError(f"{error}; gave up after {server.patience:g} s") from error
        time.sleep(1.0)
