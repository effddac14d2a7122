"""What algorithms that select among public candidates share: the exponential mechanism, once or several times.

    N      candidates: a gamma-cover where that is small enough, otherwise public random matrices
    eps_t  = eps / T, the cost of the selection of round t

    for t = 1..T:  every user scores all candidates;  choose one with probability proportional to exp(rate * total score)
                   candidates of round t + 1: the chosen one and random ones around it, at a radius that shrinks

T = 1 is the papers' algorithm. It needs a net that is exponential in the number of entries; random candidates keep the
privacy but hold nothing good beyond toy sizes. The later rounds are ours: a candidate depends on nothing but what is
published already (sizes, seed, the last choice), so each round is an eps/T-DP selection and all of them together are exactly
eps-DP (delta = 0) by sequential composition. A user's scores are whole numbers from 0 to SCORE, so sums are exact.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np

from privfed.algorithm.candidate_nets import MOST_POINTS
from privfed.algorithm.phases import Step, selection_plan
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.errors import ConfigError, check_number, check_positive, check_whole
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator
from privfed.privacy.clipping import SCORE, clamp

LARGEST_GB = 2.0
"""Candidates travel to every node in every round."""
NETS = ("auto", "explicit", "random")
AUTO_LARGEST = 4096
"""The largest explicit net that `auto` takes."""
AUTO_POINTS = 64 * AUTO_LARGEST
"""The largest grid that `auto` looks through for one."""


class Selection(PrivateStrategy):
    """One writes the nets and what is published of a choice. Settings: see the algorithm's config."""

    task = "select"
    explicit = False
    """Whether the first round's candidates are a cover."""
    uses_init = False
    bounded = staticmethod(clamp)

    def __init__(
        self,
        federation: Federation,
        rounds: int,
        net: str,
        candidates: int,
        gamma: float,
        radius: float,
        last_radius: float,
    ) -> None:
        if net not in NETS:
            raise ConfigError.of("algo.net", net, f"must be one of {', '.join(NETS)}")
        if federation.privacy.clip is not None:
            raise ConfigError.of(
                "privacy.clip",
                federation.privacy.clip,
                "scores have a fixed range; there is nothing to clip",
            )
        check_number("algo.gamma", gamma, lambda x: 1e-3 <= x <= 1, "must lie between 0.001 and 1")
        for key, value in (("algo.radius", radius), ("algo.last_radius", last_radius)):
            check_positive(key, value)
        check_whole("rounds", rounds)
        self.count = check_whole("algo.candidates", candidates, least=2)
        self.net, self.gamma = net, float(gamma)
        super().__init__(federation, rounds, clip=SCORE)
        size = 8e-9 * self.count * math.prod(self.entries())
        if size > LARGEST_GB:
            raise ConfigError.of(
                "algo.candidates",
                candidates,
                f"takes {size:.2g} GB a round; at most {LARGEST_GB:g} are allowed",
            )
        self.pool = self.first()
        start = min(radius, gamma) if self.explicit else radius
        self.radii = np.geomspace(start, min(start, last_radius), max(1, rounds - 1))

    # What an algorithm writes.

    @abstractmethod
    def entries(self) -> tuple[int, int]:
        """Shape of a candidate."""

    @abstractmethod
    def cover_points(self) -> float:
        """Points of the grid behind the gamma-cover."""

    @abstractmethod
    def cover(self) -> Array:
        """The gamma-cover (C, *entries)."""

    @abstractmethod
    def drawn(self, rng: np.random.Generator) -> Array:
        """Public random candidates for the first round (count, *entries)."""

    @abstractmethod
    def nearby(self, rng: np.random.Generator, choice: Array, radius: float) -> Array:
        """The last choice and random candidates around it (count, *entries)."""

    def publish(self, choice: Array) -> list[Array]:
        """The shared parameters that a choice stands for."""
        return [choice]

    # What all share.

    def initial(self) -> list[Array]:
        """Nothing is shared before the first choice."""
        return []

    def first(self) -> Array:
        """Candidates of the first round: the cover or random ones."""
        points = self.cover_points()
        if self.net == "explicit" and points > MOST_POINTS:
            size = points * 8e-9 * math.prod(self.entries())
            raise ConfigError.of(
                "algo.net",
                "explicit",
                f"a cover of radius algo.gamma={self.gamma:g} of {' x '.join(map(str, self.entries()))} matrices takes up to "
                f"{points:.2g} candidates ({size:.2g} GB); raise algo.gamma or take algo.net=random",
            )
        if self.net == "explicit" or (self.net == "auto" and points <= AUTO_POINTS):
            cover = self.cover()
            if self.net == "explicit" or len(cover) <= AUTO_LARGEST:
                self.explicit = True
                return cover
        return self.drawn(self._generator(1))

    def _generator(self, t: int) -> np.random.Generator:
        return generator(self.federation.seed, "candidates", t)

    def steps(self) -> list[Step]:
        """T selections that share the budget equally."""
        return selection_plan(
            self.task,
            self.rounds,
            self.federation.gate.ledger.budget.epsilon,
            self.federation.privacy,
        )

    def shape(self) -> tuple[int, ...]:
        """A score for each candidate."""
        return (len(self.pool),)

    def announced(self, step: Step) -> list[Array]:
        """The candidates of the round."""
        return [self.pool]

    def release(self, step: Step, sums: dict[str, Array], users: int) -> list[Array]:
        """The number of the chosen candidate."""
        gate = self.federation.gate
        chosen = gate.select(
            step.task, sums[step.task], bound=SCORE, epsilon=step.epsilon, round=step.round
        )
        return [np.asarray(chosen)]

    def step(self, t: int, *means: Any, **_: Any) -> None:
        """Publish the choice, and look around it in the next round."""
        choice = self.pool[int(means[0])]
        self.shared = self.publish(choice)
        if t < self.rounds:
            self.pool = self.nearby(self._generator(t + 1), choice, float(self.radii[t - 1]))

    def memory(self) -> dict[str, Array]:
        """The candidates of the next round."""
        return {"pool": self.pool}

    def recall(self, memory: dict[str, Array]) -> None:
        """The candidates of the next round."""
        self.pool = memory["pool"]

    @property
    def notes(self) -> list[str]:
        """What kind of net was searched: the papers' utility theorems hold for the explicit one."""
        if self.explicit:
            return [f"The first selection was over an explicit cover of radius {self.gamma:g}."]
        return [
            f"The first selection was over {self.count} public random candidates, not over a cover: privacy is the same, "
            "the paper's utility theorem holds relative to the best candidate only."
        ]
