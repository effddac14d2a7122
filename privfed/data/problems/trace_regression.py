"""RGRAD's problem, low-rank trace regression: y = <X, M*> + sigma noise.

    M* = U* diag(singular) V*^T   true matrix (d1, d2) of rank r, which all users share
    X                             Gaussian (d1, d2), stored as a row of d numbers
    Lambda_i                      known covariance of vec(X) of user i, with eigenvalues between
                                  C_l and C_u: diagonal, drawn per user; the identity by default

No user has a predictor of its own. Users are drawn in public chunks from streams keyed by (seed,
purpose, chunk). User i therefore has the same data for any n and any distribution of users over
nodes, and a node generates only the chunks of its own users.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from privfed.data.cohort import Cohort, draws
from privfed.data.source import DataSource
from privfed.data.user_identity import Identities
from privfed.foundation.constraints import POSITIVE, WHOLE, Number
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
        C_l: smallest eigenvalue that a covariance Lambda_i may have.
        C_u: largest one.

    Raises:
        ConfigError: if C_l > C_u, r > min(d1, d2), or `singular` is not r positive numbers.
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
        C_l: Annotated[float, POSITIVE] = 1.0,
        C_u: Annotated[float, POSITIVE] = 1.0,
    ) -> None:
        if C_l > C_u:
            raise ConfigError.of("data.C_l", C_l, f"cannot be larger than data.C_u={C_u}")
        if r > min(d1, d2):
            raise ConfigError.of(
                "data.r",
                r,
                f"the rank cannot be larger than the smaller of data.d1={d1} and data.d2={d2}",
            )
        self.n, self.m, self.d1, self.d2, self.r, self.d = n, m, d1, d2, r, d1 * d2
        self.sigma, self.seed = float(sigma), seed
        self.C_l, self.C_u = float(C_l), float(C_u)
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
        """Return the error of a published U diag(S) V^T in three Schatten norms."""
        if not {"U", "S", "V"} <= set(model):
            return {}
        E = (model["U"] * model["S"]) @ model["V"].T - self.M_star
        error, values = float(np.linalg.norm(E)), np.linalg.svd(E, compute_uv=False)
        return {
            "frobenius": error,
            "relative": error / float(np.linalg.norm(self.singular)),
            "spectral": float(values[0]),
            "nuclear": float(np.sum(values)),
        }

    def constants(self) -> dict[str, float]:
        """Return the extreme singular values of M*, label noise, sizes, and C_l and C_u."""
        return {
            "sigma_1": float(np.max(self.singular)),
            "sigma_r": float(np.min(self.singular)),
            "sigma_xi": self.sigma,
            "C_l": self.C_l,
            "C_u": self.C_u,
            "d1": float(self.d1),
            "d2": float(self.d2),
        }

    def _make_chunk(self, chunk: int) -> tuple[Array, Array]:
        """Return X (rows, m, d) and y (rows, m) of one public chunk."""
        rows = min(self.rows, self.n - chunk * self.rows)
        X = generator(self.seed, "user", "features", chunk).standard_normal((rows, self.m, self.d))
        if (self.C_l, self.C_u) != (1.0, 1.0):
            users = np.arange(chunk * self.rows, chunk * self.rows + rows).astype(np.uint64)
            X *= np.sqrt(covariances(self.seed, users, self.d, self.C_l, self.C_u))[:, None, :]
        noise = generator(self.seed, "user", "labels", chunk).standard_normal((rows, self.m))
        return X, X @ self.M_star.ravel() + self.sigma * noise


def covariances(seed: int, identities: Identities, d: int, C_l: float, C_u: float) -> Array:
    """Return the diagonals (B, d) of the users' known covariances Lambda_i.

    Args:
        seed: seed of the run.
        identities: identities (B,) of the users; nobody else's decides about a user's covariance.
        d: number of features.
        C_l: smallest eigenvalue.
        C_u: largest eigenvalue.
    """
    if C_l == C_u:
        return np.full((len(identities), d), C_l)
    return C_l + (C_u - C_l) * draws(seed, identities, d, "covariances")


def whitened(block: Cohort, seed: int, C_l: float, C_u: float) -> Array:
    """Return the rows Lambda_i^-1 vec(X_j) (B, m, d) of a block of users."""
    d = block.X.shape[2]
    return block.X / covariances(seed, block.identities, d, C_l, C_u)[:, None, :]


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
