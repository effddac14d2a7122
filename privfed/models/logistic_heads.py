"""Probabilities of labels: a logistic map of each user's least-squares scores.

Least-squares scores of labels estimate probabilities: with two labels coded +-1, P(second) is
(1 + s) / 2, with C labels coded one-hot minus 1/C, P(c) is s_c + 1/C. Near 0 and 1 they are not to
be trusted. Each user therefore has a map

    logits = b z + a        z_c = log P(c) within [FLOOR, 1 - FLOOR]        b one number, a (C,)

fitted by penalised maximum likelihood to the scores of its own rows, each under the head that was
fitted without that row, so that a head which is too sure of itself gets b < 1:

    -sum_j log softmax(b z_j + a)_{y_j} + (b - 1)^2 / (2 SLOPE^2) + |a|^2 / (2 SHIFT^2)

The prior is the map of least squares itself, b = 1 and a = 0, and looks at no data. The penalised
likelihood at the minimum is never worse than there, and users with few rows stay near it. The
problem is convex; Newton's method solves it for all users of a block at once.
"""

from __future__ import annotations

import numpy as np

from privfed.foundation.linalg import Array

FLOOR = 0.02
"""Probabilities below this, or above 1 less this, are not told apart before the map."""
SLOPE, SHIFT = 0.5, 0.5
"""Standard deviations of b around 1, and of a around 0, as assumed."""
STEPS, LARGEST = 12, 1.0
"""Newton steps, and the largest change of a parameter in one of them."""
MOST_SHIFTED = 12
"""Most labels whose shifts a are fitted; with more, a user's rows do not tell them."""


def identity(users: int, classes: int) -> Array:
    """Return the maps (users, C + 1) of users without rows: b = 1, a = 0; none for numbers."""
    if not classes:
        return np.zeros((users, 0))
    maps = np.zeros((users, classes + 1))
    maps[:, 0] = 1.0
    return maps


def log_probabilities(scores: Array, classes: int) -> Array:
    """Return z (..., C) of least-squares scores (..., 1) of two labels, or (..., C) of more."""
    if classes == 2:
        P = np.concatenate([1.0 - scores, 1.0 + scores], axis=-1) / 2.0
    else:
        P = scores + 1.0 / classes
    P = np.clip(np.nan_to_num(P, nan=1.0 / classes), FLOOR / (classes - 1), 1.0 - FLOOR)
    return np.asarray(np.log(P / P.sum(axis=-1, keepdims=True)))


def logits(scores: Array, maps: Array, classes: int) -> Array:
    """Return logits: (..., 1) for two labels, of the second against the first; else (..., C).

    Args:
        scores: least-squares scores (..., 1 or C).
        maps: the map (..., C + 1) of each row's user.
        classes: number of labels C.
    """
    L = maps[..., :1] * log_probabilities(scores, classes) + maps[..., 1:]
    return L[..., 1:] - L[..., :1] if classes == 2 else L


def probabilities(logits: Array) -> Array:
    """Return probabilities (t, C) of logits (t, 1) of two labels, or (t, C) of more."""
    if logits.shape[-1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=-1)
    P = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(P / P.sum(axis=-1, keepdims=True))


def fit(scores: Array, y: Array, classes: int) -> Array:
    """Return the maps (B, C + 1) of B users.

    Args:
        scores: least-squares scores (B, m, 1 or C), each row under the head fitted without it.
        y: labels (B, m), numbers 0..C-1.
        classes: number of labels C.
    """
    z, users = log_probabilities(scores, classes), len(scores)
    maps = identity(users, classes)
    shifted = classes <= MOST_SHIFTED
    hits = y[..., None] == np.arange(classes)
    prior = np.concatenate([[SLOPE], np.full(classes * shifted, SHIFT)]) ** -2.0
    for _ in range(STEPS):
        b, a = maps[:, :1], maps[:, 1:]
        P = probabilities(b[..., None] * z + a[:, None])
        rest = hits - P
        spread = z - np.sum(P * z, axis=-1, keepdims=True)
        slope = np.sum(rest * z, axis=(1, 2))[:, None] - prior[0] * (b - 1.0)
        curvature = np.sum(P * spread * z, axis=(1, 2))[:, None, None] + prior[0]
        if shifted:
            slope = np.concatenate([slope, rest.sum(axis=1) - prior[1] * a], axis=1)
            mixed = np.sum(P * spread, axis=1)[:, None]
            inner = np.matmul(P.transpose(0, 2, 1), -P)
            inner[:, np.arange(classes), np.arange(classes)] += P.sum(axis=1) + prior[1]
            curvature = np.concatenate(
                [
                    np.concatenate([curvature, mixed], axis=2),
                    np.concatenate([mixed.transpose(0, 2, 1), inner], axis=2),
                ],
                axis=1,
            )
        change = np.linalg.solve(curvature, slope[..., None])[..., 0]
        maps[:, : change.shape[1]] += np.clip(change, -LARGEST, LARGEST)
    return np.where(np.isfinite(maps), maps, identity(users, classes))
