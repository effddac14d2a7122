"""Scores of candidates, compiled: one user and up to 128 candidates at a time in cache."""

from __future__ import annotations

import math

import numpy as np

from privfed.foundation.compilation import compiled
from privfed.kernels.compiled.least_squares import solve_all
from privfed.kernels.tolerances import RIDGE, TINY


@compiled
def _heads(Q, y, C, G, v):  # type: ignore[no-untyped-def]
    """Write the least-squares heads of one user for c candidates, clipped to norm C, into v (k, c).

    Q: (m, k, c). G: (k, k, c), working memory.
    """
    m, k, count = Q.shape
    for a in range(k):
        for b in range(a + 1):
            G[a, b] = 0.0
        v[a] = 0.0
    for j in range(m):
        for a in range(k):
            for b in range(a + 1):
                for c in range(count):
                    G[a, b, c] += Q[j, a, c] * Q[j, b, c]
            for c in range(count):
                v[a, c] += Q[j, a, c] * y[j]
    for a in range(k):
        for c in range(count):
            G[a, a, c] = G[a, a, c] * (1.0 + RIDGE) + TINY
    # Cholesky with reciprocals on the diagonal, for all candidates together.
    for a in range(k):
        for b in range(a + 1):
            for e in range(b):
                for c in range(count):
                    G[a, b, c] -= G[a, e, c] * G[b, e, c]
            for c in range(count):
                G[a, b, c] = (
                    G[a, b, c] * G[b, b, c] if a > b else 1.0 / math.sqrt(max(G[a, a, c], TINY))
                )
    solve_all(G, v)
    for c in range(count):
        size = 0.0
        for a in range(k):
            size += v[a, c] * v[a, c]
        factor = min(1.0, C / math.sqrt(max(size, TINY)))
        for a in range(k):
            v[a, c] *= factor


@compiled
def write_absolute_scores(P, y, longest, C, out):  # type: ignore[no-untyped-def]
    """Write scores into out (B, c); see `privfed.kernels.candidate_scores.absolute_scores`."""
    users, m, k, count = P.shape
    Q, G, v, e = (
        np.empty((m, k, count)),
        np.empty((k, k, count)),
        np.empty((k, count)),
        np.empty(count),
    )
    for i in range(users):
        for j in range(m):
            e[:] = 0.0
            for a in range(k):
                for c in range(count):
                    e[c] += P[i, j, a, c] * P[i, j, a, c]
            for c in range(count):
                e[c] = min(1.0, longest / math.sqrt(max(e[c], TINY)))
            for a in range(k):
                for c in range(count):
                    Q[j, a, c] = e[c] * P[i, j, a, c]
        _heads(Q, y[i], C, G, v)
        out[i] = 0.0
        for j in range(m):
            e[:] = y[i, j]
            for a in range(k):
                for c in range(count):
                    e[c] -= v[a, c] * Q[j, a, c]
            for c in range(count):
                out[i, c] += (abs(y[i, j]) - abs(e[c])) / m


@compiled
def write_margin_scores(P, y, V, rho, out):  # type: ignore[no-untyped-def]
    """Write scores into out (B, c); see `privfed.kernels.candidate_scores.margin_scores`."""
    users, m, k, count = P.shape
    plus, minus = np.empty(count, dtype=np.float32), np.empty(count, dtype=np.float32)
    Q, s = np.empty((m, k, count), dtype=np.float32), np.empty(count, dtype=np.float32)
    one, zero = np.float32(1.0), np.float32(0.0)
    for i in range(users):
        for j in range(m):
            for a in range(k):
                for c in range(count):
                    Q[j, a, c] = y[i, j] * P[i, j, a, c]
        out[i] = 0.0
        for h in range(len(V)):
            plus[:] = zero
            minus[:] = zero
            for j in range(m):
                for c in range(count):
                    s[c] = V[h, 0] * Q[j, 0, c]
                for a in range(1, k):
                    for c in range(count):
                        s[c] += V[h, a] * Q[j, a, c]
                for c in range(count):
                    plus[c] += one if s[c] > rho else zero
                    minus[c] += one if s[c] < -rho else zero
            for c in range(count):
                out[i, c] = max(out[i, c], plus[c], minus[c])
        for c in range(count):
            out[i, c] /= m


def prepare_candidate_scores(variant: str) -> None:
    """Compile the functions of this module that are used."""
    P, y, out = np.ones((1, 2, 1, 1)), np.ones((1, 2)), np.empty((1, 1))
    write_absolute_scores(P, y, 1.0, 1.0, out)
    write_margin_scores(P, y, np.ones((1, 1), np.float32), np.float32(0.0), out)
