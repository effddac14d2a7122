"""Probabilities of labels: a logistic map of each user's least-squares scores.

Least-squares scores of labels estimate probabilities: with two labels coded +-1, P(second) is
(1 + s) / 2, with C labels coded one-hot minus 1/C, P(c) is s_c + 1/C, both within [0, 1]. Near 0
and 1 they are not to be trusted. A user with m rows first adds ROWS rows in which all labels are
as likely, and then has a map to logits:

    z_c    = log((1 - e) P(c) + e / C)        e = ROWS / (m + ROWS)
    logits = b z + a                          b one number, a (C,)

b and a are fitted by penalised maximum likelihood to the scores of the user's own rows, each under
the head that was fitted without that row, so that a head which is too sure of itself gets b < 1:

    -sum_j log softmax(b z_j + a)_{y_j} + (b - 1)^2 / (2 SLOPE^2) + |a|^2 / (2 SHIFT^2)

The prior is the map of least squares itself, b = 1 and a = 0, and looks at no data. The penalised
likelihood at the minimum is never worse than there, and users with few rows stay near it. The
problem is convex; Newton's method solves it for all users of a block at once.
"""

from __future__ import annotations

import numpy as np

from privfed.foundation.linalg import Array

ROWS, NO_ROWS = 2.0, 0.05
"""Rows in which all labels are as likely; and e for users without a head."""
SLOPE, SHIFT = 0.25, 0.15
"""Standard deviations of b around 1, and of a around 0, as assumed."""
STEPS, LARGEST = 12, 1.0
"""Newton steps, and the largest change of a parameter in one of them."""
MOST_SHIFTED = 12
"""Most labels whose shifts a are fitted; with more, a user's rows do not tell them."""


def identity(users: int, classes: int, ease: float = NO_ROWS) -> Array:
    """Return the maps (users, C + 2) with b = 1 and a = 0; none for numbers.

    A map has e, b and a in this order.

    Args:
        users: number of users.
        classes: number of labels C; 0 for numbers.
        ease: e of all users.
    """
    if not classes:
        return np.zeros((users, 0))
    maps = np.zeros((users, classes + 2))
    maps[:, 0], maps[:, 1] = ease, 1.0
    return maps


def log_probabilities(scores: Array, ease: Array, classes: int) -> Array:
    """Return z (..., C) of least-squares scores.

    Args:
        scores: scores (..., 1) of two labels, or (..., C) of more.
        ease: e (..., 1) of each row's user.
        classes: number of labels C.
    """
    if classes == 2:
        P = np.concatenate([1.0 - scores, 1.0 + scores], axis=-1) / 2.0
    else:
        P = scores + 1.0 / classes
    P = np.clip(np.nan_to_num(P, nan=1.0 / classes), 0.0, 1.0) + 1e-9
    P = P / P.sum(axis=-1, keepdims=True)
    return np.asarray(np.log((1.0 - ease) * P + ease / classes))


def logits(scores: Array, maps: Array, classes: int) -> Array:
    """Return logits: (..., 1) for two labels, of the second against the first; else (..., C).

    Args:
        scores: least-squares scores (..., 1 or C).
        maps: the map (..., C + 2) of each row's user.
        classes: number of labels C.
    """
    z = log_probabilities(scores, maps[..., :1], classes)
    L = maps[..., 1:2] * z + maps[..., 2:]
    return L[..., 1:] - L[..., :1] if classes == 2 else L


def probabilities(logits: Array) -> Array:
    """Return probabilities (t, C) of logits (t, 1) of two labels, or (t, C) of more."""
    if logits.shape[-1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=-1)
    P = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(P / P.sum(axis=-1, keepdims=True))


def fit(scores: Array, y: Array, classes: int) -> Array:
    """Return the maps (B, C + 2) of B users.

    Args:
        scores: least-squares scores (B, m, 1 or C), each row under the head fitted without it.
        y: labels (B, m), numbers 0..C-1.
        classes: number of labels C.
    """
    users, m = y.shape
    whole = identity(users, classes, ROWS / (m + ROWS))
    z, maps = log_probabilities(scores, whole[:, None, :1], classes), whole[:, 1:].copy()
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
    whole[:, 1:] = np.where(np.isfinite(maps), maps, whole[:, 1:])
    return whole
