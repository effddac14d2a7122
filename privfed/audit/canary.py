"""Worlds that an audit compares: real strategy, gate and ledger, with or without a hostile user.

The guarantee covers everything that leaves the gate, whatever the data of the other users are and
whatever the client of one user sends. So the audit plays the worst case, and no client computes
anything:

    canary   a node with one user. In step t it sends +100 clip u_t, which the server has to
             clip to +clip u_t (world PLUS), or -100 clip u_t (MINUS), or no answer at all
             (SILENT). It claims to have a million examples
    others   one node for all other users, who all send -clip u_t. The adversary knows this
             vector, so it can be subtracted
    u_t      a fixed direction per sum, in its first coordinates. If noise were used twice,
             the same coordinates would show it

replace-one compares PLUS with MINUS, which are as far apart as two users can be: 2 clip. A silent
user is a neighbour, too: some of the repetitions also play SILENT, and so detect anything that
depends on the number of replies. add-remove compares PLUS with SILENT. In a step that selects, the
canary gives the highest score to a few candidates and the lowest to all others, or the other way
round. The counts behind private clip norms are sums like any other.

The audit observes the input of the algorithm's own step (the released mean, times the public number
of users) and the output of the gate for clip norms; everything else that is published is computed
from these. Two numbers per release are kept, in units of the clip norm: the component along u_t
after subtraction of the other users, and the energy orthogonal to it.

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
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator
from privfed.privacy.adaptive_clipping import MEASURES
from privfed.privacy.clipping import SLACK
from privfed.privacy.exact_sampling import Whole
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Ledger
from privfed.privacy.neighbouring import ADD_REMOVE
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
    """

    name: str
    shape: tuple[int, ...]
    bound: float
    direction: Array
    selects: bool

    def message(self, world: str, others: int) -> tuple[Array, Array]:
        """Return the replies of the canary and of the other users, each of shape `shape`.

        Args:
            world: PLUS, MINUS or SILENT; in SILENT the canary's reply is not sent.
            others: number of other users.
        """
        loud = SIGN.get(world, 0.0) * LOUD * self.bound * self.direction
        known = (
            np.zeros(self.direction.shape)
            if self.selects
            else -others * self.bound * SLACK * self.direction
        )
        return loud.reshape(self.shape), known.reshape(self.shape)

    def observed(self, released: Array, others: int) -> tuple[float, float]:
        """Return the component along the direction, and the energy orthogonal to it.

        For a selection, it is only whether the chosen candidate is one that the canary favours.

        Args:
            released: released sum, or index of the chosen candidate.
            others: number of other users.
        """
        if self.selects:
            return float(self.direction[int(released)]), 0.0
        rest = released.ravel() / self.bound + others * SLACK * self.direction
        along = float(rest @ self.direction)
        return along, float(rest @ rest) - along**2


class SharedDraws:
    """Noise source that repeats its draws for the next world of the same repetition."""

    def __init__(self, source: NoiseSource) -> None:
        self.source, self.name, self.repeatable = source, source.name, source.repeatable
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
        self._asked: dict[Key, tuple[list[Question], dict[str, int]]] = {}
        self._replies: dict[tuple[Key, str], list[tuple[LocalProxy, FitRes]]] = {}
        self.add_remove = experiment.budget.neighbouring == ADD_REMOVE
        self.worlds = (PLUS, SILENT) if self.add_remove else (PLUS, MINUS)

    @cached_property
    def group(self) -> int | None:
        """Return the group of the canary; None if there are no groups."""
        plan, federation = self.experiment.strategy.plan, self.experiment.federation
        groups = max((step.phase.groups for step in plan), default=0)
        return next((g for g in range(groups) if federation.asked(groups, g)[CANARY]), None)

    def play(self, strategy: Any, world: str) -> list[tuple[Question, int, float, float]]:
        """Play one whole run in one world.

        Returns:
            (question, round, component along u_t, energy orthogonal to it) per release.
        """
        means: list[Array] = []
        measured: list[Array] = []
        overhear(strategy, "apply", lambda _, step, released: means.extend(released))
        overhear(strategy.federation.gate, "release", lambda answer, *_: measured.append(answer))
        seen = []
        for step in strategy.plan:
            clips = strategy.announcement(step).clips
            key = (strategy.done, clips, tuple(strategy.shapes(step).items()))
            if key not in self._asked or (key, world) not in self._replies:
                self._prepare(strategy, step, key, world)
            questions, asked = self._asked[key]
            means.clear()
            measured.clear()
            strategy.aggregate_fit(strategy.done + 1, self._replies[key, world], [])
            n, others = sum(asked.values()), asked.get(OTHERS, 0)
            told = [
                mean if q.selects else mean * n for q, mean in zip(questions, means, strict=False)
            ]
            told += measured[len(measured) - (len(questions) - len(told)) :]
            seen += [
                (q, step.round, *q.observed(x, others))
                for q, x in zip(questions, told, strict=True)
            ]
        return seen

    def _prepare(self, strategy: Any, step: Any, key: Key, world: str) -> None:
        """Make the sums of a step and the nodes' replies, and keep them.

        Most runs ask the same with the same clip norms.
        """
        # Private clip norms differ in every run, so the cache would grow without limit.
        if len(self._replies) > 10_000:
            self._asked.clear()
            self._replies.clear()
        federation = strategy.federation
        asked = federation.asked(step.phase.groups, step.group)
        questions = list(self.questions(strategy, step, key[1]))
        self._asked[key] = questions, asked
        messages = [q.message(world, asked.get(OTHERS, 0)) for q in questions]
        replies = []
        for cid, node in self._nodes.items():
            if cid == CANARY and world == SILENT:
                continue
            parameters = ndarrays_to_parameters(
                [mine if cid == CANARY else known for mine, known in messages]
            )
            examples = EXAMPLES if cid == CANARY else asked[cid]
            replies.append(
                (node, FitRes(Status(Code.OK, ""), parameters, examples, {"step": key[0] + 1}))
            )
        self._replies[key, world] = replies

    def questions(self, strategy: Any, step: Any, clips: Sequence[float]) -> Iterator[Question]:
        """Yield the sums of a step in the order in which they are sent.

        First come the algorithm's own sums, then those that measure norms.
        """
        sums = strategy.shapes(step)
        if step.releases:
            for (name, shape), clip in zip(sums.items(), clips, strict=True):
                direction = self.direction(math.prod(shape), step, name)
                yield Question(name, shape, float(clip), direction, step.epsilon > 0)
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
                )

    def direction(self, size: int, step: Any, name: str, measures: bool = False) -> Array:
        """Return u_t, (size,); for a selection, +1 for favoured candidates and -1 for all others.

        The number of favoured candidates is such that, with the canary's vote, all of them together
        are as likely as all other candidates together.
        """
        rng = generator(self.experiment.federation.seed, "canary", name, step.round)
        if step.epsilon > 0 and not measures:
            raised = step.epsilon / (1.0 if self.add_remove else 2.0)
            favoured = min(
                max(1, round(size / (1.0 + math.exp(min(raised, 700.0))))), max(1, size // 2)
            )
            votes = -np.ones(size)
            votes[rng.choice(size, favoured, replace=False)] = 1.0
            return votes
        u = np.zeros(size)
        u[:SPAN] = rng.standard_normal(min(size, SPAN))
        return u / np.linalg.norm(u)

    def repetition(self, number: int) -> dict[str, Array]:
        """Return the observations of one repetition by world, (releases, 2)."""
        cfg, experiment = self.experiment.cfg, self.experiment
        seed = int(generator(cfg.seed, "audit", number).integers(2**62))
        source = SharedDraws(noise_source(cfg.privacy.noise, seed, experiment.simulated))
        worlds = (
            self.worlds if self.add_remove or number % self.silent_every else (*self.worlds, SILENT)
        )
        seen = {}
        for world in worlds:
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


def again(made: Any, node: dict[str, Any]) -> Callable[..., Any]:
    """Return a constructor that makes an object like `made`, without checking its settings again.

    Args:
        made: object that was made from the configuration, with checks.
        node: its settings.
    """
    kind: Callable[..., Any] = type(made)
    return partial(kind, **instantiate(without_about(node), _partial_=True).keywords)


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
