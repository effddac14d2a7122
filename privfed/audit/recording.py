"""Record everything that one run of a replay shows: gate, noise, messages, answers, log."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Status,
    ndarrays_to_parameters,
)
from flwr.server.client_manager import SimpleClientManager

from privfed.audit.guise import COHORT, CROWD, EVERYBODY, SINGLE, Asked, Guise
from privfed.audit.transcript import Call, Draw, Message, Reply, Transcript
from privfed.data.cohort import Cohort
from privfed.experiment.wiring import Experiment
from privfed.federation.client_factory import ClientFactory
from privfed.federation.roster import Roster
from privfed.foundation.errors import PrivfedError
from privfed.foundation.linalg import Array
from privfed.privacy.adaptive_clipping import MEASURES
from privfed.privacy.exact_sampling import Whole
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Ledger
from privfed.privacy.noise import NoiseSource
from privfed.runtimes.inprocess import LocalProxy
from privfed.runtimes.runtime import Patience, Runtime
from privfed.runtimes.server_loop import run_server_loop


class WatchedSource:
    """Source of noise that records when it was drawn from."""

    def __init__(self, source: NoiseSource, ledger: Callable[[], Ledger], seen: Transcript) -> None:
        self.source, self.name, self.repeatable = source, source.name, source.repeatable
        self.distribution, self.margin = source.distribution, source.margin
        self.parts = source.parts
        self._ledger, self._seen = ledger, seen

    def _note(self, name: str, round: int) -> None:
        self._seen.draws.append(Draw(name, round, len(self._ledger().releases)))

    def normal(self, size: int, s: int, name: str, round: int) -> Whole:
        """See :class:`NoiseSource`."""
        self._note(name, round)
        return self.source.normal(size, s, name, round)

    def choice(self, exponents: Array, name: str, round: int) -> int:
        """See :class:`NoiseSource`."""
        self._note(name, round)
        return self.source.choice(exponents, name, round)


class Recorder:
    """Records the calls of an experiment's gate, whose outputs a script may replace.

    Args:
        experiment: the experiment.
        transcript: gets the calls.
        script: calls of an earlier run, whose outputs are returned; None for the gate's own
            outputs.
    """

    def __init__(
        self, experiment: Experiment, transcript: Transcript, script: list[Call] | None
    ) -> None:
        self.strategy, self.transcript, self.script = experiment.strategy, transcript, script
        gate = experiment.federation.gate
        # Replaced on the gate itself, so that every holder of the gate is recorded.
        for method in ("release", "select"):
            setattr(gate, method, self._heard(gate, getattr(gate, method)))

    def _heard(self, gate: NoiseGate, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(name: str, total: Array, *, round: int, **terms: Any) -> Any:
            entered, written = np.array(total), len(gate.ledger.releases)
            # A total that overflows is a finding and must not stop the run.
            with np.errstate(all="ignore"):
                made = method(name, total, round=round, **terms)
            entry = (
                gate.ledger.releases[written] if len(gate.ledger.releases) == written + 1 else None
            )
            out = made if self.script is None else self._scripted(name, round)
            self.transcript.calls.append(
                Call(
                    self.strategy.done,
                    name,
                    round,
                    terms,
                    entered,
                    np.array(made),
                    np.array(out),
                    entry,
                )
            )
            return out

        return call

    def _scripted(self, name: str, round: int) -> Any:
        assert self.script is not None
        place = len(self.transcript.calls)
        if place >= len(self.script) or (self.script[place].name, self.script[place].round) != (
            name,
            round,
        ):
            raise PrivfedError(
                f"release {place + 1} is {name} of round {round}, which the other data set does "
                "not have there"
            )
        out = self.script[place].out
        return int(out) if out.ndim == 0 else out.copy()


def asked_of(strategy: Any, users: int) -> Asked:
    """Return what the current step asks of a node with this number of registered users."""
    step = strategy.plan[strategy.done]
    shapes: list[tuple[int, ...]] = []
    bounds: list[float] = []
    if step.releases:
        sums = strategy.shapes(step)
        shapes += sums.values()
        bounds += [float(strategy.bound(step, name).clip) for name in sums]
    if step.question:
        measure = MEASURES[step.question]
        shapes += [(measure.size,)] * len(step.phase.named)
        bounds += [measure.bound.clip] * len(step.phase.named)
    return Asked(strategy.done + 1, shapes, bounds, users)


class WatchedProxy(LocalProxy):
    """Node whose messages and answers are recorded, and whose answers a guise may change.

    Args:
        cid: name of the node.
        client: makes the client of the node.
        runtime: runtime that the node belongs to.
        guise: what takes the place of one of its users.
        asked: returns what the current step asks of the node.
    """

    def __init__(
        self,
        cid: str,
        client: Callable[[], Any],
        runtime: RecordingRuntime,
        guise: Guise,
        asked: Callable[[], Asked],
    ) -> None:
        super().__init__(cid, None)  # type: ignore[arg-type]
        self.make = client
        self.runtime, self.transcript, self.guise = runtime, runtime.transcript, guise
        self.mine = guise.node in (cid, EVERYBODY)
        self.asked = asked

    def ask(self, question: str, ins: Any, timeout: float | None) -> Any:
        """See :class:`LocalProxy`.

        A node whose users are the same, and that is asked the same, says the same: it is not asked
        again.
        """
        message = Message(question, self.cid, ins)
        key = (self.guise.surroundings, question, self.cid, message.content)
        if not self.mine and key in self.runtime.known:
            answer, said = self.runtime.known[key]
            self.transcript.said.extend(said)
            return answer
        if self.client is None:
            self.client = self.make()
        before = len(self.transcript.said)
        answer = super().ask(question, ins, timeout)
        if not self.mine:
            self.runtime.known[key] = answer, self.transcript.said[before:]
        return answer

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        """Return the answer; raise an error if the node is silent."""
        message, asked = Message("fit", self.cid, ins), self.asked()
        self.transcript.messages.append(message)
        if self.guise.node == EVERYBODY:
            sent = ndarrays_to_parameters(self.guise.puppet(asked))
            return FitRes(Status(Code.OK, ""), sent, asked.users, {"step": asked.step})
        try:
            answer = super().fit(ins, timeout, group_id)
        except Exception as error:
            self.transcript.failures.append(
                f"node {self.cid!r} failed: {type(error).__name__}: {error}"
            )
            raise
        absent = int(self.mine and self.guise.absent and self.guise.honest)
        self.transcript.replies.append(Reply(message, answer, asked.shapes, asked.users, absent))
        told = self.guise.reply(answer) if self.mine else answer
        if told is None:
            raise ConnectionError("the node is silent")
        return told

    def evaluate(
        self, ins: EvaluateIns, timeout: float | None, group_id: int | None
    ) -> EvaluateRes:
        """Forward to the client."""
        message = Message("evaluate", self.cid, ins)
        self.transcript.messages.append(message)
        answer = super().evaluate(ins, timeout, group_id)
        self.transcript.replies.append(Reply(message, answer, [], 1))
        return answer


Known = dict[tuple[Any, ...], tuple[Any, list[str]]]
"""Answers of nodes, and what they logged, by surroundings, question, node and message."""


@dataclass
class RecordingRuntime(Runtime):
    """Runtime in one process and one thread that records all messages.

    Attributes:
        transcript: gets the messages.
        serving: makes a client for a cohort.
        guise: what takes one user's place.
        known: answers of nodes whose users are the same in several runs.
        name: name of the runtime.
        patience: waiting times.
    """

    transcript: Transcript
    serving: Callable[[Any], Any]
    guise: Guise
    known: Known
    name: str = "replay"
    patience: Patience = field(default_factory=Patience)

    def nodes_for(self, users: int) -> int:
        """See :class:`Runtime`; unused, since a replay has its own roster."""
        return min(len((CROWD, COHORT, SINGLE)), users)

    def run(self, strategy: Any, factory: ClientFactory, roster: Roster, rounds: int) -> None:
        """See :class:`Runtime`."""
        manager = SimpleClientManager()
        for cid, users in roster.nodes.items():
            client = partial(self._client, factory, cid, users)
            asked = partial(asked_of, strategy, len(users))
            manager.register(WatchedProxy(cid, client, self, self.guise, asked))
        run_server_loop(strategy, manager, rounds, workers=1)

    def _client(self, factory: ClientFactory, cid: str, users: range) -> Any:
        cohort = cast(Cohort, factory.source.cohort(users.start, users.stop))
        cohort = self.guise.others(cohort)
        if cid == self.guise.node:
            cohort = self.guise.cohort(cohort)
        return self.serving(cohort).to_client()


@contextmanager
def overheard(said: list[str]) -> Iterator[None]:
    """Collect what is printed, and what privfed and algorithms log at any level."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(f"{record.name}: {record.getMessage()}")

    class Printed(io.StringIO):
        def write(self, text: str) -> int:
            said.append(text)
            return len(text)

    listener = Listener()
    loggers = [logging.getLogger(name) for name in ("", "privfed", "strategies", "clients")]
    levels = [logger.level for logger in loggers]
    loggers[0].addHandler(listener)
    for logger in loggers[1:]:
        logger.setLevel(logging.DEBUG)
    try:
        with redirect_stdout(Printed()):
            yield
    finally:
        loggers[0].removeHandler(listener)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
