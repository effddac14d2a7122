"""Sums over users whose rounding errors are known in advance.

A computed sum depends on every user's part through its rounding errors. Two sums over neighbouring
data sets may therefore lie further apart than one user's parts. With u = 2^-53, adding K numbers in
any order is wrong by at most K u times the sum of their absolute values. For sums over millions
of users that error would exceed what clipping leaves for it. So at most DEPTH terms are added
plainly, by matrix products or compiled loops, and their sums are added with compensation (`Total`),
which makes the error independent of the number of users but for the factor n of the absolute
values. `excess` is what remains to be charged. docs/proofs.md has the argument.
"""

from __future__ import annotations

import math

import numpy as np

from privfed.foundation.linalg import Array

SLACK = 1.0 - 1e-6
"""Clipping aims this far below the bound, so that no rounding exceeds the bound."""
DEPTH = 128
"""Largest number of terms that are added without compensation."""
ROWS = 112
"""Rows of one product of matrices; DEPTH - ROWS such products are added without compensation."""
GROWTH = 1e3
"""Absolute values of the terms behind one user's clipped part add up to at most this many clip
norms. It is 1 for plain vectors, and more for matrices that are made of parts that cancel."""
OWN = 3e-7
"""Part of the clip's slack that is left for rounding in one user's own norm and part."""
UNIT = 2.0**-53
"""Largest relative error of one floating-point operation."""


class Total:
    """A sum of arrays of the same shape: their exact sum, rounded once.

    The rounding error of every addition is itself computed exactly (Knuth's two-sum) and added up
    separately.
    """

    def __init__(self, first: Array | float = 0.0) -> None:
        self.high = np.asarray(first, dtype=np.float64)
        self.low: Array | float = 0.0

    def add(self, x: Array) -> None:
        """Add an array, or a number."""
        high = self.high + x
        taken = high - self.high
        self.low = self.low + ((self.high - (high - taken)) + (x - taken))
        self.high = high

    @property
    def value(self) -> Array:
        """Return the sum."""
        return np.asarray(self.high + self.low)


def weighted_sum(weights: Array, rows: Array) -> Array:
    """Return sum_i weights[i] rows[i].

    Args:
        weights: (B,).
        rows: (B, d).

    Returns:
        (d,)
    """
    if len(rows) <= DEPTH:
        return np.asarray(weights @ rows)
    total = Total(weights[:DEPTH] @ rows[:DEPTH])
    for start in range(DEPTH, len(rows), DEPTH):
        some = slice(start, start + DEPTH)
        total.add(weights[some] @ rows[some])
    return total.value


def sum_of_products(left: Array, right: Array) -> Array:
    """Return sum_i left[i] right[i]^T.

    Args:
        left: (B, a).
        right: (B, b); if it is `left`, the result is symmetric, and BLAS does half the work.

    Returns:
        (a, b)
    """
    total, plain = Total(), np.zeros((left.shape[1], right.shape[1]))
    for count, start in enumerate(range(0, len(left), ROWS), start=1):
        # The same view twice, if both are the same array: that is how symmetry is recognised.
        rows = left[start : start + ROWS]
        plain += rows.T @ (rows if right is left else right[start : start + ROWS])
        if count % (DEPTH - ROWS) == 0:
            total.add(plain)
            plain[:] = 0.0
    total.add(plain)
    return total.value


def rounding(users: int) -> float:
    """Return how far a computed sum may be from the exact one, in clip norms.

    Args:
        users: number of users.
    """
    return users * GROWTH * (DEPTH + 8) * UNIT


def excess(users: int) -> float:
    """Return what rounding of sums adds to their sensitivity, in clip norms.

    Both of two neighbouring sums may be wrong. What the slack of the clip covers is not counted.

    Args:
        users: largest number of users behind a sum.
    """
    return max(0.0, 2.0 * rounding(users) - (1.0 - SLACK - OWN))


def widened(d: int, m: int) -> float:
    """Return a factor for norms of matrices that are made of parts that cancel.

    The squared norm of a difference of sums of outer products a a^T is itself a difference, of
    numbers up to F^2, with F = the sum of all |a|^2. It is wrong by at most `terms` u F^2. Norms
    count as at least F / GROWTH, so they are too small by at most terms u GROWTH^2 / 2, relatively.
    They are multiplied by this factor, which is 1 where half of OWN covers that error.

    Args:
        d: length of each vector a.
        m: number of vectors per user.
    """
    terms = (d + 2 * m) * (m / 2 + 2 * math.sqrt(m) + 3) + m * m
    return max(1.0, 1.0 + terms * UNIT * GROWTH**2 / 2.0 - OWN / 2.0)
