"""Compiled loops over users: least squares and gradients, one user at a time in cache, with no temporary arrays.

Each kernel reads like the algorithm for a single user. Numba compiles it once (the machine code is kept beside this file) and
runs it without the interpreter's lock, so cohorts in threads really run side by side. Users whose Gram matrix is numerically
singular are flagged and done again by an exact pseudo-inverse in NumPy: rare, slow, of minimum norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from privfed.linalg import Array
from privfed.privacy.mechanisms import SLACK, Dense

RANK_TOLERANCE = 1e-10
"""A Gram pivot below this fraction of the largest diagonal entry counts as zero."""
LEVERAGE_TOLERANCE = 1e-6
"""Leave-one-out needs 1 - leverage above this, and pivots that leave it some correct digits."""

TINY = float(np.finfo(np.float64).tiny)

# Sums may be reordered (vector units), but NaN, infinity and division by zero behave as IEEE says.
compiled = njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


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
def _gram(A, G):  # type: ignore[no-untyped-def]
    """Lower triangle of A A^T for A (rows, n) into G (rows, rows)."""
    rows, n = A.shape
    for a in range(rows):
        for b in range(a + 1):
            s = 0.0
            for c in range(n):
                s += A[a, c] * A[b, c]
            G[a, b] = s


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
def _leave_one_out(X, y, P, clip, total, norms, ok):  # type: ignore[no-untyped-def]
    users, m, d = X.shape
    k = P.shape[2]
    gradient = np.empty((k, d))
    Q, W, V = np.empty((k, m)), np.empty((k, m)), np.empty((k, m))
    G, L, z, e, rest = np.empty((k, k)), np.empty((k, k)), np.empty(k), np.empty(m), np.empty(m)
    for i in range(users):
        for j in range(m):
            for a in range(k):
                Q[a, j] = P[i, j, a]
        _gram(Q, G)
        ok[i] = m > k and _factor(G, L, LEVERAGE_TOLERANCE)
        if not ok[i]:
            continue
        # w_j = L^-1 p_j; z = sum w_j y_j; e = y - fit; rest = 1 - leverage.
        for j in range(m):
            e[j] = y[i, j]
            rest[j] = 1.0
        for a in range(k):
            for j in range(m):
                W[a, j] = Q[a, j]
            for c in range(a):
                for j in range(m):
                    W[a, j] -= L[a, c] * W[c, j]
            s = 0.0
            for j in range(m):
                W[a, j] *= L[a, a]
                s += W[a, j] * y[i, j]
                rest[j] -= W[a, j] * W[a, j]
            z[a] = s
            for j in range(m):
                e[j] -= W[a, j] * s
        for j in range(m):
            if rest[j] < LEVERAGE_TOLERANCE:
                ok[i] = False
            e[j] /= rest[j]
        if not ok[i]:
            continue
        # v_(-j) = L^-T (z - w_j e_j), then the weight of x_j in the gradient: 2/m r_j v_(-j) with r_j = -e_j.
        for a in range(k - 1, -1, -1):
            for j in range(m):
                V[a, j] = z[a] - W[a, j] * e[j]
            for c in range(a + 1, k):
                for j in range(m):
                    V[a, j] -= L[c, a] * V[c, j]
            for j in range(m):
                V[a, j] *= L[a, a]
        square = 0.0
        for a in range(k):
            for j in range(m):
                V[a, j] *= -2.0 / m * e[j]
            _combine(V[a], X[i], gradient[a])
            for c in range(d):
                square += gradient[a, c] * gradient[a, c]
        if not math.isfinite(square):
            norms[i] = 0.0
            continue
        norms[i] = math.sqrt(square)
        factor = _clip_factor(norms[i], clip)
        for a in range(k):
            for c in range(d):
                total[a, c] += factor * gradient[a, c]


@compiled
def _clip_factor(norm, clip):  # type: ignore[no-untyped-def]
    """The scalar form of `mechanisms.clip_factors`."""
    bound = clip * SLACK
    factor = bound / max(norm, bound)
    return 0.0 if factor < TINY else factor


@compiled
def _combine(w, X, out):  # type: ignore[no-untyped-def]
    """out = sum_j w_j x_j, two rows at a time. w (m,), X (m, d), out (d,)."""
    m, d = X.shape
    for c in range(d):
        out[c] = 0.0
    for j in range(0, m - 1, 2):
        first, second = w[j], w[j + 1]
        for c in range(d):
            out[c] += first * X[j, c] + second * X[j + 1, c]
    if m % 2:
        for c in range(d):
            out[c] += w[m - 1] * X[m - 1, c]


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


@dataclass(frozen=True)
class LeaveOneOut:
    """The users' contributions G_i^T = (2/m) sum_j r_j v_(-j) x_j^T: each example judged by the head fitted without it.

    X: (B, m, d), y: (B, m), P = X U: (B, m, k). All m heads of a user come from one factorisation P^T P = L L^T: with
    w_j = L^-1 p_j, z = sum_j w_j y_j and e_j = (y_j - w_j^T z) / (1 - |w_j|^2), the residual is r_j = p_j^T v_(-j) - y_j = -e_j
    and the head v_(-j) = L^-T (z - w_j e_j).
    """

    X: Array
    y: Array
    P: Array

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Sum (k, d) of the gradients scaled to norm at most clip, and their norms (B,); clipping happens in the loop."""
        X, y, P = (np.ascontiguousarray(array) for array in (self.X, self.y, self.P))
        total = np.zeros((P.shape[2], X.shape[2]))
        norms, ok = np.empty(len(X)), np.empty(len(X), dtype=np.bool_)
        _leave_one_out(X, y, P, float(clip), total, norms, ok)
        if not ok.all():
            bad = ~ok
            rest, norms[bad] = Dense(self._min_norm(X[bad], y[bad], P[bad])).clipped(clip)
            total += rest
        return total, norms

    @staticmethod
    def _min_norm(X: Array, y: Array, P: Array) -> Array:
        """G_i^T (B, k, d) by one minimum-norm fit for each left-out example: for rank-deficient users only."""
        V = leave_one_out_heads(P, y)
        r = np.vecdot(P, V) - y
        return (2.0 / y.shape[1]) * np.matmul((V * r[..., None]).transpose(0, 2, 1), X)


def leave_one_out_heads(P: Array, y: Array) -> Array:
    """Heads v_(-j) fitted without example j, one plain fit each: P (B, m, k), y (B, m) -> (B, m, k)."""
    m = y.shape[1]
    kept = [np.arange(m) != j for j in range(m)]
    return np.stack([lstsq(P[:, others], y[:, others]) for others in kept], axis=1)


def two_batch_gradients(X: Array, y: Array, P: Array, head: NDArray[np.intp], other: NDArray[np.intp]) -> Array:
    """G_i^T = (2/b) sum_{j in other} r_j v x_j^T for every user, with the head v fitted on the examples in `head`.

    X: (B, m, d), y: (B, m), P = X U: (B, m, k), head: (B, b'), other: (B, b) indices of examples -> (B, k, d).
    """
    v = lstsq(np.take_along_axis(P, head[..., None], 1), np.take_along_axis(y, head, 1))
    r = np.vecdot(np.take_along_axis(P, other[..., None], 1), v[:, None, :]) - np.take_along_axis(y, other, 1)
    weights = np.zeros(y.shape)
    np.put_along_axis(weights, other, (2.0 / other.shape[1]) * r, 1)
    return v[:, :, None] * np.matmul(weights[:, None, :], X)


def _pinv(A: Array, ridge: float) -> Array:
    """(A^T A + ridge I)^+ A^T for B matrices of m x k, by singular values; zero where A has overflowed."""
    A = np.where(np.isfinite(A).all(axis=(1, 2), keepdims=True), A, 0.0)
    P, s, Qt = np.linalg.svd(A, full_matrices=False)
    tiny = s <= math.sqrt(RANK_TOLERANCE) * s[:, :1]
    inverse = np.where(tiny, 0.0, s / np.where(tiny, 1.0, s * s + ridge))
    return np.matmul(Qt.transpose(0, 2, 1) * inverse[:, None, :], P.transpose(0, 2, 1))


@cache
def prepare() -> None:
    """Load the compiled kernels, compiling them on a machine's first use, so that no round waits for it."""
    X, y = np.ones((1, 3, 1)), np.ones((1, 3))
    LeaveOneOut(X, y, X).clipped(1.0)
    lstsq(X, y)
