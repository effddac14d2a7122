"""Private initialisation, user side (PMPR Algorithm 2).

    a_j   = y_j x_j (d,), for the user's m0 training examples; rows of A (m0, d)
    Z_i   = 1/(m0 (m0 - 1)) sum_{j != l} a_j a_l^T (d, d), unbiased for w_i w_i^T
    s     = sum_j a_j (d,)
    K     = A A^T (m0, m0)

Z_i is never formed. It equals (s s^T - sum_j a_j a_j^T) / (m0 (m0 - 1)), so a weighted sum over
users is two matrix products. Its norm is given by
|Z_i|_F^2 = (|s|^4 - 2 sum_j <s, a_j>^2 + |K|_F^2) / (m0 (m0 - 1))^2.

Both are differences of larger numbers. A user could choose huge examples whose pairs cancel. Its
norm would be small and hardly clipped, and its sum full of rounding errors far above the clip norm.
So the norm counts as at least CANCELLATION times what is subtracted,
F = (|s|^2 + sum_j |a_j|^2) / (m0 (m0 - 1)). A contribution then carries rounding of at most
1e-16 / CANCELLATION of the clip norm, which the slack of the clip covers. Ordinary data lie two
orders of magnitude above that floor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.data.cohort import Cohort
from privfed.foundation.linalg import Array, svec
from privfed.kernels.second_moments import second_moments
from privfed.privacy.clipping import clip_factors
from privfed.privacy.summation import sum_of_products, widened


class SpectralTask:
    """Contributions Z_i, sent as the isometric half-vectorisation of their sum."""

    @task
    def spectral(self, block: Cohort, shared: NDArrays, told: Announcement) -> SecondMoments:
        """Return Z_i of every user."""
        A, s, norms = second_moments(block.X, block.y)
        m0 = A.shape[1]
        return SecondMoments(A, s, norms, 1.0 / (m0 * (m0 - 1)))


@dataclass(frozen=True)
class SecondMoments:
    """Contributions Z_i = scale (sum_c s_c s_c^T - sum_j a_j a_j^T), by their factors.

    Attributes:
        A: rows a_j (B, m0, d).
        s: sums s_c (B, C, d).
        norms: |Z_i|_F (B,).
        scale: common factor.
    """

    A: Array
    s: Array
    norms: Array
    scale: float = 1.0

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Return svec of the clipped sum (d (d + 1) / 2,), and the norms (B,)."""
        d = self.A.shape[2]
        norms = self.norms * widened(d, self.A.shape[1] + self.s.shape[1])
        c = clip_factors(norms, clip) * self.scale

        def weighted(F: Array) -> Array:
            rows = (np.sqrt(c)[:, None, None] * F).reshape(-1, d)
            return sum_of_products(rows, rows)

        Z = weighted(self.s) - weighted(self.A)
        return svec(Z), self.norms
