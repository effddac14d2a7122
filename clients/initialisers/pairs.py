"""Priv-AltMin's initialiser, user side (DPMP Algorithm 3).

    a_q, b_q   the examples of pair q = (2q-1, 2q): clip(y; zeta) x / |x|
    W_i        mean over the p pairs of sym(a_q b_q^T) = (a_q b_q^T + b_q a_q^T) / 2

|sym(a b^T)|_F <= |a| |b| <= zeta^2, so |W_i|_F <= zeta^2 whatever the user's data (the paper's
bound). The clip norm is usually far below.

W_i is never formed. The sum over users is one matrix product. With the p x p products of the rows,
|W_i|_F^2 = sum_{q,s} (<a_q, a_s> <b_q, b_s> + <a_q, b_s> <b_q, a_s>) / (2 p^2). Pairs may cancel,
so the norm has the floor that clients/initialisers/spectral.py explains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.data.cohort import Cohort
from privfed.foundation.constraints import POSITIVE
from privfed.foundation.linalg import Array, svec
from privfed.kernels.tolerances import CANCELLATION
from privfed.privacy.clipping import clip_factors
from privfed.privacy.summation import sum_of_products, widened


class PairsTask:
    """Contributions W_i, sent as the isometric half-vectorisation of their sum."""

    def __init__(self, zeta: Annotated[float, POSITIVE]) -> None:
        self.zeta = zeta

    @task
    def pairs(self, block: Cohort, shared: NDArrays, told: Announcement) -> PairMoments:
        """Return W_i of every user."""
        block = block.exact()
        p = block.X.shape[1] // 2
        sizes = np.linalg.norm(block.X, axis=2)
        scale = np.clip(block.y, -self.zeta, self.zeta) / np.where(sizes > 0, sizes, 1.0)
        rows = (block.X * scale[..., None])[:, : 2 * p]
        rows = np.where(np.isfinite(rows).all(axis=(1, 2), keepdims=True), rows, 0.0)
        A, B = rows[:, ::2], rows[:, 1::2]
        AA, BB, AB = (np.matmul(L, R.transpose(0, 2, 1)) for L, R in ((A, A), (B, B), (A, B)))
        square = np.sum(AA * BB + AB * AB.transpose(0, 2, 1), axis=(1, 2)) / (2 * p * p)
        floor = CANCELLATION * np.mean(
            np.linalg.norm(A, axis=2) * np.linalg.norm(B, axis=2), axis=1
        )
        norms = np.maximum(np.sqrt(np.maximum(square, 0.0)), floor)
        overflow = ~np.isfinite(norms)
        A[overflow], B[overflow], norms[overflow] = 0.0, 0.0, 0.0
        return PairMoments(A, B, norms)


@dataclass(frozen=True)
class PairMoments:
    """Contributions W_i by their factors.

    Attributes:
        A: rows a_q (B, p, d).
        B: rows b_q (B, p, d).
        norms: |W_i|_F (B,).
    """

    A: Array
    B: Array
    norms: Array

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Return svec of the clipped sum (d (d + 1) / 2,), and the norms (B,)."""
        _, p, d = self.A.shape
        c = np.repeat(clip_factors(self.norms * widened(d, 2 * p), clip) / p, p)
        W = sum_of_products(self.A.reshape(-1, d), c[:, None] * self.B.reshape(-1, d))
        return svec((W + W.T) / 2.0), self.norms
