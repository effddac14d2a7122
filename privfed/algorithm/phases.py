"""Phases: the one mechanism in which every algorithm is written.

A run is a list of phases. A phase says what users are asked for, how one user's part is bounded,
who takes part, its share of the budget, and what the server does with what is released:

    Phase("gradient", Sum(shape=(k, d), bound=clip), self.update, rounds=30, share=0.45)

`plan` turns phases into steps, one per communication round, and gives each step its cost before
any data are touched. An initialiser is the first phase; the scales of a table, its global model
and its representation are phases; selections are phases.

The budget is mu^2, which adds up over Gaussian releases. Each phase gets its share of it, divided
equally between its rounds. Rounds that ask disjoint groups of users do not share: each may cost
what the whole phase may. The several sums of one step share its cost. Selections share epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.privacy.accounting import sampled_mu
from privfed.privacy.adaptive_clipping import AUTO
from privfed.privacy.bounds import Bound, NormBound
from privfed.privacy.ledger import Budget
from privfed.privacy.neighbouring import ZERO_OUT
from privfed.privacy.settings import CLIP_NORM, Clip, PrivacySettings

Shape = tuple[int, ...]
Update = Callable[..., list[Array]]
"""(t, *released) -> the new shared parameters, after round t = 1, 2, ..."""


@dataclass(frozen=True)
class Sum:
    """What each user sends in a step, added up over users.

    Attributes:
        shape: shape of one user's part and of the sum; a function where it follows from earlier
            releases.
        bound: clip norm of one user's part, or `auto`; a `Bound` states its sensitivity itself,
            and a function gives the bound of round t.
        key: setting that holds the clip norm, for messages and for `privacy.clip`.
        share: part of the step's cost, where a step has several sums; None means equal parts.
        bounded: the bound that a clip norm stands for.
    """

    shape: Shape | Callable[[], Shape]
    bound: Clip | Bound | Callable[[int], Bound]
    key: str = "algo.clip"
    share: float | None = None
    bounded: Callable[[float], Bound] = NormBound

    @property
    def configurable(self) -> bool:
        """Whether the bound is a clip norm, which settings may change."""
        return isinstance(self.bound, int | float | str)


@dataclass(frozen=True)
class Everybody:
    """Every user takes part in every round."""


@dataclass(frozen=True)
class Groups:
    """Round t asks group t - 1 of `count` disjoint groups: a user takes part in one round only."""

    count: int


@dataclass(frozen=True)
class Poisson:
    """Every user takes part with this probability, by its own secret coin."""

    probability: float


@dataclass(frozen=True)
class GaussianMean:
    """Release the sum with Gaussian noise; the update gets the mean over the users asked."""


@dataclass(frozen=True)
class GaussianStatistic:
    """Release a statistic of the users' mean with Gaussian noise.

    Attributes:
        of: (t, mean before noise) -> statistic.
        bound: (t) -> bound on how one user moves n times the statistic.
    """

    of: Callable[[int, Array], Array]
    bound: Callable[[int], Bound]


@dataclass(frozen=True)
class Selection:
    """Choose one of the announced candidates by the exponential mechanism: purely epsilon-DP.

    Users send scores; the update gets the index of the chosen candidate.
    """


@dataclass(frozen=True)
class Measurement:
    """How clip norms that are `auto` are found: before the first round, and again in later rounds.

    Attributes:
        question: kind of histogram that is asked for before the first round.
        share: share of the budget; None takes `privacy.clip_share` for all phases together.
        again: whether rounds go on measuring while they run.
    """

    question: str = "histogram"
    share: float | None = None
    again: bool = True


EACH, LAST, NEVER = "each", "last", "never"


@dataclass(frozen=True)
class Phase:
    """Consecutive rounds that ask users for the same thing.

    Attributes:
        task: name of the client's task.
        sums: what users send: one sum, called like the task, or several by name, in the order in
            which clients send them.
        update: server's step, (t, *released) -> new shared parameters; post-processing.
        rounds: number of rounds.
        share: share of the budget, relative to the shares of the other phases.
        participants: who takes part.
        mechanism: how sums are released.
        announce: what users are told besides the settings; None means the shared parameters.
        measurement: how clip norms that are `auto` are found.
        model: when the shared parameters are a model that may be judged and published: after each
            round, after the last one, or never.
        closing: whether the phase only judges what the rounds before it have learnt.
    """

    task: str
    sums: Sum | Mapping[str, Sum]
    update: Update
    rounds: int = 1
    share: float = 1.0
    participants: Everybody | Groups | Poisson = field(default_factory=Everybody)
    mechanism: GaussianMean | GaussianStatistic | Selection = field(default_factory=GaussianMean)
    announce: Callable[[], list[Array]] | None = None
    measurement: Measurement = field(default_factory=Measurement)
    model: str = EACH
    closing: bool = False

    @property
    def named(self) -> dict[str, Sum]:
        """Sums by name."""
        return {self.task: self.sums} if isinstance(self.sums, Sum) else dict(self.sums)

    @property
    def selects(self) -> bool:
        """Whether the phase is a selection."""
        return isinstance(self.mechanism, Selection)

    @property
    def sampling(self) -> float:
        """Probability with which each user takes part."""
        who = self.participants
        return who.probability if isinstance(who, Poisson) else 1.0

    @property
    def groups(self) -> int:
        """Number of disjoint groups; 0 means that every round asks everybody."""
        return self.participants.count if isinstance(self.participants, Groups) else 0

    def part(self, name: str) -> float:
        """Return the part of a step's mu^2 that one of its sums gets."""
        sums = self.named
        share = sums[name].share if name in sums else None
        return 1.0 / len(sums) if share is None else share


@dataclass(frozen=True)
class Step:
    """One communication round of the plan.

    Attributes:
        phase: phase that the round belongs to.
        round: t = 1, 2, ...; 0 only measures clip norms.
        mu: cost of releasing the sums; 0 releases none. With a fixed noise multiplier it is the
            cost of each sum, otherwise of all sums together.
        measure: the same for the next clip norms; 0 keeps them.
        epsilon: cost of a selection.
        group: disjoint group of users that is asked; None means everybody.
    """

    phase: Phase
    round: int
    mu: float = 0.0
    measure: float = 0.0
    epsilon: float = 0.0
    group: int | None = None

    @property
    def task(self) -> str:
        """Name of the client's task."""
        return self.phase.task

    @property
    def releases(self) -> bool:
        """Whether more leaves than clip norms."""
        return self.mu > 0 or self.epsilon > 0

    @property
    def question(self) -> str:
        """How clip norms are measured: by a histogram first, later relative to the last norm."""
        if not self.measure:
            return ""
        return "below" if self.mu else self.phase.measurement.question


def configured_clips(phases: Sequence[Phase], privacy: PrivacySettings) -> dict[str, Clip]:
    """Return the clip norms as configured, unless `privacy.clip` says otherwise.

    A number in `privacy.clip` replaces the one clip norm of the algorithm's own rounds; `auto`
    replaces all.

    Raises:
        ConfigError: if a clip norm is not allowed, or does not fit the phases.
    """
    asked = privacy.clip
    sums = {
        name: total for phase in phases for name, total in phase.named.items() if total.configurable
    }
    own = [total.key for total in sums.values() if not total.key.startswith("init.")]
    if asked is not None and phases and not sums:
        allowed = "there is nothing to clip: what users send has a fixed range"
        raise ConfigError.of("privacy.clip", asked, allowed)
    if asked not in (None, AUTO) and len(own) > 1:
        allowed = f"there are several clip norms; set {', '.join(own)}"
        raise ConfigError.of("privacy.clip", asked, allowed)
    clips: dict[str, Clip] = {}
    for name, total in sums.items():
        replaced = asked == AUTO or (asked is not None and total.key in own)
        bound = asked if replaced and asked is not None else total.bound
        CLIP_NORM.check(total.key, bound)  # type: ignore[arg-type]
        clips[name] = bound  # type: ignore[assignment]
    for phase in phases:
        mine = {total.key: clips.get(name) for name, total in phase.named.items()}
        if len({bound == AUTO for bound in mine.values()}) > 1:
            allowed = f"set all of {', '.join(mine)} to auto, or none"
            raise ConfigError.of(next(iter(mine)), AUTO, allowed)
        if AUTO in mine.values() and phase.sampling < 1:
            key = "privacy.clip" if asked == AUTO else next(iter(mine))
            allowed = f"is for algo.sampling=1, not for algo.sampling={phase.sampling}"
            raise ConfigError.of(key, AUTO, allowed)
    return clips


def plan(
    phases: Sequence[Phase], clips: Mapping[str, Clip], privacy: PrivacySettings, budget: Budget
) -> list[Step]:
    """Return the steps of a run with the cost of each: fixed before any data are touched.

    Args:
        phases: phases in order.
        clips: clip norm of every sum; `auto` adds a step before its phase that measures it.
        privacy: how the budget is split.
        budget: what everything together may cost.

    Raises:
        ConfigError: if budget, noise and phases do not fit together.
    """
    if not phases:
        return []
    if any(phase.selects for phase in phases):
        return _selections(phases, privacy, budget)
    check_gaussian(privacy, budget.mu)
    steps: list[Step] = []
    shares = _Shares(phases, clips, privacy)

    def mu(share: float, releases: int) -> float:
        if privacy.noise_multiplier is not None:
            return 1.0 / privacy.noise_multiplier
        return budget.mu * math.sqrt(share / releases)

    for phase in phases:
        if shares.measures(phase):
            steps.append(Step(phase, 0, measure=mu(shares.first(phase), 1)))
        for t in range(1, phase.rounds + 1):
            group = t - 1 if phase.groups else None
            each = mu(shares.of(phase), 1 if phase.groups else phase.rounds)
            if phase.sampling < 1:
                each = _sampled(phase, privacy, budget)
            again = shares.measures(phase) and phase.measurement.again and t < phase.rounds
            measure = mu(shares.again, 1 if phase.groups else shares.times) if again else 0.0
            steps.append(Step(phase, t, each, measure, group=group))
    return steps


def check_gaussian(privacy: PrivacySettings, mu: float) -> None:
    """Raise a ConfigError unless a budget of `mu` can be spent on Gaussian releases."""
    if privacy.noise_multiplier is not None and math.isinf(mu):
        allowed = "eps=inf asks for no noise; give one of them"
        raise ConfigError.of("privacy.noise_multiplier", privacy.noise_multiplier, allowed)
    if mu == 0:
        allowed = "Gaussian noise needs delta above 0; pure privacy is for algorithms that select"
        raise ConfigError.of("delta", 0, allowed)


class _Shares:
    """Fractions of mu^2.

    Phases whose measurement names no share of its own have `privacy.clip_share` together: one half
    for the first measurements, in equal parts, and the other half for those of later rounds. If
    no later round measures, the first ones have all of it.
    """

    def __init__(
        self, phases: Sequence[Phase], clips: Mapping[str, Clip], privacy: PrivacySettings
    ) -> None:
        self.clips = clips
        measured = [phase for phase in phases if self.measures(phase)]
        own = [phase for phase in measured if phase.measurement.share is not None]
        common = [phase for phase in measured if phase.measurement.share is None]
        self.times = sum(phase.rounds - 1 for phase in common if phase.measurement.again)
        clip_share = privacy.clip_share if common else 0.0
        first = clip_share / 2 if self.times else clip_share
        self.again = clip_share - first
        self.each_first = first / max(1, len(common))
        whole = sum(p.share for p in phases) + sum(float(p.measurement.share or 0) for p in own)
        self.scale = (1.0 - clip_share) / whole

    def measures(self, phase: Phase) -> bool:
        return any(self.clips.get(name) == AUTO for name in phase.named)

    def of(self, phase: Phase) -> float:
        return phase.share * self.scale

    def first(self, phase: Phase) -> float:
        share = phase.measurement.share
        return self.each_first if share is None else share * self.scale


def _sampled(phase: Phase, privacy: PrivacySettings, budget: Budget) -> float:
    """Return the cost of each round of a Poisson-sampled phase, which has the whole budget."""
    if privacy.noise_multiplier is not None:
        return 1.0 / privacy.noise_multiplier
    replaced = budget.neighbouring != ZERO_OUT
    return sampled_mu(budget.epsilon, budget.delta, phase.sampling, phase.rounds, replaced)


def _selections(phases: Sequence[Phase], privacy: PrivacySettings, budget: Budget) -> list[Step]:
    if not all(phase.selects for phase in phases):
        raise TypeError("selections and Gaussian releases cannot share a budget in one run")
    if privacy.noise_multiplier is not None:
        allowed = "selections add no Gaussian noise"
        raise ConfigError.of("privacy.noise_multiplier", privacy.noise_multiplier, allowed)
    whole = sum(phase.share for phase in phases)
    steps = []
    for phase in phases:
        # Scaled by 1 - 1e-12 so that rounding cannot push the last selection over budget.
        each = budget.epsilon * phase.share / whole / phase.rounds * (1 - 1e-12)
        steps += [Step(phase, t, epsilon=each) for t in range(1, phase.rounds + 1)]
    return steps


def current(value: Any, *given: Any) -> Any:
    """Return `value`, or `value(*given)` if it is a function."""
    return value(*given) if callable(value) else value
