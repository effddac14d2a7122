"""Dense linear algebra of the server: retractions, singular vectors, subspace distances."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def polar(M: Array) -> Array:
    """Return the nearest matrix with orthonormal columns to M (d, k)."""
    left, _, right = np.linalg.svd(M, full_matrices=False)
    return np.ascontiguousarray(left @ right)


def retraction(M: Array) -> Array:
    """Return the factor Q of M = QR (d, k), orthonormal, with a positive diagonal of R."""
    Q, R = np.linalg.qr(M)
    return np.ascontiguousarray(Q * np.where(np.diag(R) < 0, -1.0, 1.0))


def top_eigenvectors(S: Array, k: int) -> Array:
    """Return k eigenvectors of symmetric S (d, d), of the largest absolute eigenvalues: (d, k).

    Signs are fixed: the largest entry of each is positive.
    """
    values, vectors = np.linalg.eigh(S)
    Q = vectors[:, np.argsort(-np.abs(values), kind="stable")[:k]]
    signs = np.sign(Q[np.argmax(np.abs(Q), axis=0), np.arange(k)])
    return np.ascontiguousarray(Q * signs)


def top_singular(L: Array, r: int) -> tuple[Array, Array, Array]:
    """Return the rank-r SVD of L (d1, d2), signs fixed: U (d1, r), S (r,) decreasing, V (d2, r)."""
    U, S, Vt = np.linalg.svd(L, full_matrices=False)
    U, V = U[:, :r], Vt[:r].T
    signs = np.sign(U[np.argmax(np.abs(U), axis=0), np.arange(r)])
    return np.ascontiguousarray(U * signs), S[:r], np.ascontiguousarray(V * signs)


def low_rank_retraction(
    U: Array, S: Array, V: Array, A: Array, B: Array, C: Array
) -> tuple[Array, Array, Array]:
    """Return the rank-r SVD of M + xi, for M = U diag(S) V^T and a tangent vector xi.

    xi = U A V^T + U B + C V^T. M + xi has rank at most 2r, since it is
    [U C] [[diag(S) + A, I], [I, 0]] [V B^T]^T. Two thin QRs leave a core of 2r x 2r, and its SVD
    is that of M + xi.

    Args:
        U: (d1, r), orthonormal.
        S: (r,).
        V: (d2, r), orthonormal.
        A: (r, r).
        B: (r, d2).
        C: (d1, r).

    Returns:
        The new U, S, V.
    """
    r = len(S)
    Q_left, R_left = np.linalg.qr(np.hstack([U, C]))
    Q_right, R_right = np.linalg.qr(np.hstack([V, B.T]))
    core = np.block([[np.diag(S) + A, np.eye(r)], [np.eye(r), np.zeros((r, r))]])
    left, values, right = top_singular(R_left @ core @ R_right.T, r)
    return Q_left @ left, values, Q_right @ right


def dist(U: Array, U_star: Array) -> float:
    """Return the sine of the largest principal angle of two orthonormal bases (d, k).

    It is the spectral norm |(I - U U^T) U*|_2.
    """
    return float(np.linalg.norm(U_star - U @ (U.T @ U_star), 2))


@cache
def _triangle(d: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    rows, cols = np.triu_indices(d)
    return rows, cols, np.where(rows == cols, 1.0, np.sqrt(2.0))


def svec(S: Array) -> Array:
    """Return the isometric half-vectorisation of symmetric S (d, d), of length d (d + 1) / 2.

    |svec(S)|_2 = |S|_F.
    """
    rows, cols, weight = _triangle(S.shape[0])
    return S[rows, cols] * weight


def unsvec(s: Array, d: int) -> Array:
    """Return the inverse of :func:`svec`, (d, d).

    Noise of standard deviation sigma on s becomes sigma on the diagonal and sigma / sqrt(2) off it.
    """
    rows, cols, weight = _triangle(d)
    S = np.zeros((d, d))
    S[rows, cols] = s / weight
    S[cols, rows] = S[rows, cols]
    return S
