"""Base of clients with a linear representation.

It says which examples train, which examples fit the final head, and how a user predicts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.client import CohortClient
from privfed.data.cohort import Cohort
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.models.linear import fit_heads


class LinearClient(CohortClient):
    """Users predict <x, U v_i> with a head fitted by least squares on their own examples."""

    def __init__(self, cohort: Cohort, init: Any, train: str, heads: str) -> None:
        super().__init__(cohort, init)
        self.m = cohort.m
        self.train, self.final = split_examples(self.m, train, heads)
        self.m0 = len(range(self.m)[self.train])

    @staticmethod
    def _features(block: Cohort, shared: NDArrays) -> Array:
        """Return the inputs of the heads, X_i U: (B, m, k)."""
        U = shared[0]
        return np.asarray(block.X.reshape(-1, len(U)) @ U).reshape(*block.y.shape, -1)

    def weights(self, block: Cohort, shared: NDArrays) -> Array:
        """Return w_i = U v_i (B, d), with the final head fitted on the user's own examples."""
        U = shared[0]
        return fit_heads(U, block.X[:, self.final], block.y[:, self.final]) @ U.T


def split_examples(m: int, train: str, heads: str) -> tuple[slice, slice]:
    """Return which examples train the embedding and which fit the final head.

    Args:
        m: number of examples per user.
        train: `all`, or `s0` for S0, the first half.
        heads: `all`, or `s1` for S1, the second half.

    Raises:
        ConfigError: if a choice is unknown or `m` is too small.
    """
    if train not in ("all", "s0"):
        raise ConfigError.of(
            "algo.train", train, "must be all or s0 (the first half of a user's data)"
        )
    if heads not in ("all", "s1"):
        raise ConfigError.of(
            "algo.heads", heads, "must be all or s1 (the second half of a user's data)"
        )
    least = 4 if train == "s0" else 2
    if m < least:
        raise ConfigError.of(
            "data.m",
            m,
            f"too few examples a user to split: algo.train={train} needs at least {least}",
        )
    half = m // 2
    return slice(half) if train == "s0" else slice(m), slice(half, m) if heads == "s1" else slice(m)
