"""Randomness by name: the same (seed, purpose, ...) gives the same stream on every machine and in every process."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """A generator of its own for each (seed, purpose), independent of the order in which they are asked for."""
    digest = hashlib.sha256(repr((int(seed), *purpose)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))
