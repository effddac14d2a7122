"""Linear representation and linear head: user i predicts <x, U v_i>."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import lstsq


def fit_heads(U: Array, X: Array, y: Array) -> Array:
    """Fit every user's head by least squares, with minimum norm if it is not unique.

    Args:
        U: shared embedding, (d, k).
        X: examples, (B, m, d).
        y: targets, (B, m).

    Returns:
        Heads, (B, k).
    """
    B, m, d = X.shape
    return lstsq((X.reshape(-1, d) @ U).reshape(B, m, -1), y)


@dataclass(frozen=True)
class LinearModel:
    """Published U (d, k) with the methods of a `TableModel`.

    Rows are numbers without encoding, and there is no global model.
    """

    U: Array

    def rows(self, numbers: Any, codes: Any = None) -> Array:
        """Return the rows as they are, (..., d)."""
        return np.asarray(numbers, dtype=np.float64)

    def targets(self, y: Array) -> Array:
        """Return targets y (...) with an axis for outputs, (..., 1)."""
        return np.asarray(y, dtype=np.float64)[..., None]

    def base(self, X: Array) -> Array:
        """Return the prediction without a head: 0, (..., 1)."""
        return np.zeros((*X.shape[:-1], 1))

    def features(self, X: Array) -> Array:
        """Return the input of a head: X (..., d) -> (..., k)."""
        return np.asarray(X @ self.U)

    def fit(self, X: Array, Y: Array) -> Array:
        """Return the heads (B, k, 1) of users with rows X (B, m, d) and targets Y (B, m, 1)."""
        return fit_heads(self.U, X, Y[..., 0])[..., None]

    def left_out(self, X: Array, Y: Array) -> Array:
        """Return the predictions of heads fitted without the row, (B, m, 1).

        They are NaN if the other rows do not determine the head.
        """
        P = self.features(X)
        H = np.linalg.pinv(P)
        rest = 1.0 - np.vecdot(P, H.transpose(0, 2, 1))[..., None]
        residuals = Y - np.matmul(P, np.matmul(H, Y))
        return Y - np.divide(
            residuals, rest, out=np.full_like(residuals, math.nan), where=rest > 1e-9
        )

    def scores(self, X: Array, V: Array) -> Array:
        """Return predictions (t, 1).

        Args:
            X: rows, (t, d).
            V: head of each row's user, (t, k, 1), or one head for all rows, (k, 1).
        """
        return np.matmul(self.features(X)[:, None, :], V)[:, 0]

    def answers(self, scores: Array) -> Array:
        """Return predictions (t,) from scores (t, 1)."""
        return scores[:, 0]

    def losses(self, scores: Array, y: Array) -> Array:
        """Return squared errors (t,)."""
        return (scores[:, 0] - y) ** 2
