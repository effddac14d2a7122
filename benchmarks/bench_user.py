"""One user's and the server's part of a private FedRep round in plain NumPy.

It is for the rivals that compute users one by one. It needs NumPy only, because one of them runs in
a separate environment. All of them call it, so that the comparison shows what each framework adds
to the same arithmetic.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CLIP = 0.05
NOISE = 2 * CLIP / 0.05
"""Standard deviation of the noise on the sum of clipped gradients."""


def gradient(X: Array, y: Array, U: Array) -> Array:
    """Return G^T (k, d) of one user; every example is judged by the head fitted without it.

    Args:
        X: examples (m, d).
        y: targets (m,).
        U: shared embedding (d, k).
    """
    P = X @ U
    Q = P @ np.linalg.inv(P.T @ P)
    v = y @ Q
    e = (y - P @ v) / (1 - np.vecdot(Q, P))
    return ((v - Q * e[:, None]) * (-2 / len(y) * e)[:, None]).T @ X


def clipped(G: Array, bound: float) -> Array:
    """Return G scaled down to norm at most `bound`."""
    return G * min(1.0, bound / float(np.sqrt(np.vdot(G, G))))


def stepped(U: Array, total: Array, n: int, t: int) -> Array:
    """Return U of the next round, from the noised sum of G^T (k, d) over n users; t from 0."""
    Q, R = np.linalg.qr(U - 8 * 0.85**t * total.T / n)
    return np.ascontiguousarray(Q * np.where(np.diag(R) < 0, -1.0, 1.0))
