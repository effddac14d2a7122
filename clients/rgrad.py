"""DP-RGrad, user side (RGRAD Algorithm 2).

    X_j, y_j            observations of one user, X_j (d1, d2)
    M = U diag(S) V^T   published matrix of rank r
    P_T                 projection on the tangent space at M
    r_j                 residual <X_j, M> - y_j
    G                   the user's gradient (1/m) sum_j r_j X_j of the loss 1/(2m) sum_j r_j^2
    psi                 clip norm of a projected gradient
    Lambda_i            known covariance of vec(X_j), diagonal; the identity by default

A user sends P_T(G) = U U^T G + G V V^T - U U^T G V V^T by its coordinates

    A = U^T G V  (r, r)      B = U^T G (I - V V^T)  (r, d2)      C = (I - U U^T) G V  (d1, r),

one vector of r^2 + r d2 + d1 r numbers. P_T(G) = U A V^T + U B + C V^T is a sum of orthogonal
parts, so |P_T(G)|_F^2 = |A|^2 + |B|^2 + |C|^2. Clipping the vector at psi therefore clips the
projected gradient at psi.

Batched form: G is never formed. One matrix product gives X V of all observations of a block of
users, another one gives U^T X. The residuals are <X V, U diag(S)> - y. P = G V and Q = U^T G are
sums of X V and U^T X over a user's observations, weighted by r_j / m. Then A = U^T P,
B = Q - A V^T and C = P - U A. Memory holds r (d1 + d2 + r) numbers per user of a block, far less
than their data.

With `whiten`, gradients have mat(Lambda_i^-1 vec X_j) in place of X_j. Their mean is M - M* for any
Lambda_i, where the paper's has mean mat(Lambda_i vec(M - M*)) and is left to the step size.

Weak privacy (neighbours share X_j, only y differs): with one observation per user the contribution
is r_i P_T(X_i), and clipping it at psi is clipping the residual at psi / |P_T(X_i)|. Mechanism and
noise are those of replace-one, which is the stronger requirement.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import CohortClient, task
from privfed.data.cohort import Cohort
from privfed.data.problems.trace_regression import whitened
from privfed.foundation.constraints import FLAG, POSITIVE
from privfed.foundation.linalg import Array


class RGradClient(CohortClient):
    """Gradients of the users' squared errors, projected on the tangent space at M.

    Args:
        C_l: smallest eigenvalue of the users' covariances.
        C_u: largest eigenvalue.
        whiten: whether gradients are multiplied by the inverse of the user's covariance.
    """

    def __init__(
        self,
        cohort: Cohort,
        init: Any = None,
        C_l: Annotated[float, POSITIVE] = 1.0,
        C_u: Annotated[float, POSITIVE] = 1.0,
        whiten: Annotated[bool, FLAG] = False,
    ) -> None:
        super().__init__(cohort, init)
        self.C_l, self.C_u, self.whiten = C_l, C_u, whiten

    @task
    def gradient(self, block: Cohort, shared: NDArrays, told: Announcement) -> Array:
        """Return the coordinates A, B, C of every user's P_T(G_i): (users, r^2 + r d2 + d1 r)."""
        U, S, V = shared
        (d1, r), d2, (users, m, _) = U.shape, len(V), block.X.shape
        XV = (block.X.reshape(-1, d2) @ V).reshape(users, m, d1 * r)
        weights = (XV @ (U * S).ravel() - block.y)[:, None, :] / m
        X = block.X
        if self.whiten:
            X = whitened(block, told.seed, self.C_l, self.C_u)
            XV = (X.reshape(-1, d2) @ V).reshape(users, m, d1 * r)
        UX = np.matmul(U.T, X.reshape(-1, d1, d2)).reshape(users, m, r * d2)
        P = np.matmul(weights, XV).reshape(users, d1, r)
        Q = np.matmul(weights, UX).reshape(users, r, d2)
        A = np.matmul(U.T, P)
        B = Q - np.matmul(A, V.T)
        C = P - np.matmul(U, A)
        return np.concatenate([part.reshape(users, -1) for part in (A, B, C)], axis=1)
