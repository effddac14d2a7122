"""Obviously right implementations, one user at a time, to check the batched kernels against."""

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
    return (
        sum(two_batch_gradient(X, y, U, [i for i in range(m) if i != j], [j]) for j in range(m)) / m
    )


def second_moment(X, y):
    """Z = 1/(m(m-1)) sum_{j != l} y_j y_l x_j x_l^T: (d, d)."""
    m, d = X.shape
    Z = np.zeros((d, d))
    for j in range(m):
        for i in range(m):
            if i != j:
                Z += y[j] * y[i] * np.outer(X[j], X[i])
    return Z / (m * (m - 1))


def pair_moment(X, y, zeta):
    """Mean over consecutive pairs of sym(clip(y_1) clip(y_2) x_1 x_2^T / (|x_1| |x_2|)): (d, d)."""
    pairs = [(2 * q, 2 * q + 1) for q in range(len(X) // 2)]
    W = np.zeros((X.shape[1], X.shape[1]))
    for a, b in pairs:
        M = np.outer(X[a], X[b]) / np.linalg.norm(X[a]) / np.linalg.norm(X[b])
        M *= np.clip(y[a], -zeta, zeta) * np.clip(y[b], -zeta, zeta)
        W += (M + M.T) / 2 / len(pairs)
    return W


def power_products(X, y, copies, centre):
    """M X_c for every copy, side by side: (d, T_0 k)."""
    d = X.shape[1]
    M = sum(
        t * t * (np.outer(x, x) - (np.eye(d) if centre else 0.0)) for x, t in zip(X, y, strict=True)
    ) / len(X)
    return np.concatenate([M @ copy for copy in copies], axis=1)


def moments(X, y, U, head_rows, rows, residuals, eta_c=None, zeta=None):
    """Mean of W W^T and of r W over `rows`: (kd, kd), (kd,).

    The head of example j is fitted on head_rows(j).
    """
    A, b = 0.0, 0.0
    for j in rows:
        kept = head_rows(j)
        v = min_norm(X[kept] @ U, y[kept])
        W = np.outer(v, X[j]).ravel()
        W = W if eta_c is None else clip(W, eta_c)
        r = y[j] - W @ U.T.ravel() if residuals else y[j]
        r = r if zeta is None else np.clip(r, -zeta, zeta)
        A, b = A + np.outer(W, W) / len(rows), b + r * W / len(rows)
    return A, b


def clip(M, bound):
    norm = np.linalg.norm(M)
    return M if norm <= bound else M * (bound / norm)


def tangent_gradient(X, y, U, S, V):
    """P_T of the gradient of 1/2 mean_j (<X_j, M> - y_j)^2 at M = U diag(S) V^T: (d1, d2)."""
    M = U @ np.diag(S) @ V.T
    G = sum(
        (np.sum(x.reshape(M.shape) * M) - target) * x.reshape(M.shape)
        for x, target in zip(X, y, strict=True)
    ) / len(X)
    return U @ U.T @ G + G @ V @ V.T - U @ U.T @ G @ V @ V.T
