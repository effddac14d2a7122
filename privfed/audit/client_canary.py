"""Audit of the clients: the real clients of a few users, one of whom is the worst that was found.

`canary` lets a hostile node send anything, so it tests the server. A node of several users is
trusted to clip each of them. Here such a node runs the real client, and one of its users is one of
two people whom the replay's search found: as far apart as the algorithm lets two users be. A clip
that is left out, or a user that counts twice, then shows in the releases.

    PLUS, MINUS   the user is the first person, or the second
    SILENT        the user is absent (zero-out)

All other nodes are silent, which they may be. The adversary knows the data of all other users and
both people. After each step it knows the
shared parameters, and computes what all nodes would send in both worlds, T_1 and T_0. So it has the
log likelihood ratio of every release R, given everything before it:

    sums         <R - (T_1 + T_0) / 2, T_1 - T_0> / std^2
    selections   rate (T_1 - T_0)[chosen] - log Z_1 / Z_0

All ratios of a run add up to one number, which is all that is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from omegaconf import DictConfig
from scipy.special import logsumexp

from privfed.algorithm.phases import GaussianStatistic
from privfed.audit.canary import PLUS, SILENT, STEPS, CanaryStage, Question, overhear
from privfed.audit.guise import COHORT, Asked, with_data, without
from privfed.audit.hostile_users import User, hostile, labels_of
from privfed.audit.neighbours import PLACE, Found, own_data, search_for_users
from privfed.audit.recording import asked_of
from privfed.audit.replay import Theatre
from privfed.audit.transcript import Transcript
from privfed.data.cohort import Cohort
from privfed.foundation.errors import RefutedError
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator
from privfed.privacy.accounting import GaussianRelease, Release
from privfed.privacy.clipping import clamp, clip, norm
from privfed.privacy.neighbouring import WEAK, ZERO_OUT

USERS = 8
"""Number of users, unless the settings need more."""
TRIES = 24
"""Changes that each search for a worst person may make."""
RATIO = Question("log likelihood ratio", (1,), 1.0, np.ones(1), False)
"""Stands for the sum of all log likelihood ratios of a run."""

Answer = tuple[list[Array], int, dict[str, Any]]
"""What a client returns: arrays, number of users, metrics."""


class ClientStage(CanaryStage):
    """Plays repetitions of one configured experiment with real clients.

    Args:
        cfg: configuration of the experiment, with few simulated users.
        repetitions: number of repetitions.

    Raises:
        RefutedError: if a run fails, or if who takes part depends on data.
        ConfigError: if the experiment cannot be replayed.
    """

    def __init__(self, cfg: DictConfig, repetitions: int) -> None:
        self.theatre = Theatre(cfg)
        super().__init__(self.theatre.experiment, repetitions)
        base = self.theatre.play()
        if base.stopped:
            raise RefutedError(f"the run with real clients fails ({base.stopped})")
        found = search_for_users(self.theatre, base, TRIES)
        self.people = worst_pair(self.theatre, base, found)
        self._users, _ = own_data(self.theatre)

    def worlds_of(self, number: int) -> tuple[str, ...]:
        """See :class:`CanaryStage`."""
        return self.worlds

    def play(self, strategy: Any, world: str) -> list[tuple[Question, int, float, float]]:
        """Play one whole run in one world; return its log likelihood ratio."""
        out: list[Array] = []
        gate, steps, ratio = strategy.federation.gate, len(strategy.plan), 0.0
        for method in ("release", "select"):
            overhear(gate, method, lambda answer, *_: out.append(np.asarray(answer)))
        mine = {name: self.theatre.serving(self._cohort(name)) for name in self.worlds}
        while strategy.done < min(steps, len(strategy.plan)):
            step = strategy.plan[strategy.done]
            reach = strategy.federation.reach(step.phase.groups, step.group)[COHORT]
            wanted = asked_of(strategy, 0)
            shared = strategy.shared if step.phase.announce is None else step.phase.announce()
            config = strategy.announcement(step).to_config()

            def answer(client: Any, shared: Any = shared, config: Any = config) -> Answer:
                told: Answer = client.fit([np.array(x) for x in shared], config)
                return told

            both = {name: answer(client) for name, client in mine.items()}
            out.clear()
            written, n = len(gate.ledger.releases), strategy.federation.expected(step.phase.groups)
            reply = flower(*both[world])
            strategy.aggregate_fit(strategy.done + 1, [(self._nodes[COHORT], reply)], [])
            one, zero = (totals(step, wanted, both[name][0], reach, n) for name in self.worlds)
            ratio += sum(map(log_ratio, gate.ledger.releases[written:], out, one, zero))
        done, entries = float(strategy.done), float(len(gate.ledger.releases))
        return [(RATIO, 0, ratio, 0.0), (STEPS, 0, done, entries)]

    def _cohort(self, world: str) -> Cohort:
        """Return the users of the node whose user changes."""
        if world == SILENT:
            return without(self._users, PLACE)
        return with_data(self._users, PLACE, *self.people[0 if world == PLUS else 1])


def flower(arrays: list[Array], users: int, metrics: dict[str, Any]) -> FitRes:
    """Return the answer of a client as Flower's server gets it."""
    return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), users, metrics)


def totals(step: Any, wanted: Asked, sent: list[Array], reach: int, n: float) -> list[Array]:
    """Return what would enter the gate: the sums of the node, clipped as the server does.

    Args:
        step: the step.
        wanted: shapes and bounds of its sums.
        sent: arrays that the node sends.
        reach: number of users of the node whose parts the server lets in.
        n: number of users by which sums are divided.
    """
    bounded = clamp if step.phase.selects else clip
    sums = [bounded(array, reach * b) for array, b in zip(sent, wanted.bounds, strict=True)]
    if isinstance(step.phase.mechanism, GaussianStatistic) and step.releases:
        sums[0] = n * step.phase.mechanism.of(step.round, sums[0] / n)
    return sums


def log_ratio(entry: Release, released: Array, one: Array, zero: Array) -> float:
    """Return the log likelihood ratio of one release, by what the ledger says about its noise.

    Args:
        entry: entry in the ledger.
        released: what left the gate.
        one: total in world 1.
        zero: total in world 0.
    """
    gap = one - zero
    if isinstance(entry, GaussianRelease):
        # In units of the noise, so that sums that no clip has bounded do not overflow.
        return float(np.vdot((released - (one + zero) / 2) / entry.std, gap / entry.std))
    normaliser = logsumexp(entry.rate * one) - logsumexp(entry.rate * zero)
    return float(entry.rate * gap[int(released)] - normaliser)


def worst_pair(theatre: Theatre, base: Transcript, found: Found) -> tuple[User, User]:
    """Return the two people whom all releases of a run together tell apart best.

    If a user is emptied rather than replaced, it is one person twice, far from nobody.

    Args:
        theatre: the experiment.
        base: a recorded run.
        found: pairs of people that a search found.
    """
    data, relation = theatre.experiment.data, theatre.gate.ledger.budget.neighbouring
    cohort, own = own_data(theatre)
    strange = hostile(generator(theatre.cfg.seed, "worst people"), data.m, data.d, labels_of(data))
    if relation == WEAK:
        pairs = [(first, second) for _, first, second in found] + [(own, (own[0], -own[1]))]
    else:
        people = [own, *strange.values(), *(person for _, *pair in found for person in pair)]
        pairs = [(a, b) for i, a in enumerate(people) for b in people[:i]]
        pairs = [(a, a) for a in people] if relation == ZERO_OUT else pairs
    sent = Sent(theatre, base, cohort)
    nobody = sent.of(without(cohort, PLACE))
    known = {id(user): sent.of(with_data(cohort, PLACE, *user)) for pair in pairs for user in pair}

    def far(pair: tuple[User, User]) -> float:
        first, second = (known[id(user)] for user in pair)
        return sent.apart(first, nobody if relation == ZERO_OUT else second)

    return max(pairs, key=far)


class Sent:
    """What a node sends in the steps of a recorded run, as the server clips it.

    Args:
        theatre: the experiment.
        base: the recorded run.
        cohort: users of the node.
    """

    def __init__(self, theatre: Theatre, base: Transcript, cohort: Cohort) -> None:
        self.theatre, self.users = theatre, len(cohort)
        self.messages = [m for m in base.messages if m.kind == "fit" and m.cid == COHORT]
        self.entries = [
            [call.entry for call in base.calls if call.step == message.ins.config["step"] - 1]
            for message in self.messages
        ]

    def of(self, cohort: Cohort) -> list[list[Array]]:
        """Return what the node would send if its users were these: arrays per step."""
        client = self.theatre.serving(cohort)
        return [
            client.fit(parameters_to_ndarrays(message.ins.parameters), message.ins.config)[0]
            for message in self.messages
        ]

    def apart(self, one: list[list[Array]], other: list[list[Array]]) -> float:
        """Return the sum over releases of (distance of the clipped sums / noise)^2."""
        far = 0.0
        for entries, first, second in zip(self.entries, one, other, strict=True):
            for entry, a, b in zip(entries, first, second, strict=False):
                if entry is None or a.shape != b.shape:
                    continue
                gaussian = isinstance(entry, GaussianRelease)
                bounded = clip if gaussian else clamp
                a, b = (bounded(array, self.users * entry.clip) for array in (a, b))
                noise = entry.std if isinstance(entry, GaussianRelease) else entry.sensitivity
                far += (norm(a - b) / (noise or 1.0)) ** 2
        return far
