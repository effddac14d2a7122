"""Linear representation and linear head: user i predicts <x, U v_i>."""

from __future__ import annotations

import numpy as np

from privfed.kernels import lstsq
from privfed.linalg import Array

ERROR_BINS = np.linspace(-12.0, 4.0, 65)
"""Bins of log10(population error) for the picture of who gains what, in simulations."""


def fit_heads(U: Array, X: Array, y: Array) -> Array:
    """Every user's head by (minimum-norm) least squares. U (d, k), X (B, m, d), y (B, m) -> V (B, k)."""
    B, m, d = X.shape
    return lstsq((X.reshape(-1, d) @ U).reshape(B, m, -1), y)


def population_error(W: Array, W_star: Array) -> Array:
    """|w_i - w_i*|^2 a user (B,): the excess population MSE in closed form, as features have identity covariance."""
    return np.sum((W - W_star) ** 2, axis=1)
