"""Grey-box replay: run an experiment with one user in another guise, and record the noise gate.

The first run is recorded: what entered the gate, what left it, and everything else that is public.
In every other run one user has other data, or is absent, or its node lies, and the gate returns the
values of the first run. So both runs have the same public history, and the sums before noise can be
compared at every release. If anything public still differs, it did not come through the gate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes
from flwr.server.client_manager import SimpleClientManager
from hydra.utils import instantiate
from omegaconf import DictConfig
from threadpoolctl import threadpool_limits

from privfed.audit.transcript import Call, Message, Transcript
from privfed.config.instantiation import Settings
from privfed.data.cohort import Cohort
from privfed.experiment.wiring import Experiment
from privfed.federation.client_factory import ClientFactory
from privfed.federation.roster import Member, Roster, new_token
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.foundation.linalg import Array
from privfed.privacy.gate import NoiseGate
from privfed.runtimes.inprocess import LocalProxy, run_server_loop
from privfed.runtimes.runtime import Patience, Runtime

CROWD, COHORT, SINGLE = "crowd", "cohort", "single"
"""Nodes of a replay: unchanged users, the users of whom one changes, and a single user."""
LEAST = 6
"""Least number of users for these three nodes."""


@dataclass(frozen=True)
class Guise:
    """What takes one user's place at a node: other data, nobody, or a node that lies.

    Attributes:
        name: name in findings.
        node: node of the user.
        family: guises of one family are neighbours of each other; weak privacy has one family per
            choice of features.
        cohort: changes the node's cohort.
        reply: changes the node's reply; None means no reply.
        absent: whether the user is absent.
        honest: whether the node runs the real client, so that nothing public may depend on its
            data.
    """

    name: str
    node: str = COHORT
    family: str = ""
    cohort: Callable[[Cohort], Cohort] = lambda cohort: cohort
    reply: Callable[[FitRes], FitRes | None] = lambda reply: reply
    absent: bool = False
    honest: bool = True


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


class WatchedProxy(LocalProxy):
    """Node whose messages are recorded, and whose answers a guise may change."""

    def __init__(self, cid: str, client: Any, transcript: Transcript, guise: Guise | None) -> None:
        super().__init__(cid, client)
        self.transcript, self.guise = transcript, guise

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        """Return the answer; raise an error if the node is silent."""
        self.transcript.messages.append(Message("fit", self.cid, ins))
        try:
            answer = super().fit(ins, timeout, group_id)
        except Exception as error:
            self.transcript.failures.append(
                f"node {self.cid!r} failed: {type(error).__name__}: {error}"
            )
            raise
        told = answer if self.guise is None else self.guise.reply(answer)
        if told is None:
            raise ConnectionError("the node is silent")
        return told

    def evaluate(
        self, ins: EvaluateIns, timeout: float | None, group_id: int | None
    ) -> EvaluateRes:
        """Forward to the client."""
        self.transcript.messages.append(Message("evaluate", self.cid, ins))
        return super().evaluate(ins, timeout, group_id)


@dataclass
class RecordingRuntime(Runtime):
    """Runtime in one process and one thread that records all messages.

    Attributes:
        transcript: gets the messages.
        serving: makes a client for a cohort.
        guise: what takes one user's place; None for nothing.
        name: name of the runtime.
        patience: waiting times.
    """

    transcript: Transcript
    serving: Callable[[Cohort], Any]
    guise: Guise | None
    name: str = "replay"
    patience: Patience = field(default_factory=Patience)

    def nodes_for(self, users: int) -> int:
        """See :class:`Runtime`; unused, since a replay has its own roster."""
        return min(len((CROWD, COHORT, SINGLE)), users)

    def run(self, strategy: Any, factory: ClientFactory, roster: Roster, rounds: int) -> None:
        """See :class:`Runtime`."""
        manager = SimpleClientManager()
        with threadpool_limits(1):
            for cid, users in roster.nodes.items():
                mine = self.guise if self.guise is not None and self.guise.node == cid else None
                cohort = cast(Cohort, factory.source.cohort(users.start, users.stop))
                client = self.serving(cohort if mine is None else mine.cohort(cohort))
                manager.register(WatchedProxy(cid, client.to_client(), self.transcript, mine))
            run_server_loop(strategy, manager, rounds, workers=1)


def roster_for(n: int) -> Roster:
    """Return a roster of n simulated users on the three nodes of a replay; the last is alone."""
    half = n // 2
    sizes = {CROWD: half, COHORT: n - half - 1, SINGLE: 1}
    return Roster(Member(name, users, new_token(), simulated=True) for name, users in sizes.items())


class Theatre:
    """Configured experiment that is run many times; everything that it publishes is public.

    Args:
        cfg: configuration of the experiment.

    Raises:
        ConfigError: too few users, real users, or secret coins that cannot be repeated.
    """

    def __init__(self, cfg: DictConfig) -> None:
        n = cfg.data.n
        if not isinstance(n, int) or n < LEAST:
            raise ConfigError.of("data.n", n, f"a replay needs at least {LEAST} simulated users")
        self.cfg, self.roster = cfg, roster_for(n)
        self.experiment = Experiment(cfg, self.roster)
        federation = self.experiment.federation
        federation.strict, federation.personal, federation.publish = False, False, True
        if not self.experiment.data.simulated:
            raise ConfigError(
                "data: a replay changes users' data, so it needs simulated ones, as "
                "data=synthetic has them"
            )
        self.gate: NoiseGate = federation.gate
        by_coins = any(step.phase.sampling < 1 for step in self.experiment.strategy.plan)
        if by_coins and not self.gate.source.repeatable:
            raise ConfigError(
                "privacy.noise: who takes part is decided by secret coins; a replay needs "
                "privacy.noise=seeded"
            )
        self.guarantee: str = self.experiment.strategy.guarantee or cfg.algo.guarantee
        factory = self.experiment.factory
        self._client = resolved(factory.client)
        self._init = resolved(factory.init) if factory.init is not None else lambda: None

    def serving(self, cohort: Cohort) -> Any:
        """Return a client for a cohort, as :meth:`ClientFactory.serving` does."""
        return self._client(cohort=cohort, init=self._init())

    def play(self, guise: Guise | None = None, script: list[Call] | None = None) -> Transcript:
        """Run the experiment once.

        Args:
            guise: what takes one user's place; None for nothing.
            script: calls of the gate whose outputs are repeated; None for fresh ones.
        """
        experiment, seen = self.experiment.renewed(), Transcript()
        # Errors on fresh public users follow from the shared parameters, which are compared.
        experiment.watches = False
        strategy = experiment.strategy
        seen.planned = [
            (name, step.round) for step in strategy.plan for name, _ in strategy.costs(step)
        ]
        experiment.runtime = RecordingRuntime(seen, self.serving, guise)
        Recorder(experiment, seen, script)
        try:
            outcome = experiment.run()
        except Exception as error:
            if script is None:
                raise
            seen.stopped = f"{type(error).__name__}: {error}"
            return seen
        finally:
            seen.ledger = list(experiment.ledger.releases)
        fleeting = ("time", "peak_rss_mb")
        seen.published = {
            "model": outcome.model,
            "clip norms": strategy.clips,
            "memory": strategy.memory(),
            "rows": [
                {key: value for key, value in row.items() if key != "seconds"}
                for row in outcome.rows
            ],
            "result": {key: value for key, value in outcome.result.items() if key not in fleeting},
        }
        return seen


def resolved(node: Settings) -> Callable[..., Any]:
    """Return the constructor named by `_target_` with its configured arguments.

    It is looked up once, since a search makes thousands of objects.
    """
    made = instantiate(node, _partial_=True)
    return partial(made.func, *made.args, **made.keywords)


def floating(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return `dtype` if it is a floating-point type, else float64, for hostile users' data."""
    return dtype if np.issubdtype(dtype, np.floating) else np.dtype(np.float64)


def with_data(cohort: Cohort, place: int, X: Array, y: Array) -> Cohort:
    """Return the cohort with examples X (m, d), y (m,) for the user at position `place`."""
    Xs, ys = cohort.X.astype(floating(cohort.X.dtype)), cohort.y.copy()
    # The cohort may store its numbers in lower precision.
    with np.errstate(over="ignore"):
        Xs[place], ys[place] = X, y
    return replace(cohort, X=Xs, y=ys)


def without(cohort: Cohort, place: int) -> Cohort:
    """Return the cohort without the user at position `place`."""
    kept = np.flatnonzero(np.arange(len(cohort)) != place)
    return Cohort(cohort.ids[kept], cohort.X[kept], cohort.y[kept])
