"""Private initialisation of low-rank trace regression, user side.

    L_i = (1/m) sum_j y_j mat(Lambda_i^-1 vec X_j)   (d1, d2)

L_i is unbiased for M* if X is Gaussian with the known covariance Lambda_i of vec(X).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.data.cohort import Cohort
from privfed.data.problems.trace_regression import whitened
from privfed.foundation.constraints import POSITIVE
from privfed.foundation.linalg import Array


class RegressionTask:
    """Contributions L_i.

    Args:
        C_l: smallest eigenvalue of the users' covariances.
        C_u: largest eigenvalue.
    """

    def __init__(
        self, C_l: Annotated[float, POSITIVE] = 1.0, C_u: Annotated[float, POSITIVE] = 1.0
    ) -> None:
        self.C_l, self.C_u = C_l, C_u

    @task
    def regression(self, block: Cohort, shared: NDArrays, told: Announcement) -> Array:
        """Return L_i of every user as rows (users, d1 d2)."""
        X = block.X
        if (self.C_l, self.C_u) != (1.0, 1.0):
            X = whitened(block, told.seed, self.C_l, self.C_u)
        return np.matmul(block.y[:, None, :] / block.y.shape[1], X)[:, 0]
