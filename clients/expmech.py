"""Pure-DP selection of the embedding, user side (DPMP Algorithm 4).

    p_j     = clip(U^T x_j; L_f), features of an example (k,)
    v       head (k,) with |v| <= C: least squares on the user's examples
    l(a, y) = |a - y|, the loss, Lipschitz with constant xi = 1
    s_i(U)  the user's score of candidate U

    s_i(U) = mean_j |y_j| - mean_j |y_j - <p_j, v>|,  clamped at 0

The paper's score is -min_v mean_j l(<p_j, v>, y_j), of sensitivity 4 xi L_f C. Ours adds
mean_j |y_j|. This number of the user is the same for every candidate, so it changes no probability
of selection. The range of the sum is smaller:

- v = 0 is allowed, so the best head has a loss of at most mean_j |y_j|. A score below 0 (a poor
  head) may therefore be raised to 0.
- |y_j| - |y_j - <p_j, v>| <= xi |<p_j, v>| <= xi L_f C, by Cauchy-Schwarz.

So 0 <= s_i(U) <= xi L_f C for every U, whatever the data. Replacing one user by any other moves any
total by at most xi L_f C: a quarter of the paper's sensitivity. Privacy rests on the clamp alone,
not on how well v is found.

With `targets: relative` each user measures its targets in units of its own mean_j |y_j|. A loss is
not negative, so the score is then at most 1 and the sensitivity is min(1, xi L_f C). Users with
small targets count as much as others. The score tells which part of its targets a user can explain.
It differs from the paper's score (`targets: absolute`), and it is the only one with which anything
was found at d=50, eps=1.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.algorithm.linear_client import LinearClient
from privfed.data.cohort import Cohort
from privfed.foundation.constraints import POSITIVE, Choice
from privfed.foundation.linalg import Array
from privfed.kernels.candidate_scores import CandidateScores, absolute_scores, choose_score_loops


class ExpMechClient(LinearClient):
    """Scores candidate embeddings by how much of the user's targets they explain."""

    def __init__(
        self,
        cohort: Cohort,
        init: Any,
        L_f: Annotated[float, POSITIVE],
        C: Annotated[float, POSITIVE],
        targets: Annotated[str, Choice("relative", "absolute")],
        train: str,
        heads: str,
    ) -> None:
        super().__init__(cohort, None, train, heads)
        self.L_f, self.C, self.relative = float(L_f), float(C), targets == "relative"
        if len(cohort):
            choose_score_loops()

    @property
    def sensitivity(self) -> float:
        """Largest score of a user; the smallest is 0."""
        return min(1.0, self.L_f * self.C) if self.relative else self.L_f * self.C

    @task
    def select(self, block: Cohort, shared: NDArrays, told: Announcement) -> CandidateScores:
        """Return s_i(U) / sensitivity of every user and candidate."""
        y = block.y
        if self.relative:
            size = np.mean(np.abs(y), axis=1, keepdims=True)
            y = y / np.where(size > 0, size, 1.0)

        def score(P: Array, users: slice) -> Array:
            return absolute_scores(P, y[users], self.L_f, self.C) / self.sensitivity

        return CandidateScores(block.X, shared[0], score)
