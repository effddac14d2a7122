"""Private power method, user side (CENTAUR Algorithm 4).

    M_i X = mean_j y_j^2 x_j (x_j^T X)      for every copy X of the iterate at once; M_i itself is never formed

For features of identity covariance E[y^2 x x^T] = (|w|^2 + R^2) I + 2 w w^T: the wanted directions stand out by a constant
factor only, so every iteration gains little and many are needed. `centre` takes y^2 I away, E[y^2 (x x^T - I)] = 2 w w^T:
nothing is left outside U*, and three iterations do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.common import NDArrays

from privfed.data.cohort import Cohort
from privfed.linalg import Array


class PowerMethod:
    """Contributions M_i X for all copies."""

    task = "ppm"

    def __init__(self, centre: bool) -> None:
        self.centre = centre

    def contributions(self, block: Cohort, shared: NDArrays, config: dict[str, Any]) -> Array:
        """(B, d, T_0 k): the copies side by side."""
        X, y2 = block.X, block.y**2
        B, m, d = X.shape
        copies = np.concatenate(list(shared[0]), axis=1)
        P = (X.reshape(-1, d) @ copies).reshape(B, m, -1) * (y2 / m)[..., None]
        products = np.matmul(X.transpose(0, 2, 1), P)
        return products - np.mean(y2, axis=1)[:, None, None] * copies if self.centre else products
