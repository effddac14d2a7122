"""Private initialisation of low-rank trace regression, user side.

    L_i = (1/m) sum_j y_j X_j   (d1, d2)

L_i is unbiased for M* if X has independent standard normal entries (RGRAD's Lambda = I).
"""

from __future__ import annotations

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.data.cohort import Cohort
from privfed.foundation.linalg import Array


class RegressionTask:
    """Contributions L_i."""

    @task
    def regression(self, block: Cohort, shared: NDArrays, told: Announcement) -> Array:
        """Return L_i of every user as rows (users, d1 d2)."""
        return np.matmul(block.y[:, None, :] / block.y.shape[1], block.X)[:, 0]
