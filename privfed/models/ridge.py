"""Ridge smoothers for many users at once, with their leave-one-out errors in closed form.

    F (B, m, q)   features of a user's m rows          lam (B,)   strength of the ridge
    A             = (I + F F^T / lam)^-1 (m, m), which takes targets to residuals
    l0            strength with which an offset is held at 0; 0 leaves it free
    M             = (I + F F^T / lam + 1 1^T / l0)^-1 = A - A 1 1^T A / (l0 + 1^T A 1)

The residual of row j under the fit without row j is (M r)_j / M_jj. A is never formed: one
eigendecomposition of size min(m, q) per user serves every strength, and an offset of any strength
is a correction of rank one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privfed.foundation.linalg import Array


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
class Smoothed:
    """Residuals of one smoother A.

    Attributes:
        lam: strengths, (B,); infinite without features.
        residuals: A V for the columns V it was applied to, (B, m, v).
        rest: diagonal of A, (B, m).
    """

    lam: Array
    residuals: Array
    rest: Array


def without_features(V: Array) -> Smoothed:
    """Return V (B, m, v) as the residuals of the smoother that has no features, A = I."""
    return Smoothed(np.full(len(V), np.inf), V, np.ones(V.shape[:2]))


def smooth(
    F: Array, strengths: tuple[float, ...], V: Array, unit: Array | None = None
) -> list[Smoothed]:
    """Apply one smoother per strength to several columns.

    Args:
        F: features, (B, m, q).
        strengths: strengths, in units of `unit`.
        V: columns, (B, m, v).
        unit: unit (B,) of strengths; None: the mean square of a user's rows of features.
    """
    dual = F.shape[1] < F.shape[2]
    G = np.matmul(F, F.transpose(0, 2, 1)) if dual else np.matmul(F.transpose(0, 2, 1), F)
    values, E = np.linalg.eigh(G)
    values = np.maximum(values, 0.0)
    # In the eigenbasis A = I - T diag(f) T^T with f = 1 / (values + lam); dual: values / (...).
    T = E if dual else np.matmul(F, E)
    inner, squares = np.matmul(T.transpose(0, 2, 1), V), T * T
    unit = lengths(F) if unit is None else unit
    smoothed = []
    for strength in strengths:
        lam = strength * unit
        f = ((values if dual else 1.0) / (values + lam[:, None]))[:, :, None]
        residuals = V - np.matmul(T, f * inner)
        smoothed.append(Smoothed(lam, residuals, 1.0 - np.matmul(squares, f)[:, :, 0]))
    return smoothed


def with_offset(fit: Smoothed, r: Array, a: Array, l0: float) -> tuple[Array, Array]:
    """Return offsets and leave-one-out residuals of a fit with an offset of strength l0.

    Args:
        fit: the smoother A.
        r: A applied to targets, (B, m, C).
        a: A applied to ones, (B, m).
        l0: strength that holds the offset at 0.

    Returns:
        Offsets c (B, C), and residuals e (B, m, C) of each row under the fit without it. A row
        that alone determines the fit (M_jj = 0) keeps its residual before the offset.
    """
    whole = np.maximum(l0 + np.sum(a, axis=1), 1e-12)
    c = np.sum(r, axis=1) / whole[:, None]
    rest = fit.rest - a * a / whole[:, None]
    known = rest[:, :, None] > 1e-6
    e = np.divide(r - a[:, :, None] * c[:, None, :], rest[:, :, None], out=r.copy(), where=known)
    return c, e
