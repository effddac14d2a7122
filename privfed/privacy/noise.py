"""Where random numbers for privacy come from: seeded for simulations that others can repeat, or exact and unpredictable."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator
from privfed.privacy import exact_sampling
from privfed.privacy.exact_sampling import Whole


class NoiseSource(Protocol):
    """A source of Gaussian noise on whole numbers and of random choices."""

    name: str
    repeatable: bool
    """Whether the same release gets the same numbers when it is made again."""

    def normal(self, size: int, s: int, name: str, round: int) -> Whole:
        """Fresh whole numbers (size,) distributed as round(s Z), Z standard normal, for the release (name, round)."""
        ...

    def choice(self, exponents: Array, name: str, round: int) -> int:
        """An index with probability proportional to exp(exponents), exponents (C,) being at most 0."""
        ...


class SeededNoise:
    """Repeatable noise: whoever knows the seed can subtract it, so it protects nobody outside a simulation."""

    name, repeatable = "seeded", True

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def normal(self, size: int, s: int, name: str, round: int) -> Whole:
        """The same numbers for the same (seed, name, round)."""
        return np.rint(s * generator(self.seed, "noise", name, round).standard_normal(size)).astype(
            np.int64
        )

    def choice(self, exponents: Array, name: str, round: int) -> int:
        """The same choice for the same (seed, name, round): the largest exponent plus Gumbel number."""
        return int(
            np.argmax(
                exponents + generator(self.seed, "noise", name, round).gumbel(size=len(exponents))
            )
        )


class DiscreteNoise:
    """Exact draws from the operating system's cryptographic generator, fresh at every call, in every process."""

    name, repeatable = "discrete", False

    def normal(self, size: int, s: int, name: str, round: int) -> Whole:
        """See :func:`privfed.privacy.exact_sampling.normals`."""
        return exact_sampling.normals(size, s, exact_sampling.system_words)

    def choice(self, exponents: Array, name: str, round: int) -> int:
        """See :func:`privfed.privacy.exact_sampling.first_of_race`."""
        return exact_sampling.first_of_race(exponents, exact_sampling.system_words)


def noise_source(kind: str, seed: int, simulated: bool = True) -> NoiseSource:
    """The source named by ``privacy.noise``; auto is seeded in simulations and discrete wherever real users take part."""
    if kind == SeededNoise.name and not simulated:
        raise ConfigError.of(
            "privacy.noise",
            kind,
            "protects nobody: whoever knows the seed can take it away; use discrete",
        )
    if kind in (DiscreteNoise.name, "secure") or (kind == "auto" and not simulated):
        return DiscreteNoise()
    if kind in (SeededNoise.name, "auto"):
        return SeededNoise(seed)
    raise ConfigError.of(
        "privacy.noise",
        kind,
        "must be auto, seeded (for simulations) or discrete (exact, cryptographic)",
    )
