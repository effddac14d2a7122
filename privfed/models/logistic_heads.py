"""Probabilities of labels: a logistic map of each user's least-squares scores.

Least-squares scores of labels estimate probabilities: with two labels coded +-1, P(second) is
(1 + s) / 2, with C labels coded one-hot minus 1/C, P(c) is s_c + 1/C, both within [0, 1]. Near 0
and 1 they are not to be trusted. A user with m rows first adds ROWS rows in which all labels are
as likely, and then has a map to logits:

    z_c = log((1 - e) P(c) + e / C),  e = ROWS / (m + ROWS)        logits = b z

b is fitted by penalised maximum likelihood to the scores of the user's own rows, each under the
head that was fitted without that row, so that a head which is too sure of itself gets b < 1:

    -sum_j log softmax(b z_j)_{y_j} + (b - 1)^2 / (2 SLOPE^2)

The prior is the map of least squares itself, b = 1, and looks at no data. The penalised likelihood
at the minimum is never worse than there, and users with few rows stay near it. The map keeps the
order of labels, so it never changes an answer: the share of wrong answers is that of the scores.
The problem is convex; Newton's method solves it for all users of a block at once.
"""

from __future__ import annotations

import numpy as np

from privfed.foundation.linalg import Array

ROWS, NO_ROWS = 4.0, 0.05
"""Rows in which all labels are as likely; and e for users without a head."""
SLOPE = 0.4
"""Standard deviation of b around 1, as assumed."""
STEPS, LARGEST = 12, 1.0
"""Newton steps, and the largest change of b in one of them."""
LEAST = 0.05
"""Smallest b: with b > 0 the map keeps the order of labels."""


def identity(users: int, classes: int, ease: float = NO_ROWS) -> Array:
    """Return the maps (users, 2) of e and b with b = 1; (users, 0) for numbers.

    Args:
        users: number of users.
        classes: number of labels; 0 for numbers.
        ease: e of all users.
    """
    return np.tile([ease, 1.0], (users, 1)) if classes else np.zeros((users, 0))


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
    P = np.nan_to_num(P, nan=1.0 / classes)
    # Scores beyond [0, 1] keep their order, which no probability could tell.
    P = np.clip(P, 0.0, 1.0) + 1e-9 * np.tanh(P) + 2e-9
    P = P / P.sum(axis=-1, keepdims=True)
    return np.asarray(np.log((1.0 - ease) * P + ease / classes))


def logits(scores: Array, maps: Array, classes: int) -> Array:
    """Return logits: (..., 1) for two labels, of the second against the first; else (..., C).

    Args:
        scores: least-squares scores (..., 1 or C).
        maps: the map (..., 2) of each row's user.
        classes: number of labels C.
    """
    L = maps[..., 1:] * log_probabilities(scores, maps[..., :1], classes)
    return L[..., 1:] - L[..., :1] if classes == 2 else L


def probabilities(logits: Array) -> Array:
    """Return probabilities (t, C) of logits (t, 1) of two labels, or (t, C) of more."""
    if logits.shape[-1] == 1:
        logits = np.concatenate([np.zeros_like(logits), logits], axis=-1)
    P = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(P / P.sum(axis=-1, keepdims=True))


def fit(scores: Array, y: Array, classes: int) -> Array:
    """Return the maps (B, 2) of B users.

    Args:
        scores: least-squares scores (B, m, 1 or C), each row under the head fitted without it.
        y: labels (B, m), numbers 0..C-1.
        classes: number of labels C.
    """
    users, m = y.shape
    maps = identity(users, classes, ROWS / (m + ROWS))
    z = log_probabilities(scores, maps[:, None, :1], classes)
    hits = y[..., None] == np.arange(classes)
    b = maps[:, 1].copy()
    for _ in range(STEPS):
        P = probabilities(b[:, None, None] * z)
        slope = np.sum((hits - P) * z, axis=(1, 2)) - (b - 1.0) / SLOPE**2
        spread = z - np.sum(P * z, axis=-1, keepdims=True)
        curvature = np.sum(P * spread * z, axis=(1, 2)) + 1.0 / SLOPE**2
        b = b + np.clip(slope / curvature, -LARGEST, LARGEST)
    maps[:, 1] = np.where(np.isfinite(b), np.maximum(b, LEAST), 1.0)
    return maps
