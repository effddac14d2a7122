"""Obviously right code for users with rows of a table, one user and one row at a time."""

from __future__ import annotations

import math

import numpy as np


def ridge(X, R, lam):
    """The minimiser of |R - X V|^2 + sum_c lam_c |V_c|^2: (q, C); lam is a number or (q,)."""
    penalty = np.diag(np.broadcast_to(np.asarray(lam, dtype=float), X.shape[1]))
    return np.linalg.lstsq(X.T @ X + penalty, X.T @ R, rcond=None)[0]


def left_out(F, Y, lam, l0):
    """Residual of every row under the fit of an offset and slopes without it: (m, C).

    A row without others, whose offset is free, keeps its target.
    """
    residuals = []
    for j in range(len(Y)):
        others = [i for i in range(len(Y)) if i != j]
        A = np.column_stack([np.ones(len(others)), F[others]])
        V = ridge(A, Y[others], [min(l0, 1e12)] + [lam] * F.shape[1])
        residuals.append(Y[j] - np.concatenate([[1.0], F[j]]) @ V)
    return np.array(residuals)


def encoded(model, numbers, codes, centre=None, spread=None):
    """X (m, d): numbers in their units within +-8 (0: missing), missing flags, one-hot choices."""
    centre = model.centre if centre is None else centre
    spread = model.spread if spread is None else spread
    rows = []
    for values, picks in zip(numbers, codes, strict=True):
        row = []
        for place, feature in enumerate(model.schema.numbers):
            v = float(values[place])
            if np.isnan(v) or spread[place] == 0:
                row.append(0.0)
                continue
            if feature.bounds is not None:
                v = min(max(v, feature.bounds[0]), feature.bounds[1])
            row.append(min(max((v - centre[place]) / spread[place], -8.0), 8.0))
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
        return np.array([[(t - model.centre[-1]) / model.spread[-1]] for t in y])
    if classes == 2:
        return np.array([[1.0 if t == 1 else -1.0] for t in y])
    return np.array([[(t == c) - 1 / classes for c in range(classes)] for t in y])


def rest(model, numbers, codes, y):
    """Encoded rows, and what the global model leaves over of targets within +-4."""
    X = encoded(model, numbers, codes)
    return X, np.clip(targets(model, y), -4, 4) - model.w[0] - X @ model.w[1:]


def shares(places, size, known):
    """How a user's values that count are spread over places, as shares; None: does not count.

    The last share is 1 if no value is known.
    """
    counts, seen = np.zeros(size + 1), [place for place in places if place is not None]
    counts[size] = not known
    for place in seen:
        counts[min(max(place, 0), size - 1)] += 1 / len(seen)
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
                any(v and np.isfinite(v) for v in c),
            )
            for c in columns.T
        ]
    )


def locate(columns, centre, spread, parts, ends):
    """For each column the shares of values by place in centre +- spread.

    ends: what lies outside counts there, or nowhere. Zeros never count.
    """
    rows = []
    for column, a, b in zip(columns.T, centre, spread, strict=True):
        places = [
            math.floor((v - a + b) / (2 * b) * parts) if v and np.isfinite(v) else None
            for v in column
        ]
        rows.append(
            shares(
                [p if p is not None and (ends or 0 <= p < parts) else None for p in places],
                parts,
                any(p is not None for p in places),
            )
        )
    return np.array(rows)


def partly_centred(A):
    """Rows less a part of their mean, as generalised least squares for random intercepts has it."""
    m = len(A)
    return np.array([row - (1 - math.sqrt(10 / (m + 10))) * A.mean(axis=0) for row in A])


def curvature(model, X):
    """f A^T A with f = 1 / (|A^T A| + 5), and A: rows [1, x] of the dense columns."""
    A = partly_centred(np.column_stack([np.ones(len(X)), X[:, model.schema.dense]]))
    G = A.T @ A
    f = 1 / (np.linalg.norm(G) + 5)
    return f * G, f, A


def gradient(model, X, R, W):
    """W A^T R f / sqrt(P)."""
    _, f, A = curvature(model, X)
    return W @ (A.T @ partly_centred(R)) * f / math.sqrt(len(W))


def counts(model, X):
    """The user's number of rows per item, over the length of that vector."""
    c = X[:, model.schema.items].sum(axis=0)
    return c / max(np.linalg.norm(c), 1.0)


def sums(model, X, R):
    """Residuals added up per item, over the length of the vector of counts: (L, C)."""
    items = X[:, model.schema.items]
    return items.T @ partly_centred(R) / max(np.linalg.norm(items.sum(axis=0)), 1.0)


def second_moment(X, R, strength):
    """sum_{j != l} <r_j, r_l> sym(h_j h_l^T), h_j the part of row j in the solution: (d, d).

    Rows and residuals are taken around their means.
    """
    X, R = X - X.mean(axis=0), R - R.mean(axis=0)
    lam = strength * max(np.mean(np.sum(X * X, axis=1)), 1e-12)
    H = [np.linalg.solve(X.T @ X + lam * np.eye(X.shape[1]), x) for x in X]
    Z = np.zeros((X.shape[1], X.shape[1]))
    for j in range(len(X)):
        for i in range(len(X)):
            if i != j:
                M = np.outer(H[j], H[i])
                Z += R[j] @ R[i] * (M + M.T) / 2
    return Z


def factors(model, X, R):
    """sum_c h_c h_c^T, h the residuals per item over the number of rows with it plus 1: (L, L)."""
    items = X[:, model.schema.items]
    R = R - R.mean(axis=0) * len(R) / (len(R) + 1)
    h = (items.T @ R) / (items.sum(axis=0) + 1)[:, None]
    return h @ h.T


def candidates(model, numbers, codes, y):
    """Leave-one-out residuals (m, C) of every way to predict, in the order of the families."""
    from privfed.models.table_heads import families

    X = encoded(model, numbers, codes)
    Y, base = targets(model, y) - model.w[0], X @ model.w[1:]
    centre, spread = [], []
    for place, feature in enumerate(model.schema.numbers):
        values = np.array([v for v in numbers[:, place] if np.isfinite(v)] or [0.0])
        centre.append(values.mean())
        own = values.std() if values.std() > 1e-12 * abs(values.mean()) else 0.0
        spread.append(own if feature.bounds is None else model.spread[place])
    own = encoded(model, numbers, codes, centre, spread)[:, model.schema.dense]
    features = {
        "own columns": own - own.mean(axis=0),
        "slopes": X[:, model.schema.dense],
        "directions": (X @ model.U) * model.scale,
        "effects": model.effects[0] + X @ model.effects[1:],
    }
    residuals = []
    for family in families(model):
        F = features.get(family.name, np.zeros((len(y), 0)))
        unit = max(np.mean(np.sum(F * F, axis=1)), 1e-12) if F.size else 1.0
        unit = 1.0 if family.name == "effects" else unit
        for strength in family.strengths or (1.0,):
            for l0 in family.offsets:
                for trust in family.trusts:
                    residuals.append(left_out(F, Y - trust * base, strength * unit, l0))
    return residuals
