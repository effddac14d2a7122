"""Batched linear algebra: small least squares for many users at once, retractions, subspace distances.

The solvers hold the *user on the last axis* (k x k x B): each step of a factorisation is then one vector operation
over all users of a block, where a library call a user would cost a microsecond each.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RANK_TOLERANCE = 1e-10
"""A Gram pivot below this fraction of the largest diagonal entry counts as zero (rank-deficient user)."""


def cholesky(A: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Lower Cholesky factors of B matrices and which of them are numerically positive definite.

    A: (k, k, B), only the lower triangle is read. Returns L (k, k, B), whose upper triangle is not set, and ok (B,).
    A matrix that is not positive definite gets pivots of 1, so that its factor is finite; do not use it.
    """
    k = A.shape[0]
    L = np.empty_like(A)
    floor = RANK_TOLERANCE * np.max(np.stack([A[j, j] for j in range(k)]), axis=0)
    ok = np.ones(A.shape[-1], dtype=bool)
    for j in range(k):
        pivot = A[j, j]
        for a in range(j):
            pivot = pivot - L[j, a] * L[j, a]
        good = pivot > floor
        ok &= good
        L[j, j] = np.sqrt(np.where(good, pivot, 1.0))
        for i in range(j + 1, k):
            s = A[i, j]
            for a in range(j):
                s = s - L[i, a] * L[j, a]
            L[i, j] = s / L[j, j]
    return L, ok


def solve_lower(L: Array, R: Array) -> Array:
    """X with L X = R. L: (k, k, B) lower triangular; R: (k, ..., B)."""
    X = np.empty_like(R)
    for i in range(L.shape[0]):
        s = R[i]
        for a in range(i):
            s = s - L[i, a] * X[a]
        X[i] = s / L[i, i]
    return X


def solve_upper(L: Array, R: Array) -> Array:
    """X with L^T X = R. L: (k, k, B) lower triangular; R: (k, ..., B)."""
    X = np.empty_like(R)
    for i in reversed(range(L.shape[0])):
        s = R[i]
        for a in range(i + 1, L.shape[0]):
            s = s - L[a, i] * X[a]
        X[i] = s / L[i, i]
    return X


def gram(P: Array) -> Array:
    """Lower triangles of P_i^T P_i for every user. P: (k, m, B) -> (k, k, B), upper triangle not set."""
    k, _, B = P.shape
    A = np.empty((k, k, B))
    for a in range(k):
        for b in range(a + 1):
            np.sum(P[a] * P[b], axis=0, out=A[a, b])
    return A


def lstsq(A: Array, y: Array, ridge: float = 0.0) -> Array:
    """Least-squares solution for every user, of minimum norm where it is not unique.

    A: (B, m, k), y: (B, m) -> (B, k), argmin |A_i v - y_i|^2 + ridge |v|^2. Users whose Gram matrix is numerically
    singular take an exact pseudo-inverse; the others two triangular solves of size min(m, k).
    """
    B, m, k = A.shape
    if B == 0:
        return np.zeros((0, k))
    primal = k <= m
    if primal:
        G = gram(np.ascontiguousarray(A.transpose(2, 1, 0)))
        r = np.matmul(y[:, None, :], A)[:, 0, :].T
    else:
        G = np.ascontiguousarray(np.matmul(A, A.transpose(0, 2, 1)).transpose(1, 2, 0))
        r = y.T
    for j in range(G.shape[0]):
        G[j, j] += ridge
    L, ok = cholesky(G)
    x = solve_upper(L, solve_lower(L, np.ascontiguousarray(r))).T
    v = x if primal else np.matmul(x[:, None, :], A)[:, 0, :]
    if not ok.all():
        bad = ~ok
        v = np.array(v)
        v[bad] = np.matmul(_pinv(A[bad], ridge), y[bad][..., None])[..., 0]
    return np.ascontiguousarray(v)


def _pinv(A: Array, ridge: float) -> Array:
    """(A^T A + ridge I)^+ A^T for B matrices of m x k, by singular values."""
    P, s, Qt = np.linalg.svd(A, full_matrices=False)
    tiny = s <= np.sqrt(RANK_TOLERANCE) * s[:, :1]
    inverse = np.where(tiny, 0.0, s / np.where(tiny, 1.0, s * s + ridge))
    return np.matmul(Qt.transpose(0, 2, 1) * inverse[:, None, :], P.transpose(0, 2, 1))


def leave_one_out(P: Array, y: Array) -> tuple[Array, Array]:
    """Every user's head without its j-th example, and that example's residual, for all j.

    P: (k, m, B) features in the shared representation, y: (m, B). Returns heads V (k, m, B) and residuals
    r_j = p_j^T v_(-j) - y_j (m, B), in closed form from one factorisation P^T P = L L^T a user: with w_j = L^-1 p_j and
    leverage h_j = |w_j|^2, r_j = -e_j / (1 - h_j) and v_(-j) = L^-T (z - w_j e_j / (1 - h_j)), where z = sum_j w_j y_j and
    e_j = y_j - w_j^T z. Users for whom a left-out fit is not unique take minimum-norm heads, example by example.
    """
    L, ok = cholesky(gram(P))
    W = solve_lower(L, P)
    z = np.sum(W * y, axis=1)
    rest = 1.0 - np.sum(W * W, axis=0)
    ok &= np.min(rest, axis=0) > RANK_TOLERANCE
    e = (y - np.sum(W * z[:, None], axis=0)) / np.where(ok, rest, 1.0)
    V = solve_upper(L, z[:, None] - W * e)
    residual = -e
    if not ok.all():
        bad = ~ok
        V[..., bad], residual[:, bad] = _leave_one_out_min_norm(P[..., bad], y[:, bad])
    return V, residual


def _leave_one_out_min_norm(P: Array, y: Array) -> tuple[Array, Array]:
    """The same by one minimum-norm fit for each left-out example: slow, for rank-deficient users only."""
    k, m, B = P.shape
    V, residual = np.empty((k, m, B)), np.empty((m, B))
    for j in range(m):
        kept = np.arange(m) != j
        V[:, j] = lstsq(P[:, kept].transpose(2, 1, 0), y[kept].T).T
        residual[j] = np.sum(P[:, j] * V[:, j], axis=0) - y[j]
    return V, residual


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
