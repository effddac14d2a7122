"""Flower client of a SuperNode: answers the messages that the SuperLink delivers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.client import Client
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Status,
)

from privfed.federation.participant import Participant, TurnedAwayError
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.runtimes.superlink_grid import WELCOME

OK = Status(Code.OK, "")
log = logging.getLogger("privfed.supernode")


class SuperNodeClient(Client):
    """Answers for a node. Flower makes it anew for every message.

    Args:
        participant: answers for the users of the node.
    """

    def __init__(self, participant: Participant) -> None:
        self.participant = participant

    def get_properties(self, ins: GetPropertiesIns) -> GetPropertiesRes:
        """Prove the identity of the node, or note in the log why the server refuses it."""
        try:
            return GetPropertiesRes(OK, self.participant.properties(ins.config))
        except TurnedAwayError as error:
            log.error("privfed: %s", error)
            return GetPropertiesRes(OK, {})

    def fit(self, ins: FitIns) -> FitRes:
        """Return the sums over the node's users."""
        with reasons_kept_private():
            self.participant.welcome(str(ins.config.pop(WELCOME)))
            if self.participant.client.memory is not None and self.participant.state is None:
                raise ConfigError(
                    "users of this algorithm keep heads between rounds: "
                    "give the node a folder, state=DIR"
                )
            return self.participant.fit(ins)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Take the published model."""
        with reasons_kept_private():
            self.participant.welcome(str(ins.config.pop(WELCOME)))
            return self.participant.evaluate(ins)


@contextmanager
def reasons_kept_private() -> Iterator[None]:
    """Keep the words of an error in the log of the node.

    Flower sends the words of an exception to the server, and an error about a user's file may
    quote that file.

    Raises:
        PrivfedError: instead of any exception, without its words.
    """
    try:
        yield
    except Exception as error:
        log.error("privfed: %s", error)
        raise PrivfedError("this node could not answer; its own log says why") from None
