"""Where random numbers for privacy come from: seeded for simulations that others can repeat, or the system's own entropy."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np

from privfed.errors import ConfigError
from privfed.keyed import generator
from privfed.linalg import Array


class NoiseSource(Protocol):
    """A source of standard normal and standard Gumbel numbers."""

    name: str
    repeatable: bool
    """Whether the same release gets the same numbers when it is made again."""

    def normal(self, size: int, name: str, round: int) -> Array:
        """Fresh standard normal numbers (size,) for the release (name, round)."""
        ...

    def gumbel(self, size: int, name: str, round: int) -> Array:
        """Fresh numbers (size,) with distribution function exp(-exp(-x))."""
        ...


class SeededNoise:
    """Repeatable noise: whoever knows the seed can subtract it, so it protects nobody outside a simulation."""

    name, repeatable = "seeded", True

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def normal(self, size: int, name: str, round: int) -> Array:
        """The same numbers for the same (seed, name, round)."""
        return generator(self.seed, "noise", name, round).standard_normal(size)

    def gumbel(self, size: int, name: str, round: int) -> Array:
        """The same numbers for the same (seed, name, round)."""
        return generator(self.seed, "noise", name, round).gumbel(size=size)


class SecureNoise:
    """Noise from the operating system's cryptographic generator: Box-Muller transform, inverse distribution function."""

    name, repeatable = "secure", False

    def normal(self, size: int, name: str, round: int) -> Array:
        """Fresh numbers at every call; name and round are not used."""
        pairs = (size + 1) // 2
        uniform = self._uniform(2 * pairs).reshape(2, pairs)
        radius, angle = np.sqrt(-2.0 * np.log(uniform[0])), 2.0 * np.pi * uniform[1]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]

    def gumbel(self, size: int, name: str, round: int) -> Array:
        """Fresh numbers at every call; name and round are not used."""
        return -np.log(-np.log(self._uniform(size) * (1 - 2.0**-53)))

    @staticmethod
    def _uniform(size: int) -> Array:
        """Uniform on multiples of 2^-53 in (0, 1]."""
        words = np.frombuffer(os.urandom(8 * size), dtype=np.uint64)
        return ((words >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53


def noise_source(kind: str, seed: int, simulated: bool = True) -> NoiseSource:
    """The source named by ``privacy.noise``; auto is seeded in simulations and secure wherever real users take part."""
    if kind == SeededNoise.name and not simulated:
        raise ConfigError.of("privacy.noise", kind, "protects nobody: whoever knows the seed can take it away; use secure")
    if kind == SecureNoise.name or (kind == "auto" and not simulated):
        return SecureNoise()
    if kind in (SeededNoise.name, "auto"):
        return SeededNoise(seed)
    raise ConfigError.of("privacy.noise", kind, "must be auto, seeded (simulations) or secure (the system's generator)")
