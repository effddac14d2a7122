"""Batched ridge regression against loops that refit without each row."""

from __future__ import annotations

import numpy as np
import pytest
from support import naive_tables as naive

from privfed.models import ridge

SIZES = [(1, 1), (1, 4), (2, 5), (5, 5), (9, 3), (30, 4)]


def users(B, m, q, C=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((B, m, q))
    return X, X @ rng.standard_normal((B, q, C)) + 0.5 * rng.standard_normal((B, m, C))


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
def test_heads_are_ridge_solutions_at_the_strength_that_was_chosen(m, q, C):
    X, R = users(6, m, q, C)
    heads = ridge.fit_ridge_heads(X, R)
    for i in range(6):
        np.testing.assert_allclose(
            heads.V[i], naive.ridge(X[i], R[i], heads.lam[i]), rtol=1e-7, atol=1e-9
        )


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize("noise", [0.01, 1.0, 30.0])
@pytest.mark.parametrize(("m", "q"), [(2, 5), (5, 5), (6, 3), (25, 4)])
def test_the_strength_is_the_best_by_brute_force(m, q, C, noise):
    X, R = users(5, m, q, C, seed=3)
    R = R + noise * np.random.default_rng(4).standard_normal(R.shape)
    unit = np.array([1.0, 0.3, 2.0, 1.0, 10.0])
    chosen = ridge.fit_ridge_heads(X, R, unit).lam
    np.testing.assert_allclose(
        chosen, [naive.strength(x, r, u) for x, r, u in zip(X, R, unit, strict=True)], rtol=1e-12
    )


def test_the_choice_follows_the_data_and_stays_near_the_usual_where_there_are_few():
    X, R = users(200, 40, 3)
    exact, none = (
        ridge.fit_ridge_heads(X, y).lam
        for y in (X.sum(axis=2, keepdims=True), np.random.default_rng(0).normal(size=R.shape))
    )
    assert np.median(exact) < 0.01 * np.median(none)
    few = ridge.fit_ridge_heads(*users(500, 2, 3)).lam / ridge.lengths(users(500, 2, 3)[0])
    assert np.quantile(few, 0.05) > 0.05 and np.quantile(few, 0.95) < 100


@pytest.mark.parametrize("m", [3, 4, 8])
def test_centred_rows_are_judged_by_means_without_the_row(m):
    X, R = users(5, m, 4)
    centred = [array - array.mean(axis=1, keepdims=True) for array in (X, R)]
    chosen = ridge.fit_ridge_heads(*centred, np.ones(5), centre=True).lam
    np.testing.assert_allclose(
        chosen,
        [naive.strength(x, r, 1.0, centre=True) for x, r in zip(X, R, strict=True)],
        rtol=1e-12,
    )


@pytest.mark.parametrize("C", [1, 3])
@pytest.mark.parametrize(("m", "q"), SIZES)
def test_leaving_one_out_is_refitting_without_it(m, q, C):
    X, R = users(4, m, q, C)
    heads = ridge.fit_ridge_heads(X, R)
    e, H = ridge.leave_one_out_residuals(X, R, heads)
    for i in range(4):
        np.testing.assert_allclose(
            e[i], naive.left_out(X[i], R[i], heads.lam[i]), rtol=1e-6, atol=1e-9
        )
        for j in range(m):
            fit = heads.V[i] - np.outer(H[i, j], e[i, j])
            np.testing.assert_allclose(
                fit, naive.without(X[i], R[i], j, heads.lam[i]), rtol=1e-6, atol=1e-9
            )


@pytest.mark.parametrize(("m", "q"), SIZES)
@pytest.mark.parametrize(
    "kind", ["zeros", "equal rows", "constant columns", "no targets", "tiny", "large"]
)
def test_degenerate_users_are_as_good_as_any_and_disturb_nobody(m, q, kind):
    X, R = users(3, m, q)
    alone = ridge.fit_ridge_heads(X[::2], R[::2])
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
    heads = ridge.fit_ridge_heads(X, R)
    for array in (
        heads.V,
        heads.lam,
        *ridge.leave_one_out_residuals(X, R, heads),
        ridge.influences(X, 1e-6 * ridge.lengths(X)),
    ):
        assert np.isfinite(array).all()
    np.testing.assert_array_equal(heads.V[::2], alone.V)
    if kind in ("zeros", "no targets"):
        np.testing.assert_array_equal(heads.V[1], 0.0)


def test_nobody_is_a_number_of_users_too():
    X, R = users(0, 3, 4)
    heads = ridge.fit_ridge_heads(X, R)
    assert heads.V.shape == (0, 4, 1) and ridge.leave_one_out_residuals(X, R, heads)[0].shape == (
        0,
        3,
        1,
    )
    assert ridge.influences(X, ridge.lengths(X)).shape == (0, 3, 4)
