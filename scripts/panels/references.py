"""What is reached without privacy: mixed models for columns; biases and factors for items.

    y_i = A_i (beta + b_i) + e_i,   b_i ~ N(0, D),   e_i ~ N(0, s)

is fitted by expectation and maximisation (Laird and Ware 1982) and predicts by b_i's posterior
mean. Rows of items are predicted by user and item biases, and k factors, by alternating least
squares. Strengths are chosen on a tenth of the training rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STEPS = 60
RANKS = (0, 2, 4, 8)
STRENGTHS = (3.0, 10.0)


@dataclass(frozen=True)
class Rows:
    """Rows of all users.

    Attributes:
        who: user (N,) of each row.
        X: dense columns (N, p).
        items: item (N,) of each row; empty without items.
        y: targets (N,).
    """

    who: NDArray[np.int64]
    X: Array
    items: NDArray[np.int64]
    y: Array

    def __getitem__(self, rows: NDArray[np.int64]) -> Rows:
        items = self.items[rows] if len(self.items) else self.items
        return Rows(self.who[rows], self.X[rows], items, self.y[rows])


def grouped(who: NDArray[np.int64], n: int) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Yield users (B,) with equal numbers of rows, and their rows (B, m)."""
    order = np.argsort(who, kind="stable")
    counts = np.bincount(who, minlength=n)
    starts = np.cumsum(counts) - counts
    for m in np.unique(counts[counts > 0]):
        users = np.flatnonzero(counts == m)
        yield users, order[starts[users][:, None] + np.arange(m)]


def mixed_model(train: Rows, held: Rows, n: int, full: bool) -> Array:
    """Return predictions for held-out rows of a mixed model with random slopes.

    Args:
        train: training rows.
        held: rows to predict.
        n: number of users.
        full: whether slopes correlate over users; otherwise D is diagonal.
    """
    mean, sd = train.X.mean(axis=0), np.maximum(train.X.std(axis=0), 1e-9)

    def columns(rows: Rows) -> Array:
        return np.column_stack([np.ones(len(rows.y)), np.clip((rows.X - mean) / sd, -10, 10)])

    A, y = columns(train), train.y
    level, unit = y.mean(), max(float(y.std()), 1e-12)
    y = (y - level) / unit
    P = A.shape[1]
    D, s, b = np.diag([0.3, *[0.05] * (P - 1)]), 0.5, np.zeros((n, P))
    beta = np.linalg.solve(A.T @ A + np.eye(P), A.T @ y)
    groups = [(users, A[rows], y[rows]) for users, rows in grouped(train.who, n)]
    for _ in range(STEPS):
        inverse = np.linalg.inv(D + 1e-9 * np.eye(P))
        second, squares = np.zeros((P, P)), 0.0
        left, right = 1e-6 * np.eye(P), np.zeros(P)
        for users, Ag, yg in groups:
            G = np.matmul(Ag.transpose(0, 2, 1), Ag)
            V = np.linalg.inv(G / s + inverse)
            r = yg - Ag @ beta
            bg = np.matmul(V, np.matmul(Ag.transpose(0, 2, 1), r[..., None]))[..., 0] / s
            b[users] = bg
            second += bg.T @ bg + V.sum(axis=0)
            left_over = r - np.matmul(Ag, bg[..., None])[..., 0]
            squares += float(np.sum(left_over**2) + np.sum(G * V))
            T = (G - np.matmul(G, np.matmul(V, G)) / s) / s
            left += T.sum(axis=0)
            Ay = np.matmul(Ag.transpose(0, 2, 1), yg[..., None])
            right += ((Ay - np.matmul(G, np.matmul(V, Ay)) / s) / s).sum(axis=0)[:, 0]
        known = sum(len(users) for users, _, _ in groups)
        D = second / known
        if not full:
            D = np.diag(np.diag(D))
        s = max(squares / len(y), 1e-9)
        beta = np.linalg.solve(left + 1e-4 * np.eye(P), right)
    told = np.sum(columns(held) * (beta + b[held.who]), axis=1)
    low, high = y.min(), y.max()
    return level + unit * np.clip(told, low, high)


def factors(train: Rows, held: Rows, n: int, L: int, k: int, strength: float) -> Array:
    """Return predictions of user and item biases and k factors, by alternating least squares."""
    rng = np.random.default_rng(0)
    level = train.y.mean()
    y = train.y - level
    p, q = np.zeros((n, k + 1)), np.zeros((L, k + 1))
    q[:, 1:] = 0.1 * rng.normal(size=(L, k))
    item_groups = list(grouped(train.items, L))
    user_groups = list(grouped(train.who, n))
    for _ in range(12 if k else 5):
        # The first column is the bias of the side that is solved for; the other side's is fixed.
        for mine, other, groups, far, near in (
            (p, q, user_groups, train.items, train.who),
            (q, p, item_groups, train.who, train.items),
        ):
            del near
            for who, rows in groups:
                F = other[far[rows]]
                r = y[rows] - F[..., 0]
                F = np.concatenate([np.ones((*rows.shape, 1)), F[..., 1:]], axis=2)
                G = np.matmul(F.transpose(0, 2, 1), F) + strength * np.eye(k + 1)
                mine[who] = np.linalg.solve(G, np.matmul(F.transpose(0, 2, 1), r[..., None]))[
                    ..., 0
                ]
    told = p[held.who, 0] + q[held.items, 0]
    told = told + np.sum(p[held.who, 1:] * q[held.items, 1:], axis=1)
    return level + told


def best_factors(train: Rows, held: Rows, n: int, L: int) -> Array:
    """Return predictions of biases and factors whose number and strength suit other rows best."""
    rng = np.random.default_rng(1)
    apart = rng.random(len(train.y)) < 0.1
    fit, judge = train[np.flatnonzero(~apart)], train[np.flatnonzero(apart)]

    def error(k: int, strength: float) -> float:
        return float(np.mean((factors(fit, judge, n, L, k, strength) - judge.y) ** 2))

    choices = {(k, strength): error(k, strength) for k in RANKS for strength in STRENGTHS}
    return factors(train, held, n, L, *min(choices, key=lambda pair: choices[pair]))
