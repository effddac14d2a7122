"""Private FedRep on tables, user side.

    R     residuals of the global model (m, C), with rows r_j
    h_j   influence (d,) of row j on the user's ridge solution, which is sum_j h_j r_j^T
    s_c   = sum_j r_jc h_j (d,)
    Z_i   = sum_{j != l} <r_j, r_l> sym(h_j h_l^T)
          = sum_c s_c s_c^T - sum_j |r_j|^2 h_j h_j^T   (d, d)

Z_i is the user's own solution times its transpose, without the terms that hold the noise of one row
twice, as in the spectral initialiser. Solutions take the place of y_j x_j because the rows of a
table are not isotropic.

    U         shared representation (d, k)
    V         head: ridge on [1, x U diag(scale)], its strength chosen by leave-one-out
    V_(-j)    head fitted without row j
    e_j       residual of row j with that head
    G         gradient in U: -(1/m) sum_j x_j e_j^T V_(-j)^T, with the part of V that belongs to U
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays

from clients.initialisers.spectral import SecondMoments
from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.algorithm.table_client import RIDGE, TableClient
from privfed.data.tables.ragged_cohort import Block, RaggedCohort
from privfed.foundation.linalg import Array
from privfed.kernels.tolerances import CANCELLATION
from privfed.models import ridge as ridges


class TableFedRepClient(TableClient):
    """Moments of users' own solutions, then gradients of the representation at their heads."""

    def __init__(
        self,
        cohort: RaggedCohort,
        init: Any,
        ridge: Annotated[float, RIDGE],
        spectral_ridge: Annotated[float, RIDGE],
    ) -> None:
        super().__init__(cohort, init, ridge)
        self.spectral_ridge = spectral_ridge

    @task
    def spectral(self, block: Block, shared: NDArrays, told: Announcement) -> SecondMoments:
        """Return Z_i of every user by its factors."""
        _, X, R = self.encoded(block, shared)
        H = self.influences(X, self.spectral_ridge)[0][:, :, 1:]
        A = H * np.linalg.norm(R, axis=2, keepdims=True)
        s = np.matmul(R.transpose(0, 2, 1), H)
        between, among, mixed = (gram_square(P, Q) for P, Q in ((s, s), (A, A), (s, A)))
        sizes = np.sum(s * s, axis=(1, 2)) + np.sum(A * A, axis=(1, 2))
        norms = np.maximum(
            np.sqrt(np.maximum(between - 2 * mixed + among, 0.0)), CANCELLATION * sizes
        )
        overflow = ~np.isfinite(norms)
        A[overflow], s[overflow], norms[overflow] = 0.0, 0.0, 0.0
        return SecondMoments(A, s, norms)

    @task
    def gradient(self, block: Block, shared: NDArrays, told: Announcement) -> Array:
        """Return G_i^T of every user (B, k, d)."""
        model, X, R = self.encoded(block, shared)
        Q, factors, heads = model.own(X, R)
        e, H = ridges.leave_one_out_residuals(Q, R, heads)
        own = np.matmul(e, heads.V.transpose(0, 2, 1)) - np.vecdot(e, e)[..., None] * H
        weights = own[:, :, 1:] * factors[:, None, :] / -X.shape[1]
        return np.matmul(weights.transpose(0, 2, 1), X)


def gram_square(P: Array, Q: Array) -> Array:
    """Return the sum of <p, q>^2 over rows p and q of each user: (B, a, d), (B, b, d) -> (B,).

    It is computed from a x b or from d x d matrices, depending on the sizes.
    """
    if min(P.shape[1], Q.shape[1]) <= P.shape[2]:
        return np.sum(np.matmul(P, Q.transpose(0, 2, 1)) ** 2, axis=(1, 2))
    return np.sum(
        np.matmul(P.transpose(0, 2, 1), P) * np.matmul(Q.transpose(0, 2, 1), Q), axis=(1, 2)
    )
