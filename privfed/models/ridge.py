"""Ridge regression for many users at once, with a strength that each user chooses alone.

    X (B, m, q)   features        R (B, m, C)   targets, one column per output
    lam           ridge strength

Leave-one-out in closed form: with the fit V = (X^T X + lam I)^-1 X^T R and the leverage h_j = x_j^T
(X^T X + lam I)^-1 x_j, the residual of example j under the fit without it is e_j = (r_j - x_j^T V)
/ (1 - h_j), and that fit is V - (X^T X + lam I)^-1 x_j e_j^T. One eigendecomposition of size min(m,
q) per user serves every strength.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privfed.foundation.linalg import Array

STRENGTHS = tuple(2.5 * 10.0 ** (x / 2) for x in range(-8, 7))
"""Strengths that a user chooses among, in units of the mean square of a row of features."""
USUAL, DECADES = 2.5, 0.7
"""Prior of a user's strength: USUAL (features explain 30% of a target), within 10^DECADES."""


def influences(X: Array, lam: Array) -> Array:
    """Return H with rows (X^T X + lam I)^-1 x_j, so that H^T R is the ridge solution.

    The smaller of the two systems, m x m or q x q, is solved.

    Args:
        X: features, (B, m, q).
        lam: strengths, (B,).

    Returns:
        (B, m, q).
    """
    _, m, q = X.shape
    K = np.matmul(X, X.transpose(0, 2, 1)) if m <= q else np.matmul(X.transpose(0, 2, 1), X)
    K = K + lam[:, None, None] * np.eye(min(m, q))
    return np.asarray(np.linalg.solve(K, X) if m <= q else np.matmul(X, np.linalg.inv(K)))


def lengths(X: Array) -> Array:
    """Return mean_j |x_j|^2 per user, (B,), bounded away from 0."""
    return np.maximum(np.mean(np.vecdot(X, X), axis=1), 1e-12)


@dataclass(frozen=True)
class RidgeHeads:
    """Ridge heads V (B, q, C) with the strengths lam (B,) that were chosen."""

    V: Array
    lam: Array


def fit_ridge_heads(
    X: Array,
    R: Array,
    unit: Array | None = None,
    strengths: Sequence[float] = STRENGTHS,
    centre: bool = False,
) -> RidgeHeads:
    """Return every user's best ridge fit by its own leave-one-out error.

    The score of a strength is -2 log of a likelihood, m log(error), plus that of a Gaussian prior
    on the logarithm of the strength. A user with few rows stays near the usual strength.

    Args:
        X: features, (B, m, q).
        R: targets, (B, m, C).
        unit: unit of strengths, (B,); the mean square of rows if None.
        strengths: strengths to choose among.
        centre: whether rows and targets are centred, so that 1/m more of leverage goes to the
            means.
    """
    B, m, q = X.shape
    dual = m < q
    G = np.matmul(X, X.transpose(0, 2, 1)) if dual else np.matmul(X.transpose(0, 2, 1), X)
    values, E = np.linalg.eigh(G)
    values = np.maximum(values, 0.0)
    # In the eigenbasis, the fit is T diag(f) S with f = 1 / (values + lam), and leverages are T^2 f
    # (dual: values f).
    T = E if dual else np.matmul(X, E)
    S = np.matmul(T.transpose(0, 2, 1), R)
    unit = lengths(X) if unit is None else unit
    best, chosen = np.full(B, np.inf), USUAL * unit
    extra = 1.0 / m if centre else 0.0
    for strength in sorted(strengths, reverse=True):
        lam = strength * unit
        f = (values if dual else 1.0) / (values + lam[:, None])
        rest = 1.0 - extra - np.matmul(T * T, f[:, :, None])
        residuals = (R - np.matmul(T, f[:, :, None] * S)) / np.maximum(rest, 1e-9)
        loo = (
            np.sum(residuals**2, axis=(1, 2))
            / m
            * math.exp((math.log10(strength / USUAL) / DECADES) ** 2 / m)
        )
        better = loo < best * (1 - 1e-9)
        best, chosen = np.where(better, loo, best), np.where(better, lam, chosen)
    inner = S / (values + chosen[:, None])[:, :, None]
    V = np.matmul(X.transpose(0, 2, 1), np.matmul(E, inner)) if dual else np.matmul(E, inner)
    return RidgeHeads(V, chosen)


def leave_one_out_residuals(X: Array, R: Array, heads: RidgeHeads) -> tuple[Array, Array]:
    """Return leave-one-out residuals, and the rows (X^T X + lam I)^-1 x_j.

    Args:
        X: features, (B, m, q).
        R: targets, (B, m, C).
        heads: heads fitted to all rows.

    Returns:
        Residuals e (B, m, C) under fits without the example, and H (B, m, q).
    """
    q = X.shape[2]
    G = np.matmul(X.transpose(0, 2, 1), X) + heads.lam[:, None, None] * np.eye(q)
    H = np.matmul(X, np.linalg.inv(G))
    rest = 1.0 - np.vecdot(X, H)[..., None]
    return (R - np.matmul(X, heads.V)) / np.maximum(rest, 1e-9), H
