"""Linear representation and linear head: user i predicts <x, U v_i>."""

from __future__ import annotations

from privfed.kernels import lstsq
from privfed.linalg import Array


def fit_heads(U: Array, X: Array, y: Array) -> Array:
    """Every user's head by (minimum-norm) least squares. U (d, k), X (B, m, d), y (B, m) -> V (B, k)."""
    B, m, d = X.shape
    return lstsq((X.reshape(-1, d) @ U).reshape(B, m, -1), y)
