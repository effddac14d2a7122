"""Base of clients with a linear representation.

It says which examples train, which examples fit the final head, and how a user predicts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import CohortClient, task
from privfed.data.cohort import Cohort
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.models.personal_predictors import evidence, personal_predictors


class LinearClient(CohortClient):
    """Users predict <x, U v_i> with a head fitted by least squares on their own examples.

    Args:
        cohort: users.
        init: user side of the initialiser.
        train: examples that train the embedding.
        heads: examples that fit the final head.
        safety: whether users judge the embedding, and mix what it gives with their own fit.
    """

    def __init__(
        self, cohort: Cohort, init: Any, train: str, heads: str, safety: bool = False
    ) -> None:
        super().__init__(cohort, init)
        self.safety = safety
        self.m = cohort.m
        self.train, self.final = split_examples(self.m, train, heads)
        self.m0 = len(range(self.m)[self.train])

    @staticmethod
    def _features(block: Cohort, shared: NDArrays) -> Array:
        """Return the inputs of the heads, X_i U: (B, m, k)."""
        U = shared[0]
        return np.asarray(block.X.reshape(-1, len(U)) @ U).reshape(*block.y.shape, -1)

    def weights(self, block: Cohort, shared: NDArrays) -> Array:
        """Return predictors w_i (B, d), fitted on the user's own examples."""
        X, y = block.X[:, self.final], block.y[:, self.final]
        return personal_predictors(shared, X, y, self.safety)

    @task
    def evidence(self, block: Cohort, shared: NDArrays, told: Announcement) -> Array:
        """Return what every user's examples say about U, of norm at most 1."""
        block = block.exact()
        return evidence(shared[0], block.X, block.y)


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
