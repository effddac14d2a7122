"""Small dense linear algebra of the server: retractions, eigenvectors, subspace distances, half-vectorisation."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def retraction(M: Array) -> Array:
    """The orthonormal factor Q of M = QR with a positive diagonal of R. M: (d, k)."""
    Q, R = np.linalg.qr(M)
    return np.ascontiguousarray(Q * np.where(np.diag(R) < 0, -1.0, 1.0))


def top_eigenvectors(S: Array, k: int) -> Array:
    """The k eigenvectors of symmetric S (d, d) with the largest absolute eigenvalues, signs fixed. Returns (d, k)."""
    values, vectors = np.linalg.eigh(S)
    Q = vectors[:, np.argsort(-np.abs(values), kind="stable")[:k]]
    signs = np.sign(Q[np.argmax(np.abs(Q), axis=0), np.arange(k)])
    return np.ascontiguousarray(Q * signs)


def dist(U: Array, U_star: Array) -> float:
    """Sine of the largest principal angle, |(I - U U^T) U*|_2, of two orthonormal bases (d, k)."""
    return float(np.linalg.norm(U_star - U @ (U.T @ U_star), 2))


@cache
def _triangle(d: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    rows, cols = np.triu_indices(d)
    return rows, cols, np.where(rows == cols, 1.0, np.sqrt(2.0))


def svec(S: Array) -> Array:
    """Isometric half-vectorisation of symmetric S (d, d): |svec(S)|_2 = |S|_F, of length d (d + 1) / 2."""
    rows, cols, weight = _triangle(S.shape[0])
    return S[rows, cols] * weight


def unsvec(s: Array, d: int) -> Array:
    """Inverse of :func:`svec`: noise N(0, sigma^2) on s becomes sigma on the diagonal, sigma/sqrt(2) beside it."""
    rows, cols, weight = _triangle(d)
    S = np.zeros((d, d))
    S[rows, cols] = s / weight
    S[cols, rows] = S[rows, cols]
    return S
