"""PMPR's problem: y = <x, U* v_i*> + R noise, features of identity covariance, heads v_i* of chosen condition number.

Users are drawn by public blocks, each from streams keyed by (seed, purpose, block), row by row: user i has the same
data whatever n is, however users are spread over nodes, and a node makes only the blocks its own users lie in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from privfed.data.cohort import BLOCK, Cohort, Ids
from privfed.errors import ConfigError, check_number, check_whole, nearest
from privfed.keyed import generator
from privfed.linalg import Array, dist, retraction
from privfed.models.errors import LOGARITHMIC, Scale

FEATURES = ("gaussian", "rademacher", "uniform", "mixed")


@dataclass(frozen=True)
class LinearTruth:
    """The true predictors W_star (B, d), which lie in the column space of U_star (d, k)."""

    scale: ClassVar[Scale] = LOGARITHMIC

    W_star: Array
    U_star: Array

    def errors(self, W: Array) -> Array:
        """|w_i - w_i*|^2: the excess population MSE in closed form, as features have identity covariance."""
        return np.sum((W - self.W_star) ** 2, axis=1)

    def __getitem__(self, users: slice | Ids) -> LinearTruth:
        """Some of the users."""
        return LinearTruth(self.W_star[users], self.U_star)


class Synthetic:
    """n users with m examples of d features each, whose best predictors share a k-dimensional representation.

    features: gaussian, rademacher (+-1), uniform (on [-sqrt 3, sqrt 3]) or mixed (user i has the kind i mod 3): all
    sub-Gaussian with identity covariance. condition: ratio of the largest to the smallest singular value of the
    matrix of heads V*, in expectation. R: standard deviation of the label noise.
    """

    simulated = True
    personal = True
    """Every user has a predictor of its own, which can be judged."""
    error, scale = "mse", LinearTruth.scale
    """Population MSE: a user's error is its excess over the noise that no predictor can explain."""

    def __init__(self, n: int, m: int, d: int, k: int, R: float, features: str, condition: float, seed: int) -> None:
        for key, value in (("data.n", n), ("data.m", m), ("data.d", d), ("data.k", k)):
            check_whole(key, value)
        if k > d:
            raise ConfigError.of("data.k", k, f"the representation cannot have more dimensions than data.d={d}")
        check_number("data.R", R, lambda x: 0 <= x <= 1e6, "label noise must be a number between 0 and 1e6")
        check_number("data.condition", condition, lambda x: 1 <= x <= 1e6, "must be a number between 1 and 1e6")
        if features not in FEATURES:
            raise ConfigError.of("data.features", features, nearest(str(features), FEATURES))
        self.n, self.m, self.d, self.k, self.R = n, m, d, k, float(R)
        self.features, self.seed = features, seed
        self.floor = self.R**2
        self.scales = condition ** -np.linspace(0.0, 1.0, k) if k > 1 else np.ones(1)
        self.U_star = retraction(generator(seed, "representation").standard_normal((d, k)))
        self._block = lru_cache(maxsize=4)(self._make_block)

    def cohort(self, first: int, last: int) -> Cohort:
        """Users first..last-1."""
        return self._users("user", first, last)

    def validation(self, users: int = 1024) -> Cohort:
        """Fresh users of the same population who never take part: judging a model on them costs no privacy."""
        return self._users("validation", 0, users)

    def compare(self, model: dict[str, Array]) -> dict[str, float]:
        """Principal-angle distance of a published representation to the true one."""
        return {"dist": dist(model["U"], self.U_star)} if "U" in model else {}

    def _users(self, purpose: str, first: int, last: int) -> Cohort:
        X = np.empty((last - first, self.m, self.d))
        y, W = np.empty((last - first, self.m)), np.empty((last - first, self.d))
        for block in range(first // BLOCK, -(-last // BLOCK)):
            start = block * BLOCK
            a, b = max(first, start), min(last, start + BLOCK)
            rows = min(BLOCK, self.n - start) if purpose == "user" else BLOCK
            made = self._block(purpose, block, rows)
            for mine, whole in zip((X, y, W), made, strict=True):
                mine[a - first : b - first] = whole[a - start : b - start]
        return Cohort(np.arange(first, last), X, y, LinearTruth(W, self.U_star))

    def _make_block(self, purpose: str, block: int, rows: int) -> tuple[Array, Array, Array]:
        """X (rows, m, d), y (rows, m) and W* (rows, d) of one public block."""

        def stream(name: str) -> np.random.Generator:
            return generator(self.seed, purpose, name, block)

        V = stream("heads").standard_normal((rows, self.k)) * self.scales
        W = V @ self.U_star.T
        X = self._features(stream, rows, block * BLOCK)
        y = np.matmul(X, W[..., None])[..., 0] + self.R * stream("labels").standard_normal((rows, self.m))
        return X, y, W

    def _features(self, stream, rows: int, first: int) -> Array:  # type: ignore[no-untyped-def]
        shape = (rows, self.m, self.d)
        if self.features == "uniform":
            return stream("uniform").uniform(-math.sqrt(3), math.sqrt(3), shape)
        X = stream("features").standard_normal(shape)
        if self.features == "rademacher":
            return np.where(X < 0, -1.0, 1.0)
        if self.features == "mixed":
            kind = (first + np.arange(rows)) % 3
            X[kind == 1] = np.where(X[kind == 1] < 0, -1.0, 1.0)
            X[kind == 2] = stream("uniform").uniform(-math.sqrt(3), math.sqrt(3), shape)[kind == 2]
        return X
