"""A client of a federation over gRPC: connect, answer the server, connect again if cut off."""

from __future__ import annotations

import math
import random
import signal
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
from privfed.runtimes.grpc_transport import KEEPALIVE, converse
from privfed.runtimes.interruption import answering
from privfed.runtimes.reachability import check_reachable

OK = Status(Code.OK, "")
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
"""Seconds between attempts to connect; each pause is drawn below that, so that clients spread."""
LASTING = 10.0
"""Seconds after which a conversation counts as one, even if nothing new was asked."""


class LeaveError(Exception):
    """The operator of this machine asked the client to leave."""


class GrpcClient:
    """Translates between Flower's gRPC messages and a participant.

    Args:
        participant: answers for the users of this node.
    """

    def __init__(self, participant: Participant) -> None:
        self.participant = participant
        self.finished = False
        """Whether the server has said that the run is over."""
        self.progress = 0
        """Number of steps and models that were answered for the first time."""
        self.leaving = False
        """Whether the operator has asked this client to leave."""
        self._busy, self._last = False, -1

    @property
    def over(self) -> bool:
        """Whether the conversation ends after the answer that was given last."""
        return self.finished or self.leaving

    def leave(self) -> None:
        """Leave after the answer that is being computed, or at once.

        Raises:
            LeaveError: if nothing is being computed.
        """
        self.leaving = True
        if not self._busy:
            raise LeaveError

    def answer(self, message: ServerMessage) -> ClientMessage:
        """Return the reply to one message of the server.

        Raises:
            PrivfedError: if the message is not part of the protocol, or the participant refuses.
        """
        self._busy = True
        try:
            return self._reply(message)
        finally:
            self._busy = False

    def _reply(self, message: ServerMessage) -> ClientMessage:
        kind = message.WhichOneof("msg")
        if kind == "get_properties_ins":
            question = get_properties_ins_from_proto(message.get_properties_ins).config
            told = GetPropertiesRes(OK, self.participant.properties(question))
            return ClientMessage(get_properties_res=get_properties_res_to_proto(told))
        if kind == "fit_ins" and self.participant.made is not None:
            ins = fit_ins_from_proto(message.fit_ins)
            fitted = self.participant.fit(ins)
            step = ins.config.get("step")
            if isinstance(step, int) and step > self._last:
                self._last, self.progress = step, self.progress + 1
            return ClientMessage(fit_res=fit_res_to_proto(fitted))
        if kind == "evaluate_ins" and self.participant.made is not None:
            judged = self.participant.evaluate(evaluate_ins_from_proto(message.evaluate_ins))
            self.progress += 1
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
        patience: seconds to keep trying after the last conversation that got anywhere.
        keepalive: seconds between pings on a quiet connection.

    Raises:
        ConfigError: if `patience` or `keepalive` is no number of seconds.
    """

    address: str
    roots: bytes | None
    patience: float
    keepalive: float = KEEPALIVE

    def __post_init__(self) -> None:
        if not 0 <= self.patience < math.inf:
            allowed = "must be a number of seconds, at least 0"
            raise ConfigError.of("--patience", self.patience, allowed)
        if not 1 <= self.keepalive <= 3600:
            raise ConfigError.of("--keepalive", self.keepalive, "must lie between 1 and 3600")

    @property
    def connect_timeout(self) -> float:
        """Seconds that one attempt to connect may take."""
        return max(1.0, min(10.0, self.patience))


def take_part(participant: Participant, server: ServerAddress) -> None:
    """Answer the server until it says that the run is over, or SIGTERM asks this client to leave.

    A conversation that got nowhere does not extend the patience, and pauses grow.

    Args:
        participant: answers for the users of this node.
        server: where to connect.

    Raises:
        TurnedAwayError: if the server refuses this client for good.
        ConfigError: if the server cannot be reached in time or is not trusted.
    """
    client, name = GrpcClient(participant), participant.identity.name
    try:
        with answering(signal.SIGTERM, client.leave):
            _keep_answering(client, server)
    except LeaveError:
        pass
    if client.leaving:
        participant.say(f"{name}: left; the server goes on without this client")


def _keep_answering(client: GrpcClient, server: ServerAddress) -> None:
    participant = client.participant
    ticket, name = participant.identity.ticket, participant.identity.name
    deadline, pause = time.monotonic() + server.patience, FIRST_PAUSE
    while True:
        before, lasting = client.progress, False
        try:
            check_reachable(server.address, server.roots, server.connect_timeout)
            began = time.monotonic()
            try:
                converse(
                    server.address,
                    server.roots,
                    client.answer,
                    lambda: client.over,
                    ticket,
                    server.keepalive,
                )
            finally:
                lasting = participant.made is not None and time.monotonic() - began > LASTING
            reason = f"{server.address}: ended the conversation"
        except TurnedAwayError as error:
            if not error.later:
                raise
            reason, lasting = str(error), False
        except ConnectionError as error:
            reason = str(error)
        except grpc.RpcError as error:
            code = error.code()
            words = code.name.lower().replace("_", " ")
            reason = f"{server.address}: {words} ({error.details()})"
            if server.roots is None and code == grpc.StatusCode.UNAVAILABLE:
                reason += "; a server that speaks TLS needs --root-certificates"
        if client.over:
            return
        if client.progress > before or lasting:
            deadline, pause = time.monotonic() + server.patience, FIRST_PAUSE
            participant.say(f"{name}: connection lost, trying again for {server.patience:g} s")
        wait = pause * random.uniform(0.5, 1.0)
        if time.monotonic() + wait > deadline:
            raise ConfigError(f"{reason}; gave up after {server.patience:g} s")
        time.sleep(wait)
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
