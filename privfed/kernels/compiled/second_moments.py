"""Factors and norms of second moments, compiled: a user's examples stay in cache."""

from __future__ import annotations

import math

import numpy as np

from privfed.foundation.compilation import compiled
from privfed.kernels.compiled.least_squares import dot
from privfed.kernels.tolerances import CANCELLATION


@compiled
def write_second_moments(X, y, A, s, norms):  # type: ignore[no-untyped-def]
    """Write A (B, m0, d), s (B, 1, d) and norms (B,); see `privfed.kernels.second_moments`."""
    users, m0, d = X.shape
    for i in range(users):
        total = s[i, 0]
        for c in range(d):
            total[c] = 0.0
        for j in range(m0):
            target = np.float64(y[i, j])
            for c in range(d):
                A[i, j, c] = target * X[i, j, c]
                total[c] += A[i, j, c]
        length, trace = dot(total, total), 0.0
        square = length * length
        for j in range(m0):
            p, q = dot(A[i, j], total), dot(A[i, j], A[i, j])
            square += q * q - 2.0 * p * p
            trace += q
            for other in range(j):
                p = dot(A[i, j], A[i, other])
                square += 2.0 * p * p
        norms[i] = max(math.sqrt(max(square, 0.0)), CANCELLATION * (length + trace)) / (
            m0 * (m0 - 1)
        )
        if not (math.isfinite(norms[i]) and math.isfinite(square)):
            norms[i] = 0.0
            for c in range(d):
                total[c] = 0.0
                for j in range(m0):
                    A[i, j, c] = 0.0


def prepare_second_moments(variant: str) -> None:
    """Compile for examples stored as float32."""
    X, y = np.ones((1, 2, 1), np.float32), np.ones((1, 2), np.float32)
    write_second_moments(X, y, np.empty((1, 2, 1)), np.empty((1, 1, 1)), np.empty(1))
