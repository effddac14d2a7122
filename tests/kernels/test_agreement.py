"""NumPy and compiled loops give the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from clients.fedrep import leave_one_out, two_batches
from privfed.foundation.compilation import choosing
from privfed.kernels import least_squares
from privfed.kernels.gradients import Gradients, split_batches


def both(function):
    found = []
    for mode in ("never", "always"):
        with choosing(mode):
            found.append(function())
    return found


def agree(found, wanted, tolerance=1e-12):
    for a, b in zip(found, wanted, strict=True):
        limit = tolerance * np.abs(b).max(initial=1e-300)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=limit)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("m", "d"), [(2, 5), (4, 7), (6, 13), (10, 50), (14, 9)])
def test_gradients_agree(k, m, d, dtype):
    """Some users have dependent rows, no data, or overflowing numbers; some shapes have m <= k."""
    rng = np.random.default_rng([k, m, d])
    B, fits = 53, m - m // 2
    X, y = rng.standard_normal((B, m, d)), rng.standard_normal((B, m))
    X[1], X[2, 1:], X[7, 0], X[11] = 0.0, X[2, 0], X[7, 1], X[11] * 1e10
    X[20], X[21, 0, 0], y[22, 0] = 3e38, np.nan, np.inf
    X, y = X.astype(dtype), y.astype(dtype)
    U, draws = np.linalg.qr(rng.standard_normal((d, k)))[0], rng.random((B, m))

    def by_leaving_one_out():
        return Gradients(leave_one_out, X, y, U, 2.0 / m).clipped(0.3)

    def by_two_batches():
        batches = split_batches(draws, fits, m // 2)
        return Gradients(two_batches, X, y, U, 1.0 / (m // 2), batches).clipped(0.3)

    for estimate, rows in ((by_leaving_one_out, m - 1), (by_two_batches, fits)):
        (total, norms), (wanted, lengths) = both(estimate)
        # A head of k numbers fitted on hardly more rows may lose digits, and its gradient be huge.
        agree([total], [wanted], 1e-12 if rows <= k - 1 or rows >= 2 * k else 1e-9)
        usual = lengths < 100
        np.testing.assert_allclose(norms[usual], lengths[usual], rtol=1e-10, atol=1e-14)
        assert norms[21] == norms[22] == 0.0


def test_blocks_of_users_do_not_change_a_sum(monkeypatch):
    rng = np.random.default_rng(6)
    X, y, U = rng.standard_normal((70, 6, 9)), rng.standard_normal((70, 6)), np.eye(9)[:, :2]
    gradients = Gradients(leave_one_out, X, y, U, 2.0 / 6)
    with choosing("never"):
        whole = gradients.clipped(0.3)
        monkeypatch.setattr("privfed.kernels.gradients.BLOCK", 6 * 9 * 8)
        agree(gradients.clipped(0.3), whole)


@pytest.mark.parametrize("shape", [(7, 3, 8), (40, 10, 2), (5, 6, 6), (3, 4, 1)])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_least_squares_agree(shape, ridge):
    rng = np.random.default_rng(7)
    A, y = rng.standard_normal(shape), rng.standard_normal(shape[:2])
    A[0], A[1, 1:] = 0.0, A[1, 0]
    # A square system of 6 may have a condition number of 1e4, which is squared.
    np.testing.assert_allclose(*both(lambda: least_squares.lstsq(A, y, ridge)), rtol=1e-8)
    X, W = A.astype(np.float32), rng.standard_normal((shape[0], shape[2]))
    np.testing.assert_allclose(*both(lambda: least_squares.predictions(X, W)), atol=1e-13)
