"""Obviously right implementations, one user at a time, that the batched kernels are checked against."""

from __future__ import annotations

import numpy as np

RCOND = 1e-5


def min_norm(A, y):
    return np.linalg.lstsq(A, y, rcond=RCOND)[0]


def two_batch_gradient(X, y, U, head, other):
    """grad_U of mean_{j in other} (y_j - <x_j, U v>)^2 with v fitted on `head`: (d, k)."""
    v = min_norm(X[head] @ U, y[head])
    G = np.zeros_like(U)
    for j in other:
        G += (2 / len(other)) * (X[j] @ U @ v - y[j]) * np.outer(X[j], v)
    return G


def leave_one_out_gradient(X, y, U):
    """Mean over j of the gradient on example j at the head fitted without it: (d, k)."""
    m = len(X)
    return sum(two_batch_gradient(X, y, U, [i for i in range(m) if i != j], [j]) for j in range(m)) / m


def second_moment(X, y):
    """Z = 1/(m(m-1)) sum_{j != l} y_j y_l x_j x_l^T: (d, d)."""
    m, d = X.shape
    Z = np.zeros((d, d))
    for j in range(m):
        for i in range(m):
            if i != j:
                Z += y[j] * y[i] * np.outer(X[j], X[i])
    return Z / (m * (m - 1))


def clip(M, bound):
    norm = np.linalg.norm(M)
    return M if norm <= bound else M * (bound / norm)


def tangent_gradient(X, y, U, S, V):
    """P_T of the gradient of 1/2 mean_j (<X_j, M> - y_j)^2 at M = U diag(S) V^T: (d1, d2)."""
    M = U @ np.diag(S) @ V.T
    G = sum((np.sum(x.reshape(M.shape) * M) - target) * x.reshape(M.shape) for x, target in zip(X, y, strict=True)) / len(X)
    return U @ U.T @ G + G @ V @ V.T - U @ U.T @ G @ V @ V.T
