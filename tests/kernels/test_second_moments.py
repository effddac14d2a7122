"""Second moments by NumPy and by compiled loops against the naive ones."""

from __future__ import annotations

import numpy as np
import pytest
from support import naive

from privfed.foundation.compilation import choosing
from privfed.kernels.second_moments import second_moments


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mode", ["never", "always"])
def test_factors_and_norms_are_those_of_the_second_moment(mode, dtype):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((9, 5, 7)).astype(dtype), rng.standard_normal((9, 5)).astype(dtype)
    X[3], X[4] = 0.0, 1e160 if dtype == np.float64 else np.inf
    with choosing(mode):
        A, s, norms = second_moments(X, y)
    for i in range(9):
        if i == 4:
            assert norms[i] == 0.0 and not A[i].any() and not s[i].any()
            continue
        Z = (s[i].T @ s[i] - A[i].T @ A[i]) / 20
        wanted = naive.second_moment(X[i].astype(np.float64), y[i].astype(np.float64))
        np.testing.assert_allclose(Z, wanted, rtol=1e-10, atol=1e-12)
        assert norms[i] == pytest.approx(np.linalg.norm(wanted), rel=1e-10)


def test_numpy_and_compiled_loops_agree():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((50, 10, 13)).astype(np.float32), rng.standard_normal((50, 10))
    found = []
    for mode in ("never", "always"):
        with choosing(mode):
            found.append(second_moments(X, y))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
