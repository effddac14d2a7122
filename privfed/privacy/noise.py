"""Sources of random numbers for privacy: seeded (repeatable) or exact and unpredictable."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator
from privfed.privacy import exact_sampling
from privfed.privacy.accounting import ROUNDED_GAUSSIAN, SUMMED_GAUSSIANS
from privfed.privacy.exact_sampling import Whole
from privfed.privacy.opendp_noise import OpenDPNoise


class NoiseSource(Protocol):
    """Source of Gaussian noise on whole numbers and of random choices."""

    name: str
    repeatable: bool
    """Whether a release that is made again gets the same numbers."""
    distribution: str
    """Of Gaussian noise; see :class:`privfed.privacy.accounting.GaussianRelease`."""
    margin: float
    """Fraction of a release's cost that is left for what `distribution` is charged besides."""
    parts: int
    """Number of independent draws that the noise is the sum of."""

    def normal(self, size: int, s: int, name: str, round: int) -> Whole:
        """Draw whole numbers (size,), distributed as `distribution` says.

        Args:
            size: number of draws.
            s: standard deviation, a positive whole number.
            name: name of the release.
            round: round of the release.
        """
        ...

    def choice(self, exponents: Array, name: str, round: int) -> int:
        """Draw an index by the exponential mechanism, or by one that costs the same.

        Args:
            exponents: numbers of at most 0, (C,).
            name: name of the release.
            round: round of the release.
        """
        ...


class SeededNoise:
    """Repeatable noise, for simulations only: anyone who knows the seed can subtract it."""

    name, repeatable = "seeded", True
    distribution, margin, parts = ROUNDED_GAUSSIAN, 0.0, 1

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def normal(self, size: int, s: int, name: str, round: int) -> Whole:
        """See :class:`NoiseSource`; the same (seed, name, round) gives the same numbers."""
        return np.rint(s * generator(self.seed, "noise", name, round).standard_normal(size)).astype(
            np.int64
        )

    def choice(self, exponents: Array, name: str, round: int) -> int:
        """See :class:`NoiseSource`; the same (seed, name, round) gives the same choice.

        It is the largest exponent plus Gumbel noise.
        """
        return int(
            np.argmax(
                exponents + generator(self.seed, "noise", name, round).gumbel(size=len(exponents))
            )
        )


class DiscreteNoise:
    """Exact draws from the operating system's cryptographic generator, fresh at every call."""

    name, repeatable = "discrete", False
    distribution, margin, parts = ROUNDED_GAUSSIAN, 0.0, 1

    def normal(self, size: int, s: int, name: str, round: int) -> Whole:
        """See :func:`privfed.privacy.exact_sampling.normals`."""
        return exact_sampling.normals(size, s, exact_sampling.system_words)

    def choice(self, exponents: Array, name: str, round: int) -> int:
        """See :func:`privfed.privacy.exact_sampling.first_of_race`."""
        return exact_sampling.first_of_race(exponents, exact_sampling.system_words)


class NodesNoise:
    """Noise that nodes add, so that no server need be trusted to do it.

    Args:
        base: source that nodes would use if a server drew the noise.
        parts: number of draws that all nodes add up together.
        wider: factor on the standard deviation that is added for colluding nodes.
        simulated: whether draws of this process stand for those of the nodes.
    """

    distribution, margin = SUMMED_GAUSSIANS, 1e-5

    def __init__(self, base: NoiseSource, parts: int, wider: float, simulated: bool) -> None:
        self.base, self.parts, self.wider, self.simulated = base, parts, wider, simulated
        self.name, self.repeatable = f"nodes ({base.name})", base.repeatable

    def normal(self, size: int, s: int, name: str, round: int) -> Whole:
        """See :class:`NoiseSource`; only where draws of this process stand for the nodes'.

        Raises:
            PrivfedError: the nodes themselves add the noise.
        """
        if not self.simulated:
            raise PrivfedError(f"{name}: the noise is the nodes', and there is no sum to add it to")
        # Above the largest s of exact draws, whole multiples of a coarser grid are drawn.
        coarser = max(0, math.ceil(math.log2(s * self.wider / exact_sampling.MOST)))
        s = math.ceil(s * self.wider / 2**coarser)
        return self.base.normal(size, s, name, round) * 2**coarser

    def choice(self, exponents: Array, name: str, round: int) -> int:
        """See :class:`NoiseSource`.

        Raises:
            PrivfedError: always; a selection needs the sums.
        """
        raise PrivfedError(f"{name}: a selection needs a server that sees the sums")


def noise_source(kind: str, seed: int, simulated: bool = True) -> NoiseSource:
    """Return the source named by `privacy.noise`.

    Args:
        kind: auto, seeded, discrete or opendp; auto is seeded in simulations and discrete for real
            users.
        seed: seed of the run.
        simulated: whether all users are simulated.

    Raises:
        ConfigError: the name is unknown, noise for real users would be seeded, or a library is
            missing.
    """
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
    if kind == OpenDPNoise.name:
        return OpenDPNoise()
    raise ConfigError.of(
        "privacy.noise",
        kind,
        "must be auto, seeded (for simulations), discrete (exact, cryptographic) or opendp (the "
        "library's)",
    )
