"""Published linear representation, with which users predict after training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from privfed.foundation.linalg import Array
from privfed.models.personal_predictors import personal_predictors


@dataclass(frozen=True)
class LinearModel:
    """Published linear representation with the methods of a `TableModel`.

    Rows are numbers without encoding, and there is no global model. A head is the user's whole
    predictor w (d, 1): it need not lie in U.

    Attributes:
        shared: published arrays: U (d, k), and what is known about heads and the spread.
        safety: whether users mix the federated predictor with their own, as in training.
    """

    shared: tuple[Array, ...]
    safety: bool = False

    @property
    def U(self) -> Array:
        """The embedding, (d, k)."""
        return self.shared[0]

    def rows(self, numbers: Any, codes: Any = None) -> Array:
        """Return the rows as they are, (..., d)."""
        return np.asarray(numbers, dtype=np.float64)

    def targets(self, y: Array) -> Array:
        """Return targets y (...) with an axis for outputs, (..., 1)."""
        return np.asarray(y, dtype=np.float64)[..., None]

    def base(self, X: Array) -> Array:
        """Return the prediction without a head: 0, (..., 1)."""
        return np.zeros((*X.shape[:-1], 1))

    def fit(self, X: Array, Y: Array) -> Array:
        """Return predictors (B, d, 1) of users with rows X (B, m, d) and targets Y (B, m, 1)."""
        return personal_predictors(self.shared, X, Y[..., 0], self.safety)[..., None]

    def left_out(self, X: Array, Y: Array) -> Array:
        """Return the predictions of heads fitted without the row, (B, m, 1).

        They are NaN if the other rows do not determine a least-squares head.
        """
        if len(self.shared) == 1 and not self.safety:
            return self._left_out_of_least_squares(X, Y)
        m = X.shape[1]
        told = np.full(Y.shape, math.nan)
        for j in range(m if m > 1 else 0):
            others = np.arange(m) != j
            w = self.fit(X[:, others], Y[:, others])
            told[:, j] = np.matmul(X[:, j, None, :], w)[:, 0]
        return told

    def _left_out_of_least_squares(self, X: Array, Y: Array) -> Array:
        P = X @ self.U
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
            V: predictor of each row's user, (t, d, 1), or one for all rows, (d, 1).
        """
        return np.matmul(X[:, None, :], V)[:, 0]

    def answers(self, scores: Array) -> Array:
        """Return predictions (t,) from scores (t, 1)."""
        return scores[:, 0]

    def losses(self, scores: Array, y: Array) -> Array:
        """Return squared errors (t,)."""
        return (scores[:, 0] - y) ** 2
