"""Private initialisation, user side (PMPR Algorithm 2).

    a_j = y_j x_j    Z_i = 1/(m0 (m0 - 1)) sum_{j != l} a_j a_l^T    (unbiased for w_i w_i^T)

Z_i is never formed. With s = sum_j a_j it is (s s^T - sum_j a_j a_j^T) / (m0 (m0 - 1)), so a weighted sum over users is two
matrix products; with K = A A^T (m0 x m0) and J the matrix of ones, |Z_i|_F^2 = tr((J - I) K (J - I) K) / (m0 (m0 - 1))^2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.common import NDArrays

from clients.base import Contributions
from privfed.data.cohort import Cohort
from privfed.linalg import Array, svec


class Spectral:
    """Contributions Z_i, sent as the isometric half-vectorisation of their sum."""

    task = "spectral"

    def __init__(self, examples: slice = slice(None)) -> None:
        self.examples = examples

    def contributions(self, block: Cohort, shared: NDArrays, config: dict[str, Any]) -> Contributions:
        """Norms of Z_i and their weighted sum (d (d + 1) / 2,)."""
        A = block.X[:, self.examples] * block.y[:, self.examples, None]
        _, m0, d = A.shape
        scale = 1.0 / (m0 * (m0 - 1))
        s = np.sum(A, axis=1)
        K = np.matmul(A, A.transpose(0, 2, 1))
        # ((J - I) K)_jl = column sums of K minus K itself.
        M = np.sum(K, axis=1, keepdims=True) - K
        norms = scale * np.sqrt(np.maximum(np.sum(M * M.transpose(0, 2, 1), axis=(1, 2)), 0.0))

        def weighted_sum(c: Array) -> Array:
            rows = A.reshape(-1, d)
            Z = s.T @ (c[:, None] * s) - rows.T @ (np.repeat(c, m0)[:, None] * rows)
            return svec(scale * (Z + Z.T) / 2.0)

        return Contributions(norms, weighted_sum)
