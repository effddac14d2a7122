"""Least squares for whole cohorts; the leading axis is the user.

Users whose Gram matrix is numerically singular have no unique solution. They are solved again by
singular values, which gives the solution of minimum norm; this is rare and slow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.compilation import DropIn
from privfed.foundation.linalg import Array
from privfed.kernels.tolerances import LEVERAGE_TOLERANCE, RANK_TOLERANCE

Flags = NDArray[np.bool_]

LOOPS = DropIn(
    "privfed.kernels.compiled.least_squares",
    seconds=3.0,
    saves=lambda job: 5e-10 * job.users * job.m * (job.d + job.m * job.m),
)
BLOCK = 1 << 18
"""Numbers of A that are processed at a time, so that intermediate results stay in cache."""


def contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous array; single precision is kept, everything else becomes double."""
    return np.ascontiguousarray(array, None if array.dtype == np.float32 else np.float64)


def predictions(X: NDArray[Any], W: Array) -> Array:
    """Predict every example by its user's own weights, in double precision.

    Args:
        X: (B, m, d) examples.
        W: (B, d) weights.

    Returns:
        (B, m): <x_j, w_i>.
    """
    if loops := LOOPS.chosen():
        out = np.empty(X.shape[:2])
        loops.write_predictions(X, W, out)
        return out
    return np.matmul(X.astype(np.float64, copy=False), W[..., None])[..., 0]


def lstsq(A: Array, y: Array, ridge: float = 0.0) -> Array:
    """Solve least squares for every user, with minimum norm if the solution is not unique.

    Args:
        A: (B, m, k).
        y: (B, m).
        ridge: weight of |v|^2.

    Returns:
        (B, k): argmin |A_i v - y_i|^2 + ridge |v|^2, by one factorisation of size min(m, k) per
            user.
    """
    A, y = np.ascontiguousarray(A), np.ascontiguousarray(y)
    v, ok = np.empty((len(A), A.shape[2])), np.empty(len(A), dtype=np.bool_)
    with np.errstate(all="ignore"):
        if loops := LOOPS.chosen():
            loops.write_least_squares(A, y, float(ridge), v, ok)
        else:
            size = max(1, BLOCK // max(1, A.shape[1] * A.shape[2]))
            for start in range(0, len(A), size):
                users = slice(start, start + size)
                v[users], ok[users] = _unique_solutions(A[users], y[users], ridge)
        if not ok.all():
            bad = ~ok
            v[bad] = np.matmul(_pinv(A[bad], ridge), y[bad][..., None])[..., 0]
    return v


def _unique_solutions(A: Array, y: Array, ridge: float) -> tuple[Array, Flags]:
    """Return solutions (B, k) by the smaller Gram matrix, and whether it has full rank (B,)."""
    m, k = A.shape[1:]
    AT = A.transpose(0, 2, 1)
    primal = k <= m
    G = np.matmul(AT, A) if primal else np.matmul(A, AT)
    G = G.transpose(1, 2, 0) + ridge * np.eye(len(G[0]))[..., None]
    right = np.matmul(AT, y[..., None])[..., 0] if primal else y
    G, targets = in_company(G), in_company(right.T)
    L, margin = factor(G, RANK_TOLERANCE)
    x, margin = backward(L, forward(L, targets)).T[: len(A)], margin[: len(A)]
    return (x if primal else np.matmul(AT, x[..., None])[..., 0]), margin > 0


def leave_one_out_heads(P: Array, y: Array) -> Array:
    """Fit every user's heads v_(-j) without example j, with minimum norm if they are not unique.

    All m heads of a user come from one factorisation P^T P = L L^T. With w_j = L^-1 p_j, z = sum_j
    w_j y_j and e_j = (y_j - w_j^T z) / (1 - |w_j|^2), where |w_j|^2 is the leverage of example j,
    the head is v_(-j) = L^-T (z - w_j e_j).

    Args:
        P: (B, m, k) projected examples.
        y: (B, m) targets.

    Returns:
        (B, m, k).
    """
    with np.errstate(all="ignore"):
        if P.shape[1] <= P.shape[2]:
            return _refitted(P, y)
        columns = in_company(np.ascontiguousarray(P.transpose(2, 1, 0)))  # (k, m, B)
        targets = in_company(y.T)  # (m, B)
        G = np.stack([[np.sum(p * q, axis=0) for q in columns] for p in columns])
        L, margin = factor(G, LEVERAGE_TOLERANCE)
        w = forward(L, columns)
        z = np.sum(w * targets, axis=1)
        slack = 1.0 - np.sum(w * w, axis=0)
        e = (targets - np.sum(w * z[:, None], axis=0)) / slack
        V = np.ascontiguousarray(backward(L, z[:, None] - w * e).transpose(2, 1, 0))
        bad = ~((margin > 0) & (np.min(slack, axis=0) > LEVERAGE_TOLERANCE))
        V, bad = V[: len(P)], bad[: len(P)]
        if bad.any():
            V[bad] = _refitted(P[bad], y[bad])
    return V


def _refitted(P: Array, y: Array) -> Array:
    """Return heads v_(-j) (B, m, k) by one plain fit per j."""
    m = y.shape[1]
    kept = [np.arange(m) != j for j in range(m)]
    return np.stack([lstsq(P[:, others], y[:, others]) for others in kept], axis=1)


def in_company(x: Array) -> Array:
    """Return x (..., B), with a user who is alone (B = 1) twice.

    NumPy adds up in another order where the last axis has length 1. Whether a user is alone in a
    block may depend on other users, whose data must not change a single bit of this user's part.
    """
    return np.repeat(x, 2, axis=-1) if x.shape[-1] == 1 else x


def factor(G: Array, tolerance: float) -> tuple[Array, Array]:
    """Factorise the users' Gram matrices G = L L^T.

    Args:
        G: (k, k, B), the user last.
        tolerance: fraction of the largest diagonal entry that every pivot has to exceed.

    Returns:
        L (k, k, B), with *reciprocals* on the diagonal, and by how much the smallest pivot exceeds
            its limit (B,). It is positive only if G is finite and of full rank.
    """
    k = len(G)
    L = np.zeros(G.shape)
    limit = tolerance * np.max(np.diagonal(G), axis=1)  # of each user's largest diagonal entry
    margin = np.full(G.shape[2], np.inf)
    for a in range(k):
        column = G[a:, a]
        if a:
            column = column - np.einsum("bcn,cn->bn", L[a:, :a], L[a, :a])
        margin = np.minimum(margin, column[0] - limit)
        L[a, a] = 1.0 / np.sqrt(column[0])
        L[a + 1 :, a] = column[1:] * L[a, a]
    return L, margin


def forward(L: Array, b: Array) -> Array:
    """Solve L x = b for every user: L (k, k, B) by `factor`, b (k, ..., B) -> (k, ..., B)."""
    x = np.empty(b.shape)
    for a in range(len(b)):
        rest = b[a] - np.einsum("cn,c...n->...n", L[a, :a], x[:a]) if a else b[a]
        x[a] = rest * L[a, a]
    return x


def backward(L: Array, b: Array) -> Array:
    """Solve L^T x = b for every user: L (k, k, B) by `factor`, b (k, ..., B) -> (k, ..., B)."""
    x = np.empty(b.shape)
    x[-1] = b[-1] * L[-1, -1]
    for a in range(len(b) - 2, -1, -1):
        x[a] = (b[a] - np.einsum("cn,c...n->...n", L[a + 1 :, a], x[a + 1 :])) * L[a, a]
    return x


def _pinv(A: Array, ridge: float) -> Array:
    """Return (A^T A + ridge I)^+ A^T per user, by singular values; zero if A is not finite."""
    A = np.where(np.isfinite(A).all(axis=(1, 2), keepdims=True), A, 0.0)
    P, s, Qt = np.linalg.svd(A, full_matrices=False)
    tiny = s <= math.sqrt(RANK_TOLERANCE) * s[:, :1]
    inverse = np.where(tiny, 0.0, s / np.where(tiny, 1.0, s * s + ridge))
    return np.matmul(Qt.transpose(0, 2, 1) * inverse[:, None, :], P.transpose(0, 2, 1))
