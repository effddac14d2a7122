"""What a run will release, step by step, and what each release costs: fixed before any data is touched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from privfed.federation.federation import PrivacySettings
from privfed.foundation.errors import ConfigError


@dataclass(frozen=True)
class Step:
    """One Flower round. mu: cost of releasing the sums (0: not released); measure: cost of the next clip norms (0: kept).

    With a fixed noise multiplier mu and measure are what each sum costs, otherwise what all sums of the step cost together.
    epsilon: cost of a selection, where the step is one. group: who takes part, everybody unless given. asks: how a clip norm is
    measured from nothing.
    """

    task: str
    round: int
    mu: float = 0.0
    measure: float = 0.0
    epsilon: float = 0.0
    group: int | None = None
    asks: str = "histogram"

    @property
    def releases(self) -> bool:
        """Whether more leaves than a clip norm."""
        return self.mu > 0 or self.epsilon > 0

    @property
    def question(self) -> str:
        """How clip norms are measured: from nothing before a task starts, from the last ones while rounds go on."""
        return "" if not self.measure else "below" if self.mu else self.asks


@dataclass(frozen=True)
class Stage:
    """Consecutive steps of one task. auto: its clip norms are measured; grouped: each step asks another group of users."""

    task: str
    rounds: int
    auto: bool = False
    grouped: bool = False


def check_gaussian(settings: PrivacySettings, total: float) -> None:
    """Whether a budget of so much mu can be spent on Gaussian releases."""
    if settings.noise_multiplier is not None and math.isinf(total):
        raise ConfigError.of(
            "privacy.noise_multiplier",
            settings.noise_multiplier,
            "eps=inf asks for no noise; give one of them",
        )
    if total == 0:
        raise ConfigError.of(
            "delta",
            0,
            "Gaussian noise needs delta above 0; pure privacy is for algo=expmech and jlmargin",
        )


def gaussian_plan(stages: Sequence[Stage], settings: PrivacySettings, total: float) -> list[Step]:
    """Initialiser (if there are two stages), then the rounds; before a stage whose clip norms are `auto`, a measuring step.

    Every auto stage is measured before it starts; rounds measure again while they run, but for the last. The first
    measurements share one half of the clip norms' budget, the others the other half. Steps that ask disjoint groups of users
    do not share: each may cost what the whole stage may.
    """
    check_gaussian(settings, total)
    main, auto = stages[-1], [stage for stage in stages if stage.auto]
    again = main.rounds - 1 if main.auto else 0
    clip_share = settings.clip_share if auto else 0.0
    first_share = clip_share / 2 if again else clip_share
    init_share = (1 - clip_share) * settings.init_share if len(stages) > 1 else 0.0

    def mu(share: float, releases: int) -> float:
        if settings.noise_multiplier is not None:
            return 1.0 / settings.noise_multiplier
        return total * math.sqrt(share / releases)

    steps = []
    for stage in stages:
        share = 1 - clip_share - init_share if stage is main else init_share
        if stage.auto:
            steps.append(Step(stage.task, 0, measure=mu(first_share, len(auto))))
        for t in range(1, stage.rounds + 1):
            measured = stage is main and stage.auto and t < stage.rounds
            measure = (
                mu(clip_share - first_share, 1 if stage.grouped else again) if measured else 0.0
            )
            each = mu(share, 1 if stage.grouped else stage.rounds)
            steps.append(Step(stage.task, t, each, measure, group=t - 1 if stage.grouped else None))
    return steps


def selection_plan(task: str, rounds: int, epsilon: float, settings: PrivacySettings) -> list[Step]:
    """So many selections, each with an equal part of a pure budget."""
    if settings.noise_multiplier is not None:
        raise ConfigError.of(
            "privacy.noise_multiplier",
            settings.noise_multiplier,
            "selections add no Gaussian noise",
        )
    each = (
        epsilon / rounds * (1 - 1e-12)
    )  # a hair below, so that rounding never refuses the last one
    return [Step(task, t, epsilon=each) for t in range(1, rounds + 1)]
