"""Margin classification in a sketch, user side (PMPR Algorithm 3).

    M    sketch (k', d), entries +-1/sqrt(k'), public     U~   candidate (k', k), |U~| <= sqrt(2k)
    rho  margin                                           v    head, |v| <= Gamma
    S0   examples that score candidates                   S1   examples of the final head

    s_i(U~) = 1 - min_v (1/|S0|) #{ j in S0 : y_j <M x_j, U~ v> <= rho }

A score lies in [0, 1], so the mean over users has sensitivity 1/n.

The minimum over heads is NP-hard in general. It is taken over a public finite set of directions of
length Gamma. This is as private, since a user's score is in [0, 1] whatever heads are tried.
Examples are scaled into the unit ball and sketched once. A user with labels other than -1 and 1
contributes nothing, without a message: a message would tell about its data.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.candidate_covers import random_orthonormal, sketch_matrix
from privfed.algorithm.client import CohortClient, task
from privfed.algorithm.linear_client import split_examples
from privfed.data.cohort import Cohort
from privfed.foundation.constraints import AT_LEAST_ZERO, POSITIVE, WHOLE
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator
from privfed.kernels.candidate_scores import CandidateScores, choose_score_loops, margin_scores
from privfed.kernels.least_squares import lstsq

FINE = 8
"""Factor by which the final head has more directions to choose from than a score.

The final head is fitted only once, so more directions are affordable.
"""
ALONE_RIDGE = 1.0
"""Ridge of users who learn alone, with examples in the unit ball.

Without it they do far worse where m is close to d.
"""


class JLMarginClient(CohortClient):
    """Scores sketched embeddings by how many of the user's examples they classify with a margin."""

    def __init__(
        self,
        cohort: Cohort,
        init: Any,
        sketch: Annotated[int, WHOLE],
        rho: Annotated[float, AT_LEAST_ZERO],
        Gamma: Annotated[float, POSITIVE],
        directions: Annotated[int, WHOLE],
        train: str,
        heads: str,
        seed: int,
    ) -> None:
        super().__init__(without_other_labels(cohort))
        self.Gamma, self.rho, self.directions = Gamma, float(rho), directions
        m, d = cohort.X.shape[1:]
        self.train, self.final = split_examples(m, train, heads)
        self.seed, self.M = seed, sketch_matrix(seed, sketch, d)
        self.seen = sketched(self.cohort, self.M)
        if len(cohort):
            choose_score_loops()

    @task
    def select(self, block: Cohort, shared: NDArrays, told: Announcement) -> CandidateScores:
        """Return s_i(U~) of every user and candidate; the block's examples are sketched already."""
        V = self.heads(shared[0].shape[2], self.directions)
        return CandidateScores(
            block.X, shared[0], lambda P, users: margin_scores(P, block.y[users], V, self.rho)
        )

    def heads(self, k: int, count: int) -> Array:
        """Return public heads (count, k) of length Gamma; with v also -v is tried."""
        return self.Gamma * half_sphere(self.seed, k, count)

    def weights(self, block: Cohort, shared: NDArrays) -> Array:
        """Return w_i = U v_i (B, d), with the head of fewest errors on S1."""
        return self._personal(block, shared[0])

    def rivals(self, block: Cohort) -> dict[str, Array]:
        """Return predictors (B, d) of users alone, of the oracle, and on an uninformed embedding.

        The uninformed embedding is of the same kind: M^T times a random orthonormal matrix.
        """
        assert block.truth is not None
        k = block.truth.U_star.shape[1]
        U = self.M.T @ random_orthonormal(generator(self.seed, "uninformed"), 1, len(self.M), k)[0]
        return {
            "alone": lstsq(block.X, block.y, ALONE_RIDGE),
            "oracle": self._personal(block, block.truth.U_star),
            "random": self._personal(block, U),
        }

    def _personal(self, block: Cohort, U: Array) -> Array:
        """Return every user's predictor U v (B, d)."""
        X, y = block.X[:, self.final], block.y[:, self.final]
        B, m, d = X.shape
        P = (X.reshape(-1, d) @ U).reshape(B, m, -1) * y[..., None]
        return fewest_errors(P, self.heads(U.shape[1], FINE * self.directions)) @ U.T


def fewest_errors(P: Array, V: Array) -> Array:
    """Return the head +-v with the fewest p_j = y_j U^T x_j on its wrong side.

    Among heads with equally many errors, the one with the largest margin on the right side wins.

    Args:
        P: p_j of every user (B, m, k).
        V: heads v (H, k).

    Returns:
        The best head per user (B, k).
    """
    margins = P @ np.concatenate([V, -V]).T
    right = margins > 0
    least = np.min(np.where(right, margins, np.inf), axis=1)
    correct = np.count_nonzero(right, axis=1)
    best = np.lexsort((np.where(correct > 0, least, 0.0), correct), axis=1)[:, -1]
    return np.concatenate([V, -V])[best]


def half_sphere(seed: int, k: int, count: int) -> Array:
    """Return public unit vectors (count, k) that are meant to be used with both signs.

    For k = 1 it is the one unit vector (1, 1), for k = 2 angles are evenly spaced over half a turn,
    and for larger k directions are random.
    """
    if k == 1:
        return np.ones((1, 1))
    if k == 2:
        angles = np.pi * np.arange(count) / count
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)
    V = generator(seed, "head directions", k).standard_normal((count, k))
    return V / np.linalg.norm(V, axis=1, keepdims=True)


def sketched(cohort: Cohort, M: Array) -> Cohort:
    """Return the same users with examples M x (n, m, k'), each x scaled into the unit ball."""
    X = np.empty((*cohort.X.shape[:2], len(M)))
    start = 0
    for block in cohort.blocks():
        with np.errstate(over="ignore"):  # an example of infinite length becomes 0
            lengths = np.sqrt(np.vecdot(block.X, block.X))
        inside = (
            block.X if np.all(lengths <= 1.0) else block.X / np.maximum(lengths, 1.0)[..., None]
        )
        X[start : start + len(block)] = inside @ M.T
        start += len(block)
    return replace(cohort, X=X, truth=None)


def without_other_labels(cohort: Cohort) -> Cohort:
    """Return the cohort with zeros for users who have a label other than -1 and 1.

    These users keep their position and contribute nothing.
    """
    other = np.any(np.abs(cohort.y) != 1.0, axis=1)
    if not other.any():
        return cohort
    X, y = cohort.X.copy(), cohort.y.copy()
    X[other], y[other] = 0.0, 0.0
    return replace(cohort, X=X, y=y)
