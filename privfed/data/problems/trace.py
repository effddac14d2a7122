"""RGRAD's problem, low-rank trace regression: y = <X, M*> + sigma noise, M* = U* diag(singular) V*^T (d1 x d2) of rank r.

The features X are d1 x d2 matrices of independent standard normal numbers, held as rows of d = d1 d2. All users share the one
matrix M*; nobody has a predictor of its own. Users are drawn in public chunks from streams keyed by (seed, purpose, chunk):
user i has the same data whatever n is, however users are spread over nodes, and a node makes only its own users' chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from privfed.data.cohort import BLOCK, Cohort
from privfed.foundation.errors import ConfigError, check_number, check_whole
from privfed.foundation.linalg import Array, retraction
from privfed.foundation.seeding import generator

CHUNK = 1 << 20
"""Numbers that are drawn at once: with large matrices a chunk has fewer users than a public block."""


class Trace:
    """n users with m observations (X, y) each. singular: the r singular values of M*; None: evenly spaced from 1 to 0.7.

    sigma: standard deviation of the label noise.
    """

    simulated = True
    personal = False
    error = "frobenius"

    def __init__(
        self,
        n: int,
        m: int,
        d1: int,
        d2: int,
        r: int,
        singular: Sequence[float] | None,
        sigma: float,
        seed: int,
    ) -> None:
        for key, value in (
            ("data.n", n),
            ("data.m", m),
            ("data.d1", d1),
            ("data.d2", d2),
            ("data.r", r),
        ):
            check_whole(key, value)
        if r > min(d1, d2):
            raise ConfigError.of(
                "data.r",
                r,
                f"the rank cannot be larger than the smaller of data.d1={d1} and data.d2={d2}",
            )
        check_number(
            "data.sigma",
            sigma,
            lambda x: 0 <= x <= 1e6,
            "label noise must be a number between 0 and 1e6",
        )
        self.n, self.m, self.d1, self.d2, self.r, self.d = n, m, d1, d2, r, d1 * d2
        self.sigma, self.seed = float(sigma), seed
        self.singular = singular_values(singular, r)
        U = retraction(generator(seed, "left").standard_normal((d1, r)))
        V = retraction(generator(seed, "right").standard_normal((d2, r)))
        self.M_star = (U * self.singular) @ V.T
        self.rows = int(np.clip(CHUNK // (m * self.d), 1, BLOCK))
        self._chunk = lru_cache(maxsize=4)(self._make_chunk)

    def cohort(self, first: int, last: int) -> Cohort:
        """Users first..last-1."""
        X, y = np.empty((last - first, self.m, self.d)), np.empty((last - first, self.m))
        for chunk in range(first // self.rows, -(-last // self.rows)):
            start = chunk * self.rows
            a, b = max(first, start), min(last, start + self.rows)
            for mine, whole in zip((X, y), self._chunk(chunk), strict=True):
                mine[a - first : b - first] = whole[a - start : b - start]
        return Cohort(np.arange(first, last), X, y)

    def compare(self, model: dict[str, Array]) -> dict[str, float]:
        """Frobenius error of a published U diag(S) V^T, also relative to the true matrix."""
        if not {"U", "S", "V"} <= set(model):
            return {}
        error = float(np.linalg.norm((model["U"] * model["S"]) @ model["V"].T - self.M_star))
        return {"frobenius": error, "relative": error / float(np.linalg.norm(self.singular))}

    def _make_chunk(self, chunk: int) -> tuple[Array, Array]:
        """X (rows, m, d) and y (rows, m) of one public chunk."""
        rows = min(self.rows, self.n - chunk * self.rows)
        X = generator(self.seed, "user", "features", chunk).standard_normal((rows, self.m, self.d))
        noise = generator(self.seed, "user", "labels", chunk).standard_normal((rows, self.m))
        return X, X @ self.M_star.ravel() + self.sigma * noise


def singular_values(given: Any, r: int) -> Array:
    """The r true singular values (r,): those given, or evenly spaced from 1 to 0.7."""
    if given is None:
        return np.linspace(1.0, 0.7, r)
    allowed = f"must be a list of data.r={r} positive numbers below 1e6, or null"
    if isinstance(given, str | int | float) or len(given) != r:
        raise ConfigError.of("data.singular", given, allowed)
    for value in given:
        check_number("data.singular", value, lambda x: 0 < x < 1e6, allowed)
    return np.array(given, dtype=np.float64)
