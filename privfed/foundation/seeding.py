"""Random generators by name: the same (seed, purpose, ...) gives the same stream everywhere."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return a generator for (seed, purpose), independent of those for any other purpose.

    Args:
        seed: seed of the run.
        purpose: names and numbers of what the randomness is for.
    """
    digest = hashlib.sha256(repr((int(seed), *purpose)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))
