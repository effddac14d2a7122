"""Obviously right code for users with rows of a table, one user and one row at a time."""

from __future__ import annotations

import math

import numpy as np

from privfed.models.ridge import DECADES, STRENGTHS, USUAL


def ridge(X, R, lam):
    """The minimiser of |R - X V|^2 + lam |V|^2: (q, C)."""
    return np.linalg.solve(X.T @ X + lam * np.eye(X.shape[1]), X.T @ R)


def without(X, R, j, lam):
    """The same without row j."""
    return ridge(np.delete(X, j, axis=0), np.delete(R, j, axis=0), lam)


def left_out(X, R, lam, centre=False):
    """Residual of every row under the fit without it: (m, C).

    centre: rows and targets less the means of the others.
    """
    residuals = []
    for j in range(len(X)):
        others = [i for i in range(len(X)) if i != j]
        x0, r0 = (X[others].mean(axis=0), R[others].mean(axis=0)) if centre else (0.0, 0.0)
        residuals.append(R[j] - r0 - (X[j] - x0) @ ridge(X[others] - x0, R[others] - r0, lam))
    return np.array(residuals)


def strength(X, R, unit, centre=False):
    """The best lam by m log(error of left-out rows) and the prior; the strongest if several tie."""
    best = None
    for s in sorted(STRENGTHS, reverse=True):
        error = np.sum(left_out(X, R, s * unit, centre) ** 2) / len(X)
        score = len(X) * math.log(error) + (math.log10(s / USUAL) / DECADES) ** 2
        if best is None or score < best[0] - 1e-9:
            best = (score, s * unit)
    return best[1]


def encoded(model, numbers, codes):
    """X (m, d): numbers in their units within +-4 (0: missing), missing flags, one-hot choices."""
    rows = []
    for values, picks in zip(numbers, codes, strict=True):
        row = []
        for v, centre, spread in zip(values, model.centre, model.spread, strict=False):
            row.append(0.0 if np.isnan(v) else float(np.clip((float(v) - centre) / spread, -4, 4)))
        if model.schema.missing == "indicator":
            row += [float(np.isnan(v)) for v in values]
        for pick, size in zip(picks, model.schema.sizes, strict=True):
            row += [float(pick == value) for value in range(size)]
        rows.append(row)
    return np.array(rows)


def targets(model, y):
    """Y (m, C)."""
    classes = model.schema.classes
    if not classes:
        return np.array([[np.clip((t - model.centre[-1]) / model.spread[-1], -8, 8)] for t in y])
    if classes == 2:
        return np.array([[1.0 if t == 1 else -1.0] for t in y])
    return np.array([[(t == c) - 1 / classes for c in range(classes)] for t in y])


def rest(model, numbers, codes, y):
    """Encoded rows, and what the global model leaves over."""
    X = encoded(model, numbers, codes)
    return X, targets(model, y) - model.w[0] - X @ model.w[1:]


def shares(places, size):
    """How many of a user's m rows lie in each place, as shares of all of them; None: nowhere."""
    counts = np.zeros(size)
    for place in places:
        if place is not None:
            counts[min(max(place, 0), size - 1)] += 1 / len(places)
    return counts


def magnitudes(columns, bottom, size):
    """columns (m, c): for each the shares of values by power of two."""
    return np.array(
        [
            shares(
                [
                    math.floor(math.log2(abs(v))) - bottom if v and np.isfinite(v) else None
                    for v in c
                ],
                size,
            )
            for c in columns.T
        ]
    )


def locate(columns, centre, spread, parts, ends):
    """For each column the shares of values by place in centre +- spread.

    ends: what lies outside counts there, or nowhere.
    """
    rows = []
    for column, a, b in zip(columns.T, centre, spread, strict=True):
        places = [
            math.floor((v - a + b) / (2 * b) * parts) if np.isfinite(v) else None for v in column
        ]
        rows.append(
            shares(
                [p if p is not None and (ends or 0 <= p < parts) else None for p in places], parts
            )
        )
    return np.array(rows)


def with_constant(X):
    """[constant of twice a row's length, X], the length, and the mean square of rows."""
    square = np.mean(np.sum(X * X, axis=1))
    length = 2 * math.sqrt(square)
    return np.column_stack([np.full(len(X), length), X]), length, square


def solution(X, R, strength):
    """Ridge with a constant, in the units of X: (1 + d, C)."""
    F, length, square = with_constant(X)
    V = ridge(F, R, strength * square)
    V[0] *= length
    return V


def second_moment(X, R, strength):
    """sum_{j != l} <r_j, r_l> sym(h_j h_l^T), h_j the part of row j in the solution: (d, d)."""
    F, _, square = with_constant(X)
    H = [np.linalg.solve(F.T @ F + strength * square * np.eye(F.shape[1]), f)[1:] for f in F]
    Z = np.zeros((X.shape[1], X.shape[1]))
    for j in range(len(X)):
        for i in range(len(X)):
            if i != j:
                M = np.outer(H[j], H[i])
                Z += R[j] @ R[i] * (M + M.T) / 2
    return Z


def gradient(model, X, R):
    """Mean over rows of the gradient in U of half the squared error of the row: (d, k).

    Each row's error is under the head fitted without it.
    """
    P = X @ model.U
    length = math.sqrt(np.mean(np.sum((P * model.scale) ** 2, axis=1)))
    factors = model.scale / length
    Q = np.column_stack([np.full(len(X), 2.0), P * factors])
    lam = strength(Q, R, 1.0)
    G = np.zeros(model.U.shape)
    for j in range(len(X)):
        V = without(Q, R, j, lam)
        e = R[j] - Q[j] @ V
        G -= np.outer(X[j], (V[1:] * factors[:, None]) @ e) / len(X)
    return G
