"""Bound one user's influence: clipping of norms, clamping of scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privfed.foundation.linalg import Array, svec, unsvec
from privfed.privacy.distances import NON_NEGATIVE, OUTER_PRODUCT, SEMIDEFINITE
from privfed.privacy.summation import SLACK, weighted_sum

ROUNDING = 1e-9
"""Negative eigenvalues of a positive semidefinite sum, as a fraction of the largest, at most."""
SCORE = 2.0**20
"""Scores of candidates are whole numbers from 0 to SCORE, so sums are exact in any order."""


def clip_factors(norms: Array, clip: float) -> Array:
    """Return the factors in [0, 1] that scale contributions to norm at most `clip`.

    Args:
        norms: norm of each contribution, (B,).
        clip: clip norm.

    Returns:
        One factor per contribution, (B,).
    """
    bound = clip * SLACK
    factors = bound / np.maximum(norms, bound)
    # Subnormal factors have no precision.
    return np.where(factors < np.finfo(np.float64).tiny, 0.0, factors)


class Contributions(Protocol):
    """Contributions of a block of users, each bounded before they are added up."""

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Return the sum of clipped contributions, and the norms before clipping, (B,).

        A user whose numbers are not finite contributes nothing and counts as norm 0. What is
        added up, and how many terms at a time, must keep the error that
        `privfed.privacy.summation` states: use `weighted_sum` and `sum_of_products`.

        Args:
            clip: norm that each contribution is scaled down to.
        """
        ...


@dataclass(frozen=True)
class Dense:
    """Contributions held as one array (B, ...)."""

    values: Array

    def __post_init__(self) -> None:
        # Norms computed in half or single precision may be wrong by more than SLACK.
        object.__setattr__(self, "values", np.asarray(self.values, dtype=np.float64))

    def norms(self) -> Array:
        """Return the norm of each user's part, (B,)."""
        flat = self._rows()
        return np.sqrt(np.vecdot(flat, flat))

    def _rows(self) -> Array:
        return self.values.reshape(len(self.values), math.prod(self.values.shape[1:]))

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """See :class:`Contributions`."""
        flat, norms = self._rows(), self.norms()
        finite = np.isfinite(norms)
        if not finite.all():
            flat, norms = np.where(finite[:, None], flat, 0.0), np.where(finite, norms, 0.0)
        total = weighted_sum(clip_factors(norms, clip), flat)
        return total.reshape(self.values.shape[1:]), norms


@dataclass(frozen=True)
class Scaled:
    """Contributions that were scaled down before.

    Attributes:
        part: the scaled contributions.
        norms: norms before scaling, (B,); these are reported as the users' norms.
    """

    part: Contributions
    norms: Array

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """See :class:`Contributions`."""
        return self.part.clipped(clip)[0], self.norms


@dataclass(frozen=True)
class Scores:
    """Score of each candidate per user.

    Attributes:
        values: scores from 0 (worst) to 1 (best), (B, C); values outside are clamped.
    """

    values: Array

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Return total scores (C,) in whole units of 1/clip, and each user's largest one (B,)."""
        units = np.floor(
            np.clip(np.nan_to_num(np.asarray(self.values, dtype=np.float64)), 0.0, 1.0) * clip
        )
        return np.sum(units, axis=0), np.max(units, axis=1, initial=0.0)


def norm(x: Array) -> float:
    """Return the Euclidean norm of all entries.

    It is infinite only if it exceeds the largest float, and NaN or infinite if x is not finite.
    """
    square = float(np.vdot(x, x))
    # Almost always true. Entries whose squares underflow are negligible then.
    if 1e-250 < square < 1e250:
        return math.sqrt(square)
    largest = float(np.max(np.abs(x), initial=0.0))
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    return largest * float(np.linalg.norm(np.ravel(x) / largest))


def clip(x: Array, bound: float) -> Array:
    """Return x scaled down to norm at most `bound`.

    Contributions that users have clipped, slack included, pass unchanged. If x is not finite, or
    has no finite norm, the result is zero.
    """
    x = np.asarray(x, dtype=np.float64)
    size = norm(x)
    if not math.isfinite(size):
        return np.zeros_like(x)
    return x if size <= bound else (x / size) * (bound * SLACK)


def clip_outer_products(x: Array, bound: float) -> Array:
    """Return the half-vectorisation of a sum of outer products t u u^T; t add up to `bound`.

    What users send adds up to a matrix without negative eigenvalues whose trace is at most `bound`,
    and passes unchanged. Anything else is made one: negative eigenvalues count as zero, and the
    rest is scaled down. Two matrices of that kind are at most sqrt(2) bound apart, so that a node
    that serves one user cannot exceed the sensitivity of `OuterProductBound` with any message.

    Args:
        x: half-vectorisation (`svec`) of a symmetric matrix.
        bound: upper limit of the trace.
    """
    x = np.asarray(x, dtype=np.float64)
    largest = float(np.max(np.abs(x), initial=0.0))
    if not math.isfinite(largest) or largest == 0.0:
        return np.zeros_like(x)
    q = (math.isqrt(8 * x.size + 1) - 1) // 2
    values, vectors = np.linalg.eigh(unsvec(x / largest, q))
    trace = float(np.sum(values)) * largest
    # Rounding leaves eigenvalues a little below zero. What users clip has far more slack than that.
    if values[0] >= -ROUNDING * abs(values[-1]) and trace <= bound * (1.0 - 0.1 * (1.0 - SLACK)):
        return x
    positive = np.maximum(values, 0.0)
    total = float(np.sum(positive))
    if total == 0.0:
        return np.zeros_like(x)
    positive *= min(largest, bound * SLACK / total)
    return svec((vectors * positive) @ vectors.T)


def clip_non_negative(x: Array, bound: float) -> Array:
    """Return the nearest array to x without negative entries and of norm at most `bound`.

    Sums of what users send pass unchanged. See `NonNegativeBound`.
    """
    return clip(np.maximum(np.nan_to_num(np.asarray(x, dtype=np.float64)), 0.0), bound)


def clip_semidefinite(x: Array, bound: float) -> Array:
    """Return the nearest svec to x of a semidefinite matrix of norm at most `bound`.

    Sums of what users send pass unchanged. See `SemidefiniteBound`.

    Args:
        x: half-vectorisation (`svec`) of a symmetric matrix.
        bound: upper limit of the Frobenius norm.
    """
    x = np.asarray(x, dtype=np.float64)
    largest = float(np.max(np.abs(x), initial=0.0))
    if not math.isfinite(largest) or largest == 0.0:
        return np.zeros_like(x)
    q = (math.isqrt(8 * x.size + 1) - 1) // 2
    values, vectors = np.linalg.eigh(unsvec(x / largest, q))
    # Rounding leaves eigenvalues a little below zero.
    if values[0] < -ROUNDING * abs(values[-1]):
        x = largest * svec((vectors * np.maximum(values, 0.0)) @ vectors.T)
    return clip(x, bound)


PROJECTIONS: Mapping[str, Callable[[Array, float], Array]] = {
    OUTER_PRODUCT: clip_outer_products,
    NON_NEGATIVE: clip_non_negative,
    SEMIDEFINITE: clip_semidefinite,
}
"""How the server bounds the sum of a node again, by kind of bound; `clip` for all others."""


def clamp(x: Array, bound: float) -> Array:
    """Return x with every entry rounded down to a whole number from 0 to `bound`; NaN becomes 0.

    Every sum of valid scores is such an array.
    """
    return np.floor(np.clip(np.nan_to_num(np.asarray(x, dtype=np.float64)), 0.0, bound))
