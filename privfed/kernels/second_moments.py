"""Second moments of users' weighted examples, by their factors and norms."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.compilation import DropIn
from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import contiguous
from privfed.kernels.tolerances import CANCELLATION

LOOPS = DropIn(
    "privfed.kernels.compiled.second_moments",
    seconds=0.6,
    saves=lambda job: 1.2e-9 * job.users * job.m * job.d,
)


def second_moments(X: NDArray[Any], y: NDArray[Any]) -> tuple[Array, Array, Array]:
    """Factor Z_i = (s s^T - sum_j a_j a_j^T) / (m (m - 1)) with a_j = y_j x_j and s = sum_j a_j.

    Args:
        X: (B, m, d) examples, in the precision they are stored in.
        y: (B, m) targets.

    Returns:
        A (B, m, d), s (B, 1, d) and the norms |Z_i|_F (B,), which count as at least CANCELLATION
        times what is subtracted. All are zero for users whose numbers overflow.
    """
    n, m, d = X.shape
    if loops := LOOPS.chosen():
        A, s, norms = np.empty((n, m, d)), np.empty((n, 1, d)), np.empty(n)
        loops.write_second_moments(contiguous(X), contiguous(y), A, s, norms)
        return A, s, norms
    with np.errstate(all="ignore"):
        A = y[..., None].astype(np.float64) * X
        s = np.sum(A, axis=1, keepdims=True)
        K = np.matmul(A, A.transpose(0, 2, 1))
        inner = np.sum(K, axis=2)  # <s, a_j>
        length, trace = np.sum(inner, axis=1), np.einsum("njj->n", K)
        square = length**2 - 2.0 * np.vecdot(inner, inner) + np.einsum("njl,njl->n", K, K)
        norms = np.maximum(np.sqrt(np.maximum(square, 0.0)), CANCELLATION * (length + trace))
        norms /= m * (m - 1)
        finite = np.isfinite(norms) & np.isfinite(square)
    if not finite.all():
        A, s = (np.where(finite[:, None, None], part, 0.0) for part in (A, s))
        norms = np.where(finite, norms, 0.0)
    return A, s, norms
