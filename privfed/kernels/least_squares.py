"""Compiled loops over users: least squares, one user at a time in cache, with no temporary arrays.

Each kernel reads like the algorithm for a single user. Numba compiles it once (the machine code is kept beside this file) and
runs it without the interpreter's lock, so cohorts in threads really run side by side. Users whose Gram matrix is numerically
singular are flagged and done again by an exact pseudo-inverse in NumPy: rare, slow, of minimum norm.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.compilation import compiled
from privfed.foundation.linalg import Array

RANK_TOLERANCE = 1e-10
"""A Gram pivot below this fraction of the largest diagonal entry counts as zero."""

TINY = float(np.finfo(np.float64).tiny)


@compiled
def dot(x, u):  # type: ignore[no-untyped-def]
    """<x, u> of vectors, for compiled code."""
    s = 0.0
    for c in range(len(x)):
        s += x[c] * u[c]
    return s


@compiled
def _factor(G, L, tolerance):  # type: ignore[no-untyped-def]
    """Cholesky of the lower triangle of G (k, k) into L, with *reciprocals* on L's diagonal; whether G has full rank."""
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
    """Replace every v[:, i] by the solution of L_i L_i^T x = v_i, side by side: L (k, k, n) as of `_factor`, v (k, n)."""
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
    """Lower triangle of A A^T for A (rows, n) into G (rows, rows)."""
    for a in range(len(A)):
        for b in range(a + 1):
            G[a, b] = dot(A[a], A[b])


@compiled
def _lstsq(A, y, ridge, v, ok):  # type: ignore[no-untyped-def]
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
def _predictions(X, W, out):  # type: ignore[no-untyped-def]
    users, m, _ = X.shape
    for i in range(users):
        for j in range(m):
            out[i, j] = dot(X[i, j], W[i])


def contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers one after the other, as compiled loops take them: single precision stays, all else becomes double."""
    return np.ascontiguousarray(array, None if array.dtype == np.float32 else np.float64)


def predictions(X: NDArray[Any], W: Array) -> Array:
    """<x_j, w_i> for every user and example: X (B, m, d), W (B, d) -> (B, m), in double precision."""
    out = np.empty(X.shape[:2])
    _predictions(X, W, out)
    return out


def lstsq(A: Array, y: Array, ridge: float = 0.0) -> Array:
    """Least-squares solution for every user, of minimum norm where it is not unique.

    A: (B, m, k), y: (B, m) -> (B, k), argmin |A_i v - y_i|^2 + ridge |v|^2, by one factorisation of size min(m, k) a user.
    """
    v, ok = np.empty((len(A), A.shape[2])), np.empty(len(A), dtype=np.bool_)
    _lstsq(np.ascontiguousarray(A), np.ascontiguousarray(y), float(ridge), v, ok)
    if not ok.all():
        bad = ~ok
        v[bad] = np.matmul(_pinv(A[bad], ridge), y[bad][..., None])[..., 0]
    return v


def leave_one_out_heads(P: Array, y: Array) -> Array:
    """Heads v_(-j) fitted without example j, one plain fit each: P (B, m, k), y (B, m) -> (B, m, k)."""
    m = y.shape[1]
    kept = [np.arange(m) != j for j in range(m)]
    return np.stack([lstsq(P[:, others], y[:, others]) for others in kept], axis=1)


def _pinv(A: Array, ridge: float) -> Array:
    """(A^T A + ridge I)^+ A^T for B matrices of m x k, by singular values; zero where A has overflowed."""
    A = np.where(np.isfinite(A).all(axis=(1, 2), keepdims=True), A, 0.0)
    P, s, Qt = np.linalg.svd(A, full_matrices=False)
    tiny = s <= math.sqrt(RANK_TOLERANCE) * s[:, :1]
    inverse = np.where(tiny, 0.0, s / np.where(tiny, 1.0, s * s + ridge))
    return np.matmul(Qt.transpose(0, 2, 1) * inverse[:, None, :], P.transpose(0, 2, 1))
