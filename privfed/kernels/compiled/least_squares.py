"""Least squares for all users, compiled: one user at a time in cache, with no temporary arrays.

Every loop reads like the algorithm for a single user. It runs without the interpreter's lock, so
cohorts in threads run in parallel. Users whose Gram matrix is numerically singular are flagged.
"""

from __future__ import annotations

import math

import numpy as np

from privfed.foundation.compilation import compiled
from privfed.kernels.tolerances import RANK_TOLERANCE


@compiled
def dot(x, u):  # type: ignore[no-untyped-def]
    """Return <x, u> of two vectors."""
    s = 0.0
    for c in range(len(x)):
        s += x[c] * u[c]
    return s


@compiled
def _factor(G, L, tolerance):  # type: ignore[no-untyped-def]
    """Write the Cholesky factor of G (k, k) into L; return whether G has full rank.

    Only the lower triangle of G is read. The diagonal of L has *reciprocals*.
    """
    k = len(G)
    largest = 0.0
    for a in range(k):
        largest = max(largest, G[a, a])
    for a in range(k):
        for b in range(a + 1):
            s = G[a, b]
            for c in range(b):
                s -= L[a, c] * L[b, c]
            if a > b:
                L[a, b] = s * L[b, b]
            elif s > tolerance * largest:
                L[a, a] = 1.0 / math.sqrt(s)
            else:
                return False
    return True


@compiled
def _solve(L, x):  # type: ignore[no-untyped-def]
    """Replace x (k,) by the solution of L L^T x' = x."""
    k = len(x)
    for a in range(k):
        for c in range(a):
            x[a] -= L[a, c] * x[c]
        x[a] *= L[a, a]
    for a in range(k - 1, -1, -1):
        for c in range(a + 1, k):
            x[a] -= L[c, a] * x[c]
        x[a] *= L[a, a]


@compiled
def solve_all(L, v):  # type: ignore[no-untyped-def]
    """Replace every v[:, i] by the solution of L_i L_i^T x = v_i: L (k, k, n), v (k, n).

    L has reciprocals on its diagonal, as by `_factor`.
    """
    k, n = v.shape
    for a in range(k):
        for c in range(a):
            for i in range(n):
                v[a, i] -= L[a, c, i] * v[c, i]
        for i in range(n):
            v[a, i] *= L[a, a, i]
    for a in range(k - 1, -1, -1):
        for c in range(a + 1, k):
            for i in range(n):
                v[a, i] -= L[c, a, i] * v[c, i]
        for i in range(n):
            v[a, i] *= L[a, a, i]


@compiled
def _gram(A, G):  # type: ignore[no-untyped-def]
    """Write the lower triangle of A A^T for A (rows, n) into G (rows, rows)."""
    for a in range(len(A)):
        for b in range(a + 1):
            G[a, b] = dot(A[a], A[b])


@compiled
def write_least_squares(A, y, ridge, v, ok):  # type: ignore[no-untyped-def]
    """Write solutions into v (B, k), and whether the Gram matrix has full rank into ok (B,)."""
    users, m, k = A.shape
    primal = k <= m
    size = min(m, k)
    G, L, T, x = np.empty((size, size)), np.empty((size, size)), np.empty((k, m)), np.empty(size)
    for i in range(users):
        if primal:
            for j in range(m):
                for a in range(k):
                    T[a, j] = A[i, j, a]
            _gram(T, G)
            for a in range(k):
                s = 0.0
                for j in range(m):
                    s += T[a, j] * y[i, j]
                x[a] = s
        else:
            _gram(A[i], G)
            for j in range(m):
                x[j] = y[i, j]
        for a in range(size):
            G[a, a] += ridge
        ok[i] = _factor(G, L, RANK_TOLERANCE)
        if not ok[i]:
            continue
        _solve(L, x)
        if primal:
            for a in range(k):
                v[i, a] = x[a]
        else:
            for a in range(k):
                v[i, a] = 0.0
            for j in range(m):
                for a in range(k):
                    v[i, a] += x[j] * A[i, j, a]


@compiled
def write_predictions(X, W, out):  # type: ignore[no-untyped-def]
    """Write <x_j, w_i> into out (B, m): X (B, m, d), W (B, d)."""
    users, m, _ = X.shape
    for i in range(users):
        for j in range(m):
            out[i, j] = dot(X[i, j], W[i])


def prepare_least_squares(variant: str) -> None:
    """Compile the functions of this module that are used."""
    A, y = np.ones((1, 2, 1)), np.ones((1, 2))
    write_least_squares(A, y, 0.0, np.empty((1, 1)), np.empty(1, dtype=np.bool_))
    write_predictions(A.astype(np.float32), np.ones((1, 1)), np.empty((1, 2)))
