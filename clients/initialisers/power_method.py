"""Private power method, user side (CENTAUR Algorithm 5).

    X      one of the T_0 copies of the iterate (d, k)
    M_i    = mean_j y_j^2 x_j x_j^T, the user's matrix (d, d), never formed

    send M_i X = mean_j y_j^2 x_j (x_j^T X) for all copies X at once

For features of identity covariance E[y^2 x x^T] = (|w|^2 + R^2) I + 2 w w^T. The wanted directions
stand out by a constant factor only, so every iteration gains little and many are needed. `centre`
subtracts y^2 I: E[y^2 (x x^T - I)] = 2 w w^T. Nothing is left outside U*, and three iterations are
enough.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.data.cohort import Cohort, draw_orders
from privfed.foundation.constraints import FLAG, WHOLE
from privfed.foundation.linalg import Array


class PowerMethodTask:
    """Contributions M_i X for all copies.

    Args:
        centre: whether y^2 I is subtracted.
        batch: number of examples drawn again in every iteration; None takes all.
    """

    def __init__(self, centre: Annotated[bool, FLAG], batch: Annotated[int, WHOLE] | None) -> None:
        self.centre = centre
        self.batch = batch

    @task
    def ppm(self, block: Cohort, shared: NDArrays, told: Announcement) -> Array:
        """Return M_i X of every user (B, d, T_0 k), the copies side by side."""
        block = block.exact()
        X, y = block.X, block.y
        if self.batch is not None and self.batch < y.shape[1]:
            drawn = draw_orders(told.seed, told.round, block.identities, y.shape[1])[
                :, : self.batch
            ]
            X, y = np.take_along_axis(X, drawn[..., None], 1), np.take_along_axis(y, drawn, 1)
        y2, (B, m, d) = y**2, X.shape
        copies = np.concatenate(list(shared[0]), axis=1)
        P = (X.reshape(-1, d) @ copies).reshape(B, m, -1) * (y2 / m)[..., None]
        products = np.matmul(X.transpose(0, 2, 1), P)
        return products - np.mean(y2, axis=1)[:, None, None] * copies if self.centre else products
