"""Private initialisation, user side (PMPR Algorithm 2).

    a_j = y_j x_j    Z_i = 1/(m0 (m0 - 1)) sum_{j != l} a_j a_l^T    (unbiased for w_i w_i^T)

Z_i is never formed. With s = sum_j a_j it is (s s^T - sum_j a_j a_j^T) / (m0 (m0 - 1)), so a weighted sum over users is two
matrix products, and with K = A A^T (m0 x m0) |Z_i|_F^2 = (|s|^4 - 2 sum_j <s, a_j>^2 + |K|_F^2) / (m0 (m0 - 1))^2.

Both are differences of larger numbers. A user could choose huge examples whose pairs cancel: a small norm, hardly clipped, and
a sum full of rounding errors far above the clip norm. So the norm counts as at least CANCELLATION times what is
subtracted, F = (|s|^2 + sum_j |a_j|^2) / (m0 (m0 - 1)): a contribution then carries rounding of at most 1e-16 / CANCELLATION
of the clip norm, which the slack of the clip covers. Ordinary data lie two orders of magnitude above that floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.data.cohort import Cohort
from privfed.foundation.compilation import compiled
from privfed.foundation.linalg import Array, svec
from privfed.kernels.least_squares import contiguous, dot
from privfed.privacy.clipping import clip_factors

CANCELLATION = 1e-3


class SpectralTask:
    """Contributions Z_i, sent as the isometric half-vectorisation of their sum."""

    @task
    def spectral(self, block: Cohort, shared: NDArrays, told: Announcement) -> SecondMoments:
        """Z_i of every user."""
        n, m0, d = block.X.shape
        A, s, norms = np.empty((n, m0, d)), np.empty((n, 1, d)), np.empty(n)
        _moments(contiguous(block.X), contiguous(block.y), A, s, norms)
        return SecondMoments(A, s, norms, 1.0 / (m0 * (m0 - 1)))


@compiled
def _moments(X, y, A, s, norms):  # type: ignore[no-untyped-def]
    """The rows a_j and their sum for every user, and |Z_i|; zeros for users whose numbers overflow.

    X (B, m0, d), y (B, m0) -> A (B, m0, d), s (B, 1, d), norms (B,).
    """
    users, m0, d = X.shape
    for i in range(users):
        total = s[i, 0]
        for c in range(d):
            total[c] = 0.0
        for j in range(m0):
            target = np.float64(y[i, j])
            for c in range(d):
                A[i, j, c] = target * X[i, j, c]
                total[c] += A[i, j, c]
        length, trace = dot(total, total), 0.0
        square = length * length
        for j in range(m0):
            p, q = dot(A[i, j], total), dot(A[i, j], A[i, j])
            square += q * q - 2.0 * p * p
            trace += q
            for other in range(j):
                p = dot(A[i, j], A[i, other])
                square += 2.0 * p * p
        norms[i] = max(math.sqrt(max(square, 0.0)), CANCELLATION * (length + trace)) / (
            m0 * (m0 - 1)
        )
        if not (math.isfinite(norms[i]) and math.isfinite(square)):
            norms[i] = 0.0
            for c in range(d):
                total[c] = 0.0
                for j in range(m0):
                    A[i, j, c] = 0.0


@dataclass(frozen=True)
class SecondMoments:
    """Contributions Z_i = scale (sum_c s_c s_c^T - sum_j a_j a_j^T) by their factors: A (B, m0, d), s (B, C, d), |Z_i| (B,)."""

    A: Array
    s: Array
    norms: Array
    scale: float = 1.0

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """svec of the clipped sum (d (d + 1) / 2,), and the norms."""
        d = self.A.shape[2]
        c = clip_factors(self.norms, clip) * self.scale

        def weighted(F: Array) -> Array:
            rows = (np.sqrt(c)[:, None, None] * F).reshape(-1, d)
            return np.asarray(rows.T @ rows)  # which BLAS knows to be symmetric: half the work

        Z = weighted(self.s) - weighted(self.A)
        return svec(Z), self.norms
