"""Users of DP-RGrad send the projected gradient, user by user; the retraction is the SVD."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import naive
from test_contributions import cohort, settings_for

from clients.initialisers.regression import RegressionTask as Regression
from clients.rgrad import RGradClient
from privfed.foundation.linalg import low_rank_retraction, retraction, top_singular


def point(d1, d2, r, seed=0):
    """A matrix of rank r by its factors U, S, V."""
    rng = np.random.default_rng(seed)
    U, V = (retraction(rng.standard_normal((d, r))) for d in (d1, d2))
    return U, np.sort(rng.uniform(0.5, 2.0, r))[::-1], V


def parts(x, d1, d2, r):
    A, B, C = np.split(x, [r * r, r * r + r * d2])
    return A.reshape(r, r), B.reshape(r, d2), C.reshape(d1, r)


def matrix(U, V, A, B, C):
    return U @ A @ V.T + U @ B + C @ V.T


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 6),
    st.floats(1e-2, 1e2),
    st.integers(0, 9999),
)
def test_the_sum_is_that_of_clipped_projected_gradients(n, m, d1, d2, clip, seed):
    r = min(d1, d2, 2)
    U, S, V = point(d1, d2, r, seed)
    users = cohort(n, m, d1 * d2, seed)
    sums, count, metrics = RGradClient(users, Regression()).fit(
        [U, S, V], settings_for("gradient", clip)
    )
    wanted = sum(
        naive.clip(naive.tangent_gradient(x, y, U, S, V), clip)
        for x, y in zip(users.X, users.y, strict=True)
    )
    assert (count, metrics, len(sums)) == (n, {"step": 1}, 1)
    np.testing.assert_allclose(
        matrix(U, V, *parts(sums[0], d1, d2, r)), wanted, atol=1e-5 * clip * n + 1e-9
    )


@pytest.mark.parametrize("m", [1, 4])
def test_coordinates_are_an_isometry_onto_the_tangent_space(m):
    d1, d2, r = 7, 5, 3
    U, S, V = point(d1, d2, r)
    users = cohort(20, m, d1 * d2)
    for x, X, y in zip(
        RGradClient(users).gradient(users, [U, S, V], {}), users.X, users.y, strict=True
    ):
        P = naive.tangent_gradient(X, y, U, S, V)
        A, B, C = parts(x, d1, d2, r)
        np.testing.assert_allclose(matrix(U, V, A, B, C), P, atol=1e-12)
        assert np.linalg.norm(x) == pytest.approx(np.linalg.norm(P), rel=1e-12)
        np.testing.assert_allclose(B @ V, 0, atol=1e-12)
        np.testing.assert_allclose(U.T @ C, 0, atol=1e-12)


@pytest.mark.parametrize(("d1", "d2", "r"), [(9, 6, 2), (4, 4, 4), (3, 8, 2), (1, 1, 1), (5, 4, 3)])
@pytest.mark.parametrize("size", [0.0, 1e-9, 0.3, 10.0])
def test_the_retraction_is_the_truncated_svd_of_the_whole_matrix(d1, d2, r, size):
    U, S, V = point(d1, d2, r)
    rng = np.random.default_rng(1)
    A, B, C = (size * rng.standard_normal(shape) for shape in ((r, r), (r, d2), (d1, r)))
    B, C = B - B @ V @ V.T, C - U @ U.T @ C
    new_U, new_S, new_V = low_rank_retraction(U, S, V, A, B, C)
    left, values, right = np.linalg.svd(U @ np.diag(S) @ V.T + matrix(U, V, A, B, C))
    np.testing.assert_allclose(
        new_U @ np.diag(new_S) @ new_V.T,
        (left[:, :r] * values[:r]) @ right[:r],
        atol=1e-12 * (1 + size),
    )
    np.testing.assert_allclose(new_S, values[:r], rtol=1e-12, atol=1e-12)
    for Q in (new_U, new_V):
        np.testing.assert_allclose(Q.T @ Q, np.eye(r), atol=1e-12)


def test_the_initialiser_s_sum_is_that_of_clipped_means():
    users = cohort(30, 3, 12)
    sums, _, _ = RGradClient(users, Regression()).fit([], settings_for("regression", 1.5))
    wanted = sum(naive.clip(y @ X / 3, 1.5) for X, y in zip(users.X, users.y, strict=True))
    np.testing.assert_allclose(sums[0], wanted, rtol=1e-5, atol=1e-6)


def test_singular_vectors_have_fixed_signs():
    L = np.random.default_rng(0).standard_normal((6, 4))
    U, S, V = top_singular(L, 4)
    np.testing.assert_allclose(U @ np.diag(S) @ V.T, L, atol=1e-12)
    assert (U[np.argmax(np.abs(U), axis=0), range(4)] > 0).all()


@pytest.mark.parametrize("task", ["gradient", "regression"])
def test_a_user_whose_numbers_overflow_disturbs_nobody(task):
    users, shared = cohort(20, 2, 12), list(point(4, 3, 2))
    users.X[7], users.y[7] = 0.0, 0.0
    without = RGradClient(users, Regression()).fit(shared, settings_for(task, 1.0))[0][0]
    users.X[7], users.y[7] = 1e200, 1e200
    with_it = RGradClient(users, Regression()).fit(shared, settings_for(task, 1.0))[0][0]
    np.testing.assert_allclose(with_it, without, rtol=1e-12, atol=1e-14)
