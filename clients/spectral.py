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

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.common import NDArrays

from privfed.data.cohort import Cohort
from privfed.linalg import Array, svec
from privfed.privacy.mechanisms import clip_factors

CANCELLATION = 1e-3


class Spectral:
    """Contributions Z_i, sent as the isometric half-vectorisation of their sum."""

    task = "spectral"

    def contributions(self, block: Cohort, shared: NDArrays, config: dict[str, Any]) -> SecondMoments:
        """Z_i of every user."""
        A = block.X * block.y[..., None]
        m0 = A.shape[1]
        scale = 1.0 / (m0 * (m0 - 1))
        s = np.sum(A, axis=1)
        K = np.matmul(A, A.transpose(0, 2, 1))
        length = np.vecdot(s, s)
        square = length**2 - 2.0 * np.sum(np.matmul(A, s[:, :, None]) ** 2, axis=(1, 2)) + np.sum(K * K, axis=(1, 2))
        floor = CANCELLATION * (length + np.trace(K, axis1=1, axis2=2))
        norms = scale * np.maximum(np.sqrt(np.maximum(square, 0.0)), floor)
        overflow = ~np.isfinite(norms)
        A[overflow], s[overflow], norms[overflow] = 0.0, 0.0, 0.0
        return SecondMoments(A, s[:, None], norms, scale)


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
            rows = F.reshape(-1, d)
            return np.asarray(rows.T @ (np.repeat(c, F.shape[1])[:, None] * rows))

        Z = weighted(self.s) - weighted(self.A)
        return svec((Z + Z.T) / 2.0), self.norms
