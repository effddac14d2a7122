"""Priv-AltMin, user side (DPMP Algorithms 1 and 2).

    v      head: least squares on one part of the user's examples, at the current U
    W_j    v x_j^T as a vector (k d), for the examples of the other part
    eta_c  clip norm of W_j, if given
    r_j    y_j, or the residual y_j - <W_j, U^T>
    zeta   clip norm of r_j, if given
    A_i    mean of W_j W_j^T
    b_i    mean of r_j W_j

`halves` is the paper's estimator: the head on the first half, W on the second. `leave-one-out` uses
every example for both, and never with a head that has seen it: W_j = v_(-j) x_j^T.

A_i is never formed. It has rank at most m, the sum over users is one matrix product of the rows
W_j, and |A_i|_F = |K|_F / m with K_jl = <W_j, W_l> = <v_j, v_l> <x_j, x_l>.

The clip norms bound |A_i|_F and |b_i| themselves. A user who must be scaled down is scaled down in
both by the same factor. The two sums then remain those of one weighted least-squares problem, which
has the same solution where all users agree. With eta_c and zeta the paper's bounds eta_c^2 and
eta_c zeta hold for any user, whatever its data. They are reached only if all examples of the user
point the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.algorithm.linear_client import LinearClient
from privfed.data.cohort import Cohort
from privfed.foundation.constraints import FLAG, POSITIVE, Choice
from privfed.foundation.linalg import Array, svec
from privfed.kernels.least_squares import leave_one_out_heads, lstsq
from privfed.privacy.clipping import Dense, Scaled, clip_factors
from privfed.privacy.summation import sum_of_products


class AltMinClient(LinearClient):
    """Per-user moments of the least-squares problem for the shared embedding."""

    def __init__(
        self,
        cohort: Cohort,
        init: Any,
        estimator: Annotated[str, Choice("leave-one-out", "halves")],
        train: str,
        heads: str,
        target: str,
        eta_c: Annotated[float, POSITIVE] | None,
        zeta: Annotated[float, POSITIVE] | None,
        safety: Annotated[bool, FLAG] = False,
    ) -> None:
        super().__init__(cohort, init, train, heads, safety)
        self.estimator, self.target, self.eta_c, self.zeta = estimator, target, eta_c, zeta

    @task
    def moments(self, block: Cohort, shared: NDArrays, told: Announcement) -> tuple[Scaled, Scaled]:
        """Return A_i and b_i of every user of the block, each user scaled down equally in both."""
        X, y, P = block.X, block.y, self._features(block, shared)
        if self.estimator == "leave-one-out":
            V = leave_one_out_heads(P, y)
        else:
            half = y.shape[1] // 2
            v = lstsq(P[:, :half], y[:, :half])
            X, y, P = X[:, half:], y[:, half:], P[:, half:]
            V = np.broadcast_to(v[:, None, :], P.shape)
        if self.eta_c is not None:
            sizes = np.linalg.norm(X, axis=2) * np.linalg.norm(V, axis=2)
            V = V * clip_factors(sizes, self.eta_c)[..., None]
        r = y - np.vecdot(P, V) if self.target == "residuals" else y
        if self.zeta is not None:
            r = np.clip(r, -self.zeta, self.zeta)
        products = np.matmul((V * (r / r.shape[1])[..., None]).transpose(0, 2, 1), X).reshape(
            len(X), -1
        )
        K = np.matmul(V, V.transpose(0, 2, 1)) * np.matmul(X, X.transpose(0, 2, 1))
        norms = np.stack(
            [np.sqrt(np.sum(K * K, axis=(1, 2))) / y.shape[1], Dense(products).norms()]
        )
        overflow = ~np.isfinite(norms).all(axis=0)
        if overflow.any():
            V, X = (np.where(overflow[:, None, None], 0.0, array) for array in (V, X))
            products[overflow], norms[:, overflow] = 0.0, 0.0
        weight = np.ones(len(X))
        if told.release:
            weight = np.min(
                [clip_factors(*pair) for pair in zip(norms, told.clips, strict=True)],
                axis=0,
            )
        moments = Moments(V * np.sqrt(weight)[:, None, None], X, norms[0] * weight)
        return Scaled(moments, norms[0]), Scaled(Dense(products * weight[:, None]), norms[1])


@dataclass(frozen=True)
class Moments:
    """Contributions A_i = mean_j W_j W_j^T with W_j = v_j x_j^T, by their factors.

    Attributes:
        V: heads v_j (B, m, k).
        X: examples x_j (B, m, d).
        norms: |A_i|_F (B,).
    """

    V: Array
    X: Array
    norms: Array

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Return svec of the clipped sum (k d (k d + 1) / 2,), and the norms (B,)."""
        _, m, k = self.V.shape
        V = self.V * np.sqrt(clip_factors(self.norms, clip) / m)[:, None, None]
        rows = (V[..., None] * self.X[:, :, None, :]).reshape(-1, k * self.X.shape[2])
        return svec(sum_of_products(rows, rows)), self.norms
