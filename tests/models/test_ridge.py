"""Batched ridge smoothers against loops that refit without each row."""

from __future__ import annotations

import numpy as np
import pytest
from support import naive_tables as naive

from privfed.models import ridge

SIZES = [(1, 1), (1, 4), (2, 5), (5, 5), (9, 3), (30, 4)]
STRENGTHS = (0.01, 1.0, 100.0)


def users(B, m, q, C=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((B, m, q))
    return X, X @ rng.standard_normal((B, q, C)) + 0.5 * rng.standard_normal((B, m, C))


def smoothed(X, R):
    """The fits of all strengths, applied to targets and to ones."""
    ones = np.ones((*R.shape[:2], 1))
    return ridge.smooth(X, STRENGTHS, np.concatenate([R, ones], axis=2))


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize(("m", "q"), SIZES)
def test_influences_add_up_to_the_solution(m, q, C):
    X, R = users(4, m, q, C)
    lam = np.array([1e-3, 0.1, 1.0, 100.0])
    H = ridge.influences(X, lam)
    assert H.shape == X.shape
    for i in range(4):
        np.testing.assert_allclose(
            H[i].T @ R[i], naive.ridge(X[i], R[i], lam[i]), rtol=1e-8, atol=1e-10
        )


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize(("m", "q"), SIZES)
def test_a_smoother_leaves_the_residuals_of_ridge(m, q, C):
    X, R = users(4, m, q, C)
    for fit, strength in zip(ridge.smooth(X, STRENGTHS, R), STRENGTHS, strict=True):
        np.testing.assert_allclose(fit.lam, strength * ridge.lengths(X))
        for i in range(4):
            V = naive.ridge(X[i], R[i], fit.lam[i])
            np.testing.assert_allclose(fit.residuals[i], R[i] - X[i] @ V, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("l0", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize(("m", "q"), [size for size in SIZES if size[0] > 1])
def test_leaving_one_out_is_refitting_without_it(m, q, C, l0):
    X, R = users(4, m, q, C)
    for fit in smoothed(X, R):
        c, e = ridge.with_offset(fit, fit.residuals[:, :, :C], fit.residuals[:, :, C], l0)
        for i in range(4):
            wanted = naive.left_out(X[i], R[i], fit.lam[i], l0)
            np.testing.assert_allclose(e[i], wanted, rtol=1e-5, atol=1e-7)
            whole = np.column_stack([np.ones(m), X[i]])
            V = naive.ridge(whole, R[i], [l0] + [fit.lam[i]] * q)
            np.testing.assert_allclose(c[i], V[0], rtol=1e-5, atol=1e-7)


def test_without_features_there_is_the_mean_of_the_others():
    R = np.array([[[1.0], [2.0], [6.0]]])
    fit = ridge.without_features(np.concatenate([R, np.ones_like(R)], axis=2))
    c, e = ridge.with_offset(fit, fit.residuals[:, :, :1], fit.residuals[:, :, 1], 0.0)
    assert c[0, 0] == 3.0
    np.testing.assert_allclose(e[0, :, 0], [1 - 4.0, 2 - 3.5, 6 - 1.5])
    c, _ = ridge.with_offset(fit, fit.residuals[:, :, :1], fit.residuals[:, :, 1], 3.0)
    assert c[0, 0] == 1.5, "three rows at 0 more"


def test_a_row_without_others_keeps_its_target_where_the_offset_is_free():
    R = np.array([[[5.0]]])
    fit = ridge.without_features(np.concatenate([R, np.ones_like(R)], axis=2))
    _, e = ridge.with_offset(fit, fit.residuals[:, :, :1], fit.residuals[:, :, 1], 0.0)
    assert e[0, 0, 0] == 5.0


@pytest.mark.parametrize(("m", "q"), SIZES)
@pytest.mark.parametrize(
    "kind", ["zeros", "equal rows", "constant columns", "no targets", "tiny", "large"]
)
def test_degenerate_users_are_as_good_as_any_and_disturb_nobody(m, q, kind):
    X, R = users(3, m, q)
    alone = smoothed(X[::2], R[::2])
    if kind == "zeros":
        X[1] = 0.0
    elif kind == "equal rows":
        X[1] = X[1, :1]
    elif kind == "constant columns":
        X[1] = 4.0
    elif kind == "no targets":
        R[1] = 0.0
    else:
        X[1] *= 1e-30 if kind == "tiny" else 1e6
    for fit, others in zip(smoothed(X, R), alone, strict=True):
        assert np.isfinite(fit.residuals).all() and np.isfinite(fit.rest).all()
        np.testing.assert_array_equal(fit.residuals[::2], others.residuals)
        for l0 in (0.0, 1.0):
            made = ridge.with_offset(fit, fit.residuals[:, :, :1], fit.residuals[:, :, 1], l0)
            assert all(np.isfinite(array).all() for array in made)
    assert np.isfinite(ridge.influences(X, 1e-6 * ridge.lengths(X))).all()


def test_nobody_is_a_number_of_users_too():
    X, R = users(0, 3, 4)
    assert smoothed(X, R)[0].residuals.shape == (0, 3, 2)
    assert ridge.influences(X, ridge.lengths(X)).shape == (0, 3, 4)
