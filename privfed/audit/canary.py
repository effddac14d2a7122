"""Worlds that an audit compares: real strategy, gate and ledger, with or without a hostile user.

The guarantee covers everything that leaves the gate, whatever the data of the other users are and
whatever the client of one user sends. So the audit plays the worst case, and no client computes
anything (`client_canary` plays the real clients, too):

    canary   a node with one user. In step t it sends +100 clip u_t, which the server has to
             clip to +clip u_t (world PLUS), or -100 clip u_t (MINUS), or no answer at all
             (SILENT). It claims to have a million examples
    others   one node for all other users. In even steps they all send -clip u_t. In odd steps
             their sum is +clip u_t, so that all users together send nothing in world MINUS:
             whatever depends on the size of a sum differs most between the worlds. The adversary
             knows these vectors, so they can be subtracted
    u_t      a fixed direction per sum, in its first coordinates. If noise were used twice,
             the same coordinates would show it

replace-one compares PLUS with MINUS, which are as far apart as two users can be: 2 clip. A silent
user is a neighbour, too: some of the repetitions also play SILENT, and so detect anything that
depends on the number of replies. zero-out compares PLUS with SILENT. In a step that selects, the
canary gives the highest score to a few candidates and the lowest to all others, or the other way
round. The counts behind private clip norms are sums like any other. Outer products have no
opposites: the canary sends u u^T or v v^T, with v orthogonal to u, and the others send nothing.

The audit observes the input of the algorithm's own step (the released mean, times the public number
of users) and the output of the gate for clip norms; everything else that is published is computed
from these. Two numbers per release are kept, in units of the clip norm: the component along u_t
after subtraction of the other users, and the energy orthogonal to it. The numbers of steps and of
entries in the ledger are public and kept as well.

A repetition plays each of its worlds once, as one whole run with its own strategy and ledger. The
noise source never sees a sum, so the worlds of one repetition may share their draws: each world has
exactly the distribution it would have alone, and the distance between the worlds is measured more
precisely. Repetitions have independent noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from hydra.utils import instantiate
from threadpoolctl import threadpool_limits

from privfed.config.instantiation import algorithm_settings, filled, without_about
from privfed.experiment.wiring import Experiment
from privfed.federation.roster import Member, Roster, new_token
from privfed.foundation.errors import RefutedError
from privfed.foundation.linalg import Array, svec
from privfed.foundation.seeding import generator
from privfed.privacy.adaptive_clipping import MEASURES
from privfed.privacy.clipping import SLACK
from privfed.privacy.distances import NON_NEGATIVE, OUTER_PRODUCT, SEMIDEFINITE
from privfed.privacy.exact_sampling import Whole
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Ledger
from privfed.privacy.neighbouring import ZERO_OUT
from privfed.privacy.noise import NoiseSource, noise_source
from privfed.runtimes.inprocess import LocalProxy

PLUS, MINUS, SILENT = "plus", "minus", "silent"
SIGN = {PLUS: 1.0, MINUS: -1.0}
LOUD = 100.0
EXAMPLES = 10**6
SPAN = 8
"""Directions are nonzero in the first SPAN coordinates only."""
CANARY, OTHERS = "canary", "others"
Key = tuple[int, tuple[float, ...], tuple[Any, ...]]
"""What replies depend on: the step, its clip norms, and the shapes of its sums.

Shapes may follow from earlier releases.
"""


def population(users: int) -> Roster:
    """Return a roster of the canary's node and one node for the other `users` - 1 users."""
    members = [Member(OTHERS, users - 1, new_token(), simulated=True)] if users > 1 else []
    return Roster([*members, Member(CANARY, 1, new_token(), simulated=True)])


@dataclass(frozen=True)
class Question:
    """Sum that a step asks for.

    Attributes:
        name: name of the release.
        shape: shape of the sum.
        bound: clip norm.
        direction: u_t as a flat vector; for a selection, +1 or -1 per candidate.
        selects: whether the step selects a candidate.
        others: sum of all other users, in units of clip u_t.
    """

    name: str
    shape: tuple[int, ...]
    bound: float
    direction: Array
    selects: bool
    others: float = 0.0

    def message(self, world: str) -> tuple[Array, Array]:
        """Return the replies of the canary and of the other users, each of shape `shape`.

        Args:
            world: PLUS, MINUS or SILENT; in SILENT the canary's reply is not sent.
        """
        loud = SIGN.get(world, 0.0) * LOUD * self.bound * self.direction
        known = self.others * self.bound * self.direction
        return loud.reshape(self.shape), known.reshape(self.shape)

    def observed(self, released: Array) -> tuple[float, float]:
        """Return the component along the direction, and the energy orthogonal to it.

        For a selection, it is only whether the chosen candidate is one that the canary favours.

        Args:
            released: released sum, or index of the chosen candidate.
        """
        if self.selects:
            return float(self.direction[int(released)]), 0.0
        rest = released.ravel() / self.bound - self.others * self.direction
        along = float(rest @ self.direction)
        return along, float(rest @ rest) - along**2


STEPS = Question("steps", (1,), 1.0, np.ones(1), False)
"""Stands for the number of steps that a run took, and of entries in its ledger."""


class SharedDraws:
    """Noise source that repeats its draws for the next world of the same repetition."""

    def __init__(self, source: NoiseSource) -> None:
        self.source, self.name, self.repeatable = source, source.name, source.repeatable
        self.distribution, self.margin = source.distribution, source.margin
        self.parts = source.parts
        self._drawn: dict[tuple[int, int, str, int], list[Whole]] = {}
        self._left: dict[tuple[int, int, str, int], Iterator[Whole]] = {}

    def rewind(self) -> None:
        """Repeat all draws from here on, in the same order."""
        self._left = {key: iter(draws) for key, draws in self._drawn.items()}

    def normal(self, size: int, s: int, name: str, round: int) -> Whole:
        """See :class:`NoiseSource`; a draw that no earlier world asked for is new."""
        key = (size, s, name, round)
        known = next(self._left.get(key, iter(())), None)
        if known is not None:
            return known
        drawn = self.source.normal(size, s, name, round)
        self._drawn.setdefault(key, []).append(drawn)
        return drawn

    def choice(self, exponents: Array, name: str, round: int) -> int:
        """See :class:`NoiseSource`; never repeated, since choices depend on the sums."""
        return self.source.choice(exponents, name, round)


class CanaryStage:
    """Plays repetitions of one configured experiment.

    Args:
        experiment: experiment whose roster is that of `population`.
        repetitions: number of repetitions.
    """

    def __init__(self, experiment: Experiment, repetitions: int) -> None:
        self.experiment, cfg = experiment, experiment.cfg
        self.repetitions = repetitions
        self.silent_every = max(1, min(10, repetitions // 300))
        """Under replace-one, one in `silent_every` repetitions also plays SILENT."""
        settings = filled(cfg.algo.strategy, algorithm_settings(cfg))
        self._strategy = again(experiment.strategy, settings)
        self._init = again(experiment.federation.init, filled(cfg.init.strategy, cfg.init))
        self._nodes = {cid: LocalProxy(cid, None) for cid in experiment.nodes}  # type: ignore[arg-type]
        self._asked: dict[Key, list[Question]] = {}
        self._replies: dict[tuple[Key, str], list[tuple[LocalProxy, FitRes]]] = {}
        self.zero_out = experiment.budget.neighbouring == ZERO_OUT
        self.worlds = (PLUS, SILENT) if self.zero_out else (PLUS, MINUS)

    @cached_property
    def group(self) -> int | None:
        """Return the group of the canary; None if there are no groups."""
        plan, federation = self.experiment.strategy.plan, self.experiment.federation
        groups = max((step.phase.groups for step in plan), default=0)
        return next((g for g in range(groups) if federation.reach(groups, g)[CANARY]), None)

    def play(self, strategy: Any, world: str) -> list[tuple[Question, int, float, float]]:
        """Play one whole run in one world.

        Returns:
            (question, round, component along u_t, energy orthogonal to it) per release, and
            (STEPS, 0, number of steps, number of entries in the ledger).
        """
        means: list[Array] = []
        measured: list[Array] = []
        overhear(strategy, "apply", lambda _, step, released: means.extend(released))
        overhear(strategy.federation.gate, "release", lambda answer, *_: measured.append(answer))
        seen: list[tuple[Question, int, float, float]] = []
        for step in list(strategy.plan):
            if strategy.done >= len(strategy.plan):  # the run ends earlier than planned
                clips = strategy.announcement(step).clips
                seen += [(q, step.round, 0.0, 0.0) for q in self.questions(strategy, step, clips)]
                continue
            clips = strategy.announcement(step).clips
            key = (strategy.done, clips, tuple(strategy.shapes(step).items()))
            if key not in self._asked or (key, world) not in self._replies:
                self._prepare(strategy, step, key, world)
            questions = self._asked[key]
            means.clear()
            measured.clear()
            strategy.aggregate_fit(strategy.done + 1, self._replies[key, world], [])
            n = strategy.federation.expected(step.phase.groups)
            told = [
                mean if q.selects else mean * n for q, mean in zip(questions, means, strict=False)
            ]
            left = len(questions) - len(told)
            told += measured[len(measured) - left :] if left else []
            if len(told) != len(questions):
                raise RefutedError(
                    f"step {key[0] + 1} ({step.task}) used {len(questions)} sums, and "
                    f"{len(told)} passed the noise gate of the run"
                )
            seen += [(q, step.round, *q.observed(x)) for q, x in zip(questions, told, strict=True)]
        entries = len(strategy.federation.gate.ledger.releases)
        return [*seen, (STEPS, 0, float(strategy.done), float(entries))]

    def _prepare(self, strategy: Any, step: Any, key: Key, world: str) -> None:
        """Make the sums of a step and the nodes' replies, and keep them.

        Most runs ask the same with the same clip norms.
        """
        # Private clip norms differ in every run, so the cache would grow without limit.
        if len(self._replies) > 10_000:
            self._asked.clear()
            self._replies.clear()
        federation = strategy.federation
        reach = federation.reach(step.phase.groups, step.group)
        questions = list(self.questions(strategy, step, key[1]))
        self._asked[key] = questions
        messages = [q.message(world) for q in questions]
        replies = []
        for cid, node in self._nodes.items():
            if cid == CANARY and world == SILENT:
                continue
            parameters = ndarrays_to_parameters(
                [mine if cid == CANARY else known for mine, known in messages]
            )
            examples = EXAMPLES if cid == CANARY else reach[cid]
            replies.append(
                (node, FitRes(Status(Code.OK, ""), parameters, examples, {"step": key[0] + 1}))
            )
        self._replies[key, world] = replies

    def questions(self, strategy: Any, step: Any, clips: Sequence[float]) -> Iterator[Question]:
        """Yield the sums of a step in the order in which they are sent.

        First come the algorithm's own sums, then those that measure norms.
        """
        sums = strategy.shapes(step)
        there = strategy.federation.reach(step.phase.groups, step.group).get(OTHERS, 0)
        others = SLACK * (-there if strategy.done % 2 else min(1, there))
        if step.releases:
            for (name, shape), clip in zip(sums.items(), clips, strict=True):
                kind, selects = strategy.bound(step, name).kind, step.epsilon > 0
                size, find = math.prod(shape), OPPOSED.get(kind)
                direction = find(size) if find else self.direction(size, step, name)
                known = 0.0 if selects or find else others
                yield Question(name, shape, float(clip), direction, selects, known)
        if step.question:
            measure = MEASURES[step.question]
            for name in sums:
                title = f"{name} clip norm"
                yield Question(
                    title,
                    (measure.size,),
                    measure.bound.clip,
                    self.direction(measure.size, step, title, True),
                    False,
                    others,
                )

    def direction(self, size: int, step: Any, name: str, measures: bool = False) -> Array:
        """Return u_t, (size,); for a selection, +1 for favoured candidates and -1 for all others.

        The number of favoured candidates is such that, with the canary's vote, all of them together
        are as likely as all other candidates together.
        """
        rng = generator(self.experiment.federation.seed, "canary", name, step.round)
        if step.epsilon > 0 and not measures:
            raised = step.epsilon / (1.0 if self.zero_out else 2.0)
            favoured = min(
                max(1, round(size / (1.0 + math.exp(min(raised, 700.0))))), max(1, size // 2)
            )
            votes = -np.ones(size)
            votes[rng.choice(size, favoured, replace=False)] = 1.0
            return votes
        u = np.zeros(size)
        u[:SPAN] = rng.standard_normal(min(size, SPAN))
        return u / np.linalg.norm(u)

    def worlds_of(self, number: int) -> tuple[str, ...]:
        """Return the worlds that a repetition plays."""
        if self.zero_out or number % self.silent_every:
            return self.worlds
        return (*self.worlds, SILENT)

    def repetition(self, number: int) -> dict[str, Array]:
        """Return the observations of one repetition by world, (releases, 2)."""
        cfg, experiment = self.experiment.cfg, self.experiment
        seed = int(generator(cfg.seed, "audit", number).integers(2**62))
        source = SharedDraws(noise_source(cfg.privacy.noise, seed, experiment.simulated))
        seen = {}
        for world in self.worlds_of(number):
            source.rewind()
            ledger = Ledger(experiment.budget)
            federation = replace(
                experiment.federation, gate=NoiseGate(ledger, source), init=self._init()
            )
            strategy = self._strategy(federation=federation)
            strategy.prepare()
            played = self.play(strategy, world)
            seen[world] = np.array([(along, beside) for _, _, along, beside in played])
        return seen

    def chunk(self, numbers: range) -> dict[str, Array]:
        """Return the observations of several repetitions by world, (repetitions, releases, 2)."""
        with threadpool_limits(1):
            played = [self.repetition(number) for number in numbers]
        worlds = {world for seen in played for world in seen}
        return {
            world: np.array([seen[world] for seen in played if world in seen]) for world in worlds
        }


def opposed_matrices(size: int) -> Array:
    """Return svec of (u u^T - v v^T) / sqrt(2), with u and v the first two unit vectors: (size,).

    The server makes u u^T of what points along it, and v v^T of what points against it. These are
    as far apart as two outer products, or two semidefinite matrices of that norm, can be.
    """
    q = (math.isqrt(8 * size + 1) - 1) // 2
    return svec(np.diag(opposed_entries(q)))


def opposed_entries(size: int) -> Array:
    """Return (e_1 - e_2) / sqrt(2), of which the server makes e_1 or e_2: (size,)."""
    if size == 1:
        return np.ones(1)
    both = np.zeros(size)
    both[:2] = np.array([1.0, -1.0]) / math.sqrt(2.0)
    return both


OPPOSED: dict[str, Callable[[int], Array]] = {
    OUTER_PRODUCT: opposed_matrices,
    SEMIDEFINITE: opposed_matrices,
    NON_NEGATIVE: opposed_entries,
}
"""Direction of the canary where parts have no opposites: by kind of bound."""


def again(made: Any, node: dict[str, Any]) -> Callable[..., Any]:
    """Return a constructor that makes an object like `made`, without checking its settings again.

    Args:
        made: object that was made from the configuration, with checks.
        node: its settings.
    """
    maker = instantiate(without_about(node), _partial_=True)
    kind: Callable[..., Any] = type(made) if isinstance(maker.func, type) else maker.func
    return partial(kind, **maker.keywords)


def overhear(owner: Any, method: str, note: Callable[..., None]) -> None:
    """Call note(answer, *arguments) after every call of a method of one object.

    Args:
        owner: the object.
        method: name of the method.
        note: function to call.
    """
    call = getattr(owner, method)

    def noted(*given: Any, **more: Any) -> Any:
        answer = call(*given, **more)
        note(answer, *given)
        return answer

    setattr(owner, method, noted)
