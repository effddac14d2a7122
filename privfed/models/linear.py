"""Linear representation and linear head: user i predicts <x, U v_i>."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import lstsq


def fit_heads(U: Array, X: Array, y: Array) -> Array:
    """Every user's head by (minimum-norm) least squares. U (d, k), X (B, m, d), y (B, m) -> V (B, k)."""
    B, m, d = X.shape
    return lstsq((X.reshape(-1, d) @ U).reshape(B, m, -1), y)


@dataclass(frozen=True)
class LinearModel:
    """A published U (d, k) that answers what a TableModel does: rows are numbers as they are, and there is no global model."""

    U: Array

    def rows(self, numbers: Any, codes: Any = None) -> Array:
        """As they are: (..., d)."""
        return np.asarray(numbers, dtype=np.float64)

    def targets(self, y: Array) -> Array:
        """y (...) -> (..., 1)."""
        return np.asarray(y, dtype=np.float64)[..., None]

    def base(self, X: Array) -> Array:
        """Without a head: 0, (..., 1)."""
        return np.zeros((*X.shape[:-1], 1))

    def features(self, X: Array) -> Array:
        """What a head sees: X (..., d) -> (..., k)."""
        return np.asarray(X @ self.U)

    def fit(self, X: Array, Y: Array) -> Array:
        """Heads (B, k, 1) of users with rows X (B, m, d) and targets Y (B, m, 1)."""
        return fit_heads(self.U, X, Y[..., 0])[..., None]

    def left_out(self, X: Array, Y: Array) -> Array:
        """What heads fitted without a row say of it, (B, m, 1); NaN where the others do not determine them."""
        P = self.features(X)
        H = np.linalg.pinv(P)
        rest = 1.0 - np.vecdot(P, H.transpose(0, 2, 1))[..., None]
        residuals = Y - np.matmul(P, np.matmul(H, Y))
        return Y - np.divide(
            residuals, rest, out=np.full_like(residuals, math.nan), where=rest > 1e-9
        )

    def scores(self, X: Array, V: Array) -> Array:
        """Predictions (t, 1) of rows X (t, d), each with the head of its user V (t, k, 1) or all with one (k, 1)."""
        return np.matmul(self.features(X)[:, None, :], V)[:, 0]

    def answers(self, scores: Array) -> Array:
        """(t, 1) -> (t,)."""
        return scores[:, 0]

    def losses(self, scores: Array, y: Array) -> Array:
        """Squared errors (t,)."""
        return (scores[:, 0] - y) ** 2
