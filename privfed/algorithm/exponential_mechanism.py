"""The server side of algorithms that select among public candidates: the exponential mechanism.

    N       candidates: a gamma-cover where that is small enough, otherwise random matrices
    eps_t   = eps / T, the cost of the selection of round t

    for t = 1..T:
        every user scores all candidates
        choose a candidate with probability proportional to exp(rate * total score)
        candidates of round t + 1: the chosen one and random ones around it, closer every round

T = 1 is the papers' algorithm. It needs a net that is exponential in the number of entries. Random
candidates keep the privacy but hold nothing good beyond toy sizes. The later rounds are ours: a
candidate depends on nothing but what is published already (sizes, seed, the last choice). So each
round is an eps/T-DP selection, and all rounds together are exactly eps-DP (delta = 0) by sequential
composition. A user's scores are whole numbers from 0 to SCORE, so that sums are exact.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated

import numpy as np

from privfed.algorithm.candidate_covers import MOST_POINTS
from privfed.algorithm.phases import Phase, Selection, Sum
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.constraints import POSITIVE, Choice, Number, Rounds, Whole
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator
from privfed.privacy.bounds import NormBound
from privfed.privacy.clipping import SCORE

LARGEST_GB = 2.0
"""Largest size of the candidates, which travel to every node in every round."""
AUTO_LARGEST = 4096
"""Largest number of candidates of an explicit net that `auto` takes."""
AUTO_POINTS = 64 * AUTO_LARGEST
"""Largest number of points of a grid that `auto` searches for such a net."""
COVER = Number(lambda x: 1e-12 <= x <= 1, "must lie between 1e-12 and 1")


class SelectionStrategy(PrivateStrategy):
    """An algorithm writes its candidates, and what is published of a choice."""

    explicit = False
    """Whether the candidates of the first round are a cover."""

    def __init__(
        self,
        federation: Federation,
        rounds: Rounds,
        net: Annotated[str, Choice("auto", "explicit", "random")],
        candidates: Annotated[int, Whole(2)],
        gamma: Annotated[float, COVER],
        radius: Annotated[float, POSITIVE],
        last_radius: Annotated[float, POSITIVE],
    ) -> None:
        super().__init__(federation)
        self.rounds, self.count = rounds, candidates
        self.net, self.gamma = net, float(gamma)
        self.radius, self.last_radius = radius, last_radius

    # What an algorithm writes.

    @abstractmethod
    def entries(self) -> tuple[int, int]:
        """Return the shape of a candidate."""

    @abstractmethod
    def cover_points(self) -> float:
        """Return the number of points of the grid behind the gamma-cover."""

    @abstractmethod
    def cover(self) -> Array:
        """Return the gamma-cover (C, *entries)."""

    @abstractmethod
    def drawn(self, rng: np.random.Generator) -> Array:
        """Return public random candidates for the first round (count, *entries)."""

    @abstractmethod
    def nearby(self, rng: np.random.Generator, choice: Array, radius: float) -> Array:
        """Return the last choice and random candidates around it (count, *entries)."""

    def published(self, choice: Array) -> list[Array]:
        """Return the shared parameters that a choice stands for."""
        return [choice]

    # What all share.

    def start(self) -> list[Array]:
        """Share nothing before the first choice; make the candidates of the first round."""
        size = 8e-9 * self.count * math.prod(self.entries())
        if size > LARGEST_GB:
            allowed = f"takes {size:.2g} GB a round; at most {LARGEST_GB:g} are allowed"
            raise ConfigError.of("algo.candidates", self.count, allowed)
        self.pool = self.first_candidates()
        start = min(self.radius, self.gamma) if self.explicit else self.radius
        last = min(start, self.last_radius)
        self.radii = np.geomspace(start, last, max(1, self.rounds - 1))
        return []

    def phases(self) -> list[Phase]:
        """Return T selections that share the budget equally."""
        scores = Sum(self.pool_size, NormBound(SCORE))
        return [
            Phase(
                "select",
                scores,
                self.choose,
                self.rounds,
                mechanism=Selection(),
                announce=self.candidates,
            )
        ]

    def pool_size(self) -> tuple[int, ...]:
        """Return the shape of a user's scores: one per candidate."""
        return (len(self.pool),)

    def candidates(self) -> list[Array]:
        """Return the candidates of the round."""
        return [self.pool]

    def choose(self, t: int, chosen: int) -> list[Array]:
        """Publish the choice, and look around it in the next round."""
        choice = self.pool[chosen]
        if t < self.rounds:
            self.pool = self.nearby(self._stream(t + 1), choice, float(self.radii[t - 1]))
        return self.published(choice)

    def first_candidates(self) -> Array:
        """Return the candidates of the first round: the cover, or random ones."""
        points = self.cover_points()
        if self.net == "explicit" and points > MOST_POINTS:
            size = points * 8e-9 * math.prod(self.entries())
            sizes = " x ".join(map(str, self.entries()))
            raise ConfigError.of(
                "algo.net",
                "explicit",
                f"a cover of radius algo.gamma={self.gamma:g} of {sizes} matrices takes up to "
                f"{points:.2g} candidates ({size:.2g} GB); raise algo.gamma or take "
                "algo.net=random",
            )
        if self.net == "explicit" or (self.net == "auto" and points <= AUTO_POINTS):
            cover = self.cover()
            if self.net == "explicit" or len(cover) <= AUTO_LARGEST:
                self.explicit = True
                return cover
        return self.drawn(self._stream(1))

    def _stream(self, t: int) -> np.random.Generator:
        return generator(self.federation.seed, "candidates", t)

    def memory(self) -> dict[str, Array]:
        """Return the candidates of the next round."""
        return {"pool": self.pool}

    def recall(self, memory: dict[str, Array]) -> None:
        """Restore the candidates of the next round."""
        self.pool = memory["pool"]

    def notes(self) -> list[str]:
        """Say what kind of net was searched: the papers' theorems hold for an explicit one."""
        if self.explicit:
            return [f"The first selection was over an explicit cover of radius {self.gamma:g}."]
        return [
            f"The first selection was over {self.count} public random candidates, not over a "
            "cover: privacy is the same, the paper's utility theorem holds relative to the best "
            "candidate only."
        ]
