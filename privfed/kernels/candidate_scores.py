"""Scores of candidate representations per user.

Work is divided into tiles of some users and some candidates, whose projections stay in a
processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from privfed.foundation.compilation import DropIn
from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import backward, factor, forward
from privfed.kernels.tolerances import RIDGE, TINY
from privfed.privacy.clipping import Scores

WIDTH = 128
"""Candidates that are scored together, on the processor's vector units."""
TILE = 1 << 18
"""Bytes of a tile: users' examples, projected on WIDTH candidates."""

LOOPS = DropIn(
    "privfed.kernels.compiled.candidate_scores",
    seconds=4.0,
    saves=lambda job: 6e-9 * job.users * job.rounds * job.candidates * job.m * job.k,
)


@dataclass(frozen=True)
class CandidateScores:
    """Users' scores of many candidates, never all of them in memory.

    Attributes:
        X: examples, (B, m, d).
        candidates: (C, d, k).
        score: maps projections P (b, m, k, c) of some users' examples on c of the candidates, and
            the slice of these users, to scores (b, c) from 0 (worst) to 1 (best).
    """

    X: Array
    candidates: Array
    score: Callable[[Array, slice], Array]

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Return total scores (C,) in units of 1/clip, and the best score of each user (B,).

        Per user and candidate, a score is a whole number from 0 to clip.
        """
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


def choose_score_loops() -> None:
    """Decide how scores are computed, so that no round waits for it."""
    LOOPS.chosen()


def absolute_scores(P: Array, y: Array, longest: float, C: float) -> Array:
    """Score by absolute errors: mean_j |y_j| - mean_j |y_j - <p_j, v>|, with v by least squares.

    Args:
        P: (B, m, k, c) projections on c candidates.
        y: (B, m) targets.
        longest: p_j is clipped to this norm.
        C: v is clipped to this norm.

    Returns:
        (B, c).
    """
    y = np.ascontiguousarray(y)
    if loops := LOOPS.chosen():
        out = np.empty((P.shape[0], P.shape[3]))
        loops.write_absolute_scores(np.ascontiguousarray(P), y, float(longest), float(C), out)
        return out
    with np.errstate(all="ignore"):
        Q = np.moveaxis(P, 2, 0)  # (k, B, m, c)
        Q = Q * np.minimum(1.0, longest / np.sqrt(np.maximum(np.sum(Q * Q, axis=0), TINY)))
        G = np.stack([[np.einsum("njc,njc->nc", p, q) for q in Q] for p in Q])  # (k, k, B, c)
        for a in range(len(G)):
            G[a, a] = G[a, a] * (1.0 + RIDGE) + TINY
        right = np.einsum("anjc,nj->anc", Q, y)
        L, _ = factor(G.reshape(*G.shape[:2], -1), 0.0)
        v = backward(L, forward(L, right.reshape(len(G), -1))).reshape(right.shape)
        v *= np.minimum(1.0, C / np.sqrt(np.maximum(np.sum(v * v, axis=0), TINY)))
        errors = np.abs(y[..., None] - np.einsum("anjc,anc->njc", Q, v))
        return np.mean(np.abs(y), axis=1)[:, None] - np.mean(errors, axis=1)


def margin_scores(P: Array, y: Array, V: Array, rho: float) -> Array:
    """Score by the largest fraction of examples with y_j <p_j, v> > rho, over the heads v in +-V.

    Args:
        P: (B, m, k, c) projections on c candidates.
        y: (B, m) labels, -1 or 1.
        V: (H, k) heads.
        rho: margin.

    Returns:
        (B, c).
    """
    V, least = V.astype(np.float32), np.float32(rho)
    best = np.zeros((P.shape[0], P.shape[3]))
    if loops := LOOPS.chosen():
        y = np.ascontiguousarray(y)
        loops.write_margin_scores(np.ascontiguousarray(P), y, V, least, best)
        return best
    Q = np.moveaxis((y[:, :, None, None] * P).astype(np.float32), 2, 0)  # (k, B, m, c)
    for v in V:
        margins = v[0] * Q[0]
        for a in range(1, len(v)):
            margins += v[a] * Q[a]
        for right in (margins > least, margins < -least):
            np.maximum(best, np.count_nonzero(right, axis=1), out=best)
    return best / P.shape[1]
