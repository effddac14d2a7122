"""RGRAD's problem, low-rank trace regression: y = <X, M*> + sigma noise.

    M* = U* diag(singular) V*^T   true matrix (d1, d2) of rank r, which all users share
    X                             d1 x d2 independent standard normal numbers, stored as a row of d

No user has a predictor of its own. Users are drawn in public chunks from streams keyed by (seed,
purpose, chunk). User i therefore has the same data for any n and any distribution of users over
nodes, and a node generates only the chunks of its own users.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from privfed.data.cohort import Cohort
from privfed.data.source import DataSource
from privfed.foundation.constraints import WHOLE, Number
from privfed.foundation.errors import ConfigError, check_number
from privfed.foundation.linalg import Array, retraction
from privfed.foundation.seeding import generator

CHUNK = 1 << 20
"""Numbers per chunk: with large matrices a chunk has fewer users than a public block."""

LABEL_NOISE = Number(lambda x: 0 <= x <= 1e6, "label noise must be a number between 0 and 1e6")


class Trace(DataSource):
    """Users with observations (X, y) of one low-rank matrix.

    Args:
        n: number of users.
        m: observations per user.
        d1: rows of X and M*.
        d2: columns of X and M*.
        r: rank of M*.
        singular: the r singular values of M*; None: evenly spaced from 1 to 0.7.
        sigma: standard deviation of the label noise.
        seed: seed of everything.

    Raises:
        ConfigError: if r > min(d1, d2), or `singular` is not r positive numbers.
    """

    simulated = True
    personal = False
    error = "frobenius"

    def __init__(
        self,
        n: Annotated[int, WHOLE],
        m: Annotated[int, WHOLE],
        d1: Annotated[int, WHOLE],
        d2: Annotated[int, WHOLE],
        r: Annotated[int, WHOLE],
        singular: Sequence[float] | None,
        sigma: Annotated[float, LABEL_NOISE],
        seed: int,
    ) -> None:
        if r > min(d1, d2):
            raise ConfigError.of(
                "data.r",
                r,
                f"the rank cannot be larger than the smaller of data.d1={d1} and data.d2={d2}",
            )
        self.n, self.m, self.d1, self.d2, self.r, self.d = n, m, d1, d2, r, d1 * d2
        self.sigma, self.seed = float(sigma), seed
        self.singular = singular_values(singular, r)
        U = retraction(generator(seed, "left").standard_normal((d1, r)))
        V = retraction(generator(seed, "right").standard_normal((d2, r)))
        self.M_star = (U * self.singular) @ V.T
        self.rows = int(np.clip(CHUNK // (m * self.d), 1, 1024))
        self._chunk = lru_cache(maxsize=4)(self._make_chunk)

    def cohort(self, first: int, last: int) -> Cohort:
        """Return the users first..last-1."""
        X, y = np.empty((last - first, self.m, self.d)), np.empty((last - first, self.m))
        for chunk in range(first // self.rows, -(-last // self.rows)):
            start = chunk * self.rows
            a, b = max(first, start), min(last, start + self.rows)
            for mine, whole in zip((X, y), self._chunk(chunk), strict=True):
                mine[a - first : b - first] = whole[a - start : b - start]
        return Cohort(np.arange(first, last), X, y)

    def compare(self, model: dict[str, Array]) -> dict[str, float]:
        """Return the Frobenius error of a published U diag(S) V^T, absolute and relative."""
        if not {"U", "S", "V"} <= set(model):
            return {}
        error = float(np.linalg.norm((model["U"] * model["S"]) @ model["V"].T - self.M_star))
        return {"frobenius": error, "relative": error / float(np.linalg.norm(self.singular))}

    def _make_chunk(self, chunk: int) -> tuple[Array, Array]:
        """Return X (rows, m, d) and y (rows, m) of one public chunk."""
        rows = min(self.rows, self.n - chunk * self.rows)
        X = generator(self.seed, "user", "features", chunk).standard_normal((rows, self.m, self.d))
        noise = generator(self.seed, "user", "labels", chunk).standard_normal((rows, self.m))
        return X, X @ self.M_star.ravel() + self.sigma * noise


def singular_values(given: Any, r: int) -> Array:
    """Return the true singular values (r,).

    Args:
        given: list of r positive numbers below 1e6; None: evenly spaced from 1 to 0.7.
        r: rank.

    Raises:
        ConfigError: if `given` is anything else.
    """
    if given is None:
        return np.linspace(1.0, 0.7, r)
    allowed = f"must be a list of data.r={r} positive numbers below 1e6, or null"
    if isinstance(given, str | int | float) or len(given) != r:
        raise ConfigError.of("data.singular", given, allowed)
    for value in given:
        check_number("data.singular", value, lambda x: 0 < x < 1e6, allowed)
    return np.array(given, dtype=np.float64)
