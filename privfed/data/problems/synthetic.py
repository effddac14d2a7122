"""PMPR's synthetic problem: y = <x, U* v_i*> + R noise, features with identity covariance.

    U*    true shared representation (d, k)     v_i*   true head of user i, of chosen condition
    R     standard deviation of the label noise

Every number is a function of the seed, its purpose and its place. User i therefore has the same
data for any n, for any distribution of users over nodes, and whether data are kept in memory or
generated again whenever they are needed (data.stream=true).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from privfed.data.cohort import Cohort, Ids, users_within
from privfed.data.evaluation_bins import LOGARITHMIC, Scale
from privfed.data.problems.streaming import Streamed
from privfed.data.source import DataSource
from privfed.foundation.constraints import FLAG, WHOLE, Choice, Number
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array, dist, retraction
from privfed.foundation.seeding import generator
from privfed.kernels.least_squares import predictions
from privfed.kernels.random_streams import Floats, Stream

FEATURES = ("gaussian", "rademacher", "uniform", "mixed")
LABEL_NOISE = Number(lambda x: 0 <= x <= 1e6, "label noise must be a number between 0 and 1e6")
CONDITION = Number(lambda x: 1 <= x <= 1e6, "must be a number between 1 and 1e6")


@dataclass(frozen=True)
class LinearTruth:
    """True heads V_star (B, k) on the true representation U_star (d, k)."""

    scale: ClassVar[Scale] = LOGARITHMIC

    V_star: Array
    U_star: Array

    @property
    def W_star(self) -> Array:
        """True predictors (B, d)."""
        return self.V_star @ self.U_star.T

    def errors(self, W: Array) -> Array:
        """Return the excess population MSE (B,) of the predictors W (B, d).

        Features have identity covariance, so that it is |w_i - w_i*|^2.
        """
        return np.sum((W - self.W_star) ** 2, axis=1)

    def __getitem__(self, users: slice | Ids) -> LinearTruth:
        """Return the same for some of the users."""
        return LinearTruth(self.V_star[users], self.U_star)


class Synthetic(DataSource):
    """Users whose best predictors share a k-dimensional representation.

    Args:
        n: number of users.
        m: examples per user.
        d: features per example.
        k: dimension of the shared representation.
        R: standard deviation of the label noise.
        features: distribution of the features: gaussian, rademacher (+-1), uniform (on
            [-sqrt 3, sqrt 3]) or mixed (user i has the distribution i mod 3). All are sub-Gaussian
            with identity covariance.
        condition: ratio of the largest to the smallest singular value of the matrix of true heads,
            in expectation.
        seed: seed of everything.
        stream: whether to generate users whenever they are needed instead of keeping them in
            memory.
        unit_heads: whether true heads are scaled to length 1.

    Raises:
        ConfigError: if k > d.
    """

    simulated = True
    personal = True
    error, scale = "mse", LinearTruth.scale
    """Users' errors are the excess of the population MSE over the label noise, the `floor`."""
    U_star: Array

    def __init__(
        self,
        n: Annotated[int, WHOLE],
        m: Annotated[int, WHOLE],
        d: Annotated[int, WHOLE],
        k: Annotated[int, WHOLE],
        R: Annotated[float, LABEL_NOISE],
        features: Annotated[str, Choice(*FEATURES)],
        condition: Annotated[float, CONDITION],
        seed: int,
        stream: Annotated[bool, FLAG] = False,
        unit_heads: Annotated[bool, FLAG] = False,
    ) -> None:
        if k > d:
            raise ConfigError.of(
                "data.k", k, f"the representation cannot have more dimensions than data.d={d}"
            )
        self.n, self.m, self.d, self.k, self.R = n, m, d, k, float(R)
        self.features, self.seed, self.stream = features, seed, stream
        self.unit_heads = unit_heads
        self.floor = self.R**2
        self.scales = condition ** -np.linspace(0.0, 1.0, k) if k > 1 else np.ones(1)
        self.U_star = retraction(generator(seed, "representation").standard_normal((d, k)))

    def cohort(self, first: int, last: int) -> Cohort | Streamed:
        """Return the users first..last-1."""
        if not self.stream:
            return self._users("user", first, last)
        shape, truth = (
            (last - first, self.m, self.d),
            LinearTruth(np.empty((0, self.k)), self.U_star),
        )
        return Streamed(self._made, first, last, shape, 4 * self.m * self.d, truth)

    def validation(self, users: int = 1024) -> Cohort:
        """Return fresh users of the same population.

        They never take part in training, so that judging a model on them costs no privacy.
        """
        return self._users("validation", 0, users)

    def compare(self, model: dict[str, Array]) -> dict[str, float]:
        """Return the principal-angle distance `dist` of a published U (d, k) to the true one."""
        return {"dist": dist(model["U"], self.U_star)} if "U" in model else {}

    def constants(self) -> dict[str, float]:
        """Return Lambda and lambda_, the extreme singular values of V*/sqrt(n), Gamma, and R.

        Gamma is the largest norm of a true head. `gaussian` says whether features are normal.
        """
        V = self._heads("user", 0, self.n)
        values = np.linalg.svd(V / math.sqrt(self.n), compute_uv=False)
        Gamma = float(np.max(np.linalg.norm(V, axis=1)))
        return {
            "Lambda": float(values[0]),
            "lambda_": float(values[-1]),
            "Gamma": Gamma,
            "R": self.R,
            "gaussian": float(self.features == "gaussian"),
        }

    def _made(self, first: int, last: int) -> Cohort:
        return self._users("user", first, last)

    def _users(self, purpose: str, first: int, last: int) -> Cohort:
        n, m, d = last - first, self.m, self.d
        V = self._heads(purpose, first, n)
        X, y = np.empty((n, m, d), np.float32), np.empty((n, m), np.float32)
        size = users_within(1 << 20, X[:1].nbytes)
        for start in range(0, n, size):  # targets are computed while examples are in the cache
            part = slice(start, start + size)
            self._features(purpose, first + start, X[part])
            noise = self._normals(purpose, "labels", first + start, y[part].shape)
            y[part] = predictions(X[part], V[part] @ self.U_star.T) + self.R * noise
        return Cohort(np.arange(first, last), X, y, LinearTruth(V, self.U_star))  # type: ignore[arg-type]

    def _heads(self, purpose: str, first: int, n: int) -> Array:
        """Return the true heads (n, k) of the users first, first + 1, ..."""
        V = self._normals(purpose, "heads", first, (n, self.k)) * self.scales
        return V / np.linalg.norm(V, axis=1, keepdims=True) if self.unit_heads else V

    def _normals(self, purpose: str, name: str, first: int, shape: tuple[int, ...]) -> Array:
        """Return normal numbers (users, count) of the users first, first + 1, ..."""
        made: Floats = np.empty(shape, np.float32)
        return (
            Stream(self.seed, purpose, name).normals(first * made[0].size, made).astype(np.float64)
        )

    def _features(self, purpose: str, first: int, X: Floats) -> None:
        """Fill X (users, m, d) with the examples of the users first, first + 1, ..."""
        place = first * self.m * self.d
        kind = (first + np.arange(len(X))) % 3 if self.features == "mixed" else None
        if self.features != "uniform":
            Stream(self.seed, purpose, "features").normals(place, X)
        if self.features in ("rademacher", "mixed"):
            signs = slice(None) if kind is None else kind == 1
            X[signs] = np.copysign(np.float32(1), X[signs])
        if self.features in ("uniform", "mixed"):
            flat = slice(None) if kind is None else kind == 2
            uniform = Stream(self.seed, purpose, "uniform").uniforms(place, np.empty_like(X))
            X[flat] = np.float32(math.sqrt(12)) * (uniform[flat] - np.float32(0.5))
