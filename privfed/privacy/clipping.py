"""Bound one user's influence: clipping of norms, clamping of scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privfed.foundation.linalg import Array

SLACK = 1.0 - 1e-6
"""Clipping aims this far below the bound, so that no rounding, in a norm or in a sum, carries a contribution above it."""
SCORE = 2.0**20
"""Scores of candidates are whole numbers from 0 to this: sums of them are exact, in whatever order."""


def clip_factors(norms: Array, clip: float) -> Array:
    """What to multiply each contribution by so that its norm is at most clip. norms: (B,) -> (B,), all in [0, 1]."""
    bound = clip * SLACK
    factors = bound / np.maximum(norms, bound)
    return np.where(
        factors < np.finfo(np.float64).tiny, 0.0, factors
    )  # subnormal factors have no precision


class Contributions(Protocol):
    """What a block of users would send, each user's part bounded before anything is added up."""

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Sum over users of contributions scaled to norm at most clip, and the norms (B,) they had.

        A user whose numbers are not finite contributes nothing and counts as norm 0.
        """
        ...


@dataclass(frozen=True)
class Dense:
    """Contributions held as one array (B, ...)."""

    values: Array

    def __post_init__(self) -> None:
        # A norm of numbers in half or single precision may be off by more than the slack.
        object.__setattr__(self, "values", np.asarray(self.values, dtype=np.float64))

    def norms(self) -> Array:
        """Norm of each user's part (B,)."""
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
        return (clip_factors(norms, clip) @ flat).reshape(self.values.shape[1:]), norms


@dataclass(frozen=True)
class Scaled:
    """Contributions that were scaled down already, and the norms (B,) they had before: those are what one measures."""

    part: Contributions
    norms: Array

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """See :class:`Contributions`."""
        return self.part.clipped(clip)[0], self.norms


@dataclass(frozen=True)
class Scores:
    """How good each candidate is for each user: values (B, C) from 0 (worst) to 1 (best); what is outside is clamped."""

    values: Array

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Sum over users of the scores in units of 1/clip, rounded down, and the users' largest ones."""
        units = np.floor(
            np.clip(np.nan_to_num(np.asarray(self.values, dtype=np.float64)), 0.0, 1.0) * clip
        )
        return np.sum(units, axis=0), np.max(units, axis=1, initial=0.0)


def norm(x: Array) -> float:
    """Euclidean norm of all entries, infinite only where it is too large for a number; NaN or infinite if x is not finite."""
    square = float(np.vdot(x, x))
    if 1e-250 < square < 1e250:  # nearly always; what underflows beside it does not matter
        return math.sqrt(square)
    largest = float(np.max(np.abs(x), initial=0.0))
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    return largest * float(np.linalg.norm(np.ravel(x) / largest))


def clip(x: Array, bound: float) -> Array:
    """x scaled down to norm at most bound; what users have clipped already, slack included, passes unchanged.

    What is not finite, or has no finite norm, counts as zero.
    """
    x = np.asarray(x, dtype=np.float64)
    size = norm(x)
    if not math.isfinite(size):
        return np.zeros_like(x)
    return x if size <= bound else (x / size) * (bound * SLACK)


def clamp(x: Array, bound: float) -> Array:
    """x with every entry a whole number between 0 and bound: what a sum of scores can be. NaN counts as zero."""
    return np.floor(np.clip(np.nan_to_num(np.asarray(x, dtype=np.float64)), 0.0, bound))
