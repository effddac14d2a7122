"""Bounding one user's influence (clip, clamp), then hiding it (the noise gate)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from privfed.linalg import Array
from privfed.privacy.accounting import GaussianRelease, Selection
from privfed.privacy.ledger import SENSITIVITY, Ledger
from privfed.privacy.noise import NoiseSource

SLACK = 1.0 - 1e-6
"""Clipping aims this far below the bound, so that no rounding, in a norm or in a sum, carries a contribution above it."""
GRID = -24
"""Releases lie on multiples of a power of two about 2^GRID below the noise's standard deviation."""

SCORE = 2.0**20
"""Scores of candidates are whole numbers from 0 to this: sums of them are exact, in whatever order."""


def clip_factors(norms: Array, clip: float) -> Array:
    """What to multiply each contribution by so that its norm is at most clip. norms: (B,) -> (B,), all in [0, 1]."""
    bound = clip * SLACK
    factors = bound / np.maximum(norms, bound)
    return np.where(factors < np.finfo(np.float64).tiny, 0.0, factors)  # subnormal factors have no precision


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
        units = np.floor(np.clip(np.nan_to_num(np.asarray(self.values, dtype=np.float64)), 0.0, 1.0) * clip)
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


class NoiseGate:
    """The one place where privacy noise is added, and where a release is charged before it leaves."""

    def __init__(self, ledger: Ledger, source: NoiseSource) -> None:
        self.ledger = ledger
        self.source = source

    def sensitivity(self, bound: float) -> float:
        """How far one user can move a sum of contributions of norm at most bound."""
        return SENSITIVITY[self.ledger.budget.neighbouring] * bound

    def release(
        self,
        name: str,
        total: Array,
        *,
        bound: float,
        mu: float,
        round: int,
        group: int | None = None,
        sampling: float = 1.0,
    ) -> Array:
        """The sum of all users' contributions, each of norm at most bound, plus Gaussian noise of cost mu.

        sampling: the probability with which each user took part, by a coin that nobody knows; mu is the cost without it.

        The ledger has it on disk when this returns; a release over budget raises and nothing leaves.

        Sum and noise are whole multiples of a public grid far below the noise; they are added as integers. The noise is a
        Gaussian rounded to the grid. As the rounded sum lies on the grid, that equals rounding (rounded sum + Gaussian):
        post-processing of a Gaussian release, and the low bits of the floating-point result cannot tell sums apart.
        Rounding moves two sums apart by at most one grid step a coordinate; the sensitivity includes it.
        """
        sensitivity = self.sensitivity(bound)
        if math.isinf(mu):
            self.ledger.charge(GaussianRelease(name, round, total.size, bound, sensitivity, 0.0, group, sampling))
            return total
        grid = 2.0 ** (math.floor(math.log2(sensitivity / mu)) + GRID)
        sensitivity += grid * math.sqrt(total.size)
        s = math.ceil(sensitivity / mu / grid)
        self.ledger.charge(GaussianRelease(name, round, total.size, bound, sensitivity, s * grid, group, sampling))
        noise = self.source.normal(total.size, s, name, round).reshape(total.shape)
        return np.asarray(grid * (np.rint(total / grid).astype(np.int64) + noise), dtype=np.float64)

    def select(self, name: str, total: Array, *, bound: float, epsilon: float, round: int) -> int:
        """The index of one candidate by the exponential mechanism: probability proportional to exp(rate * total score).

        One user gives each candidate a score from 0 to bound, so replacing a user changes the probability of a candidate by
        at most e^(2 rate bound). Adding a user can only raise scores: both the numerator and the normalising sum grow
        by a factor between 1 and e^(rate bound), and their quotient by at most that. Hence epsilon = rate * sensitivity
        with the sensitivities of sums.
        """
        sensitivity = self.sensitivity(bound)
        rate = epsilon / sensitivity
        self.ledger.charge(Selection(name, round, total.size, bound, sensitivity, rate))
        if math.isinf(rate):
            return int(np.argmax(total))
        return self.source.choice(rate * (total - np.max(total)), name, round)
