"""Linear representation and linear head: user i predicts <x, U v_i>."""

from __future__ import annotations

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
