"""Private initialisation of low-rank trace regression, user side: L_i = (1/m) sum_j y_j X_j.

Unbiased for M when X has independent standard normal entries (RGRAD's Lambda = I).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.common import NDArrays

from privfed.data.cohort import Cohort
from privfed.foundation.linalg import Array


class Regression:
    """Contributions L_i."""

    task = "regression"

    def contributions(self, block: Cohort, shared: NDArrays, config: dict[str, Any]) -> Array:
        """L_i of every user as rows (users, d1 d2)."""
        return np.matmul(block.y[:, None, :] / block.y.shape[1], block.X)[:, 0]
