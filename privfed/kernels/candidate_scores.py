"""How good candidate representations are for each user: compiled loops over users x candidates, one user at a time in cache.

Work is cut into tiles of some users and some candidates whose projections stay in a processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from privfed.foundation.compilation import compiled
from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import TINY, solve_all
from privfed.privacy.clipping import Scores

RIDGE = 1e-9
"""Of the features' mean square, on the diagonal of a Gram matrix: a head exists even where features are dependent."""
WIDTH = 128
"""Candidates that are scored side by side, on the processor's vector units."""
TILE = 1 << 22
"""Bytes of some users' examples projected on so many candidates."""


@dataclass(frozen=True)
class CandidateScores:
    """The users' scores of many candidates, never all of them in memory. X: (B, m, d), candidates: (C, d, k).

    score: projections P (b, m, k, c) of some users' examples on c of the candidates, and which users -> scores (b, c), of
    which 0 is the worst and 1 the best.
    """

    X: Array
    candidates: Array
    score: Callable[[Array, slice], Array]

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Sums over users (C,) of the scores in units of 1/clip, whole numbers between 0 and clip a user."""
        B, m, d = self.X.shape
        C, _, k = self.candidates.shape
        totals, best = np.zeros(C), np.zeros(B)
        height = max(1, TILE // (8 * m * k * min(C, WIDTH)))
        for start in range(0, C, WIDTH):
            some = slice(start, start + WIDTH)
            part = np.ascontiguousarray(self.candidates[some].transpose(1, 2, 0))
            for first in range(0, B, height):
                users = slice(first, first + height)
                P = (self.X[users].reshape(-1, d) @ part.reshape(d, -1)).reshape(
                    -1, m, k, part.shape[2]
                )
                total, largest = Scores(self.score(P, users)).clipped(clip)
                totals[some] += total
                best[users] = np.maximum(best[users], largest)
        return totals, best


@compiled
def _heads(Q, y, C, G, v):  # type: ignore[no-untyped-def]
    """Least-squares heads v (k, c) of one user for c candidates, cut to length C. Q: (m, k, c), G: (k, k, c) for work."""
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
    # Cholesky with reciprocals on the diagonal, then both triangular solves, side by side for all candidates.
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
def _absolute(P, y, longest, C, out):  # type: ignore[no-untyped-def]
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
def _margin(P, y, V, rho, out):  # type: ignore[no-untyped-def]
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


def absolute_scores(P: Array, y: Array, longest: float, C: float) -> Array:
    """mean_j |y_j| - mean_j |y_j - <p_j, v>| with p_j clipped to norm `longest` and |v| <= C, v by least squares.

    P: (B, m, k, c) projections on c candidates, y: (B, m) -> (B, c).
    """
    out = np.empty((P.shape[0], P.shape[3]))
    _absolute(np.ascontiguousarray(P), np.ascontiguousarray(y), float(longest), float(C), out)
    return out


def margin_scores(P: Array, y: Array, V: Array, rho: float) -> Array:
    """Largest fraction of examples with y_j <p_j, v> > rho, over the heads +-V (H, k). P: (B, m, k, c), y: (B, m) -> (B, c)."""
    out = np.empty((P.shape[0], P.shape[3]))
    _margin(
        np.ascontiguousarray(P), np.ascontiguousarray(y), V.astype(np.float32), np.float32(rho), out
    )
    return out


@cache
def prepare() -> None:
    """Load the compiled kernels, compiling them on a machine's first use, so that no round waits for it."""
    P, y = np.ones((1, 2, 1, 1)), np.ones((1, 2))
    absolute_scores(P, y, 1.0, 1.0)
    margin_scores(P, y, np.ones((1, 1)), 0.0)
