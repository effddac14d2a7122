"""Batched kernels against naive per-user code: any shape, rank-deficient users, zero users, huge and tiny scales."""

from __future__ import annotations

import naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privfed import kernels
from privfed.privacy.mechanisms import clip_factors


@st.composite
def users(draw, deficient=True):
    """X (B, m, d), y (B, m), U (d, k): some users have zero data, repeated rows or a scale far from 1."""
    B, m = draw(st.integers(1, 5)), draw(st.integers(2, 7))
    d = draw(st.integers(1, 9))
    k = draw(st.integers(1, min(4, d)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    X, y = rng.standard_normal((B, m, d)), rng.standard_normal((B, m))
    for i in range(B):
        kind = draw(st.sampled_from(["plain", "zero", "repeated", "huge", "tiny"] if deficient else ["plain"]))
        if kind == "zero":
            X[i], y[i] = 0.0, 0.0
        elif kind == "repeated":
            X[i] = X[i, 0]
        elif kind in ("huge", "tiny"):
            X[i] *= 1e40 if kind == "huge" else 1e-40
    U = np.linalg.qr(rng.standard_normal((d, k)))[0]
    return X, y, U


def same(found, wanted, tolerance=1e-6):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(np.linalg.norm(b), 1e-300))


@settings(max_examples=150, deadline=None)
@given(users())
def test_lstsq_is_the_minimum_norm_solution(problem):
    X, y, U = problem
    P = X @ U
    same(kernels.lstsq(P, y), [naive.min_norm(p, t) for p, t in zip(P, y, strict=True)])


@settings(max_examples=60, deadline=None)
@given(users())
def test_lstsq_of_all_features_is_the_minimum_norm_solution(problem):
    X, y, _ = problem
    same(kernels.lstsq(X, y), [naive.min_norm(x, t) for x, t in zip(X, y, strict=True)], 1e-5)


@settings(max_examples=50, deadline=None)
@given(users(deficient=False), st.floats(1e-3, 10))
def test_ridge_solves_the_normal_equations(problem, ridge):
    X, y, _ = problem
    v = kernels.lstsq(X, y, ridge)
    for x, t, w in zip(X, y, v, strict=True):
        np.testing.assert_allclose(x.T @ (x @ w - t) + ridge * w, 0, atol=1e-9)


@settings(max_examples=150, deadline=None)
@given(users())
def test_leave_one_out_gradients_equal_refitting_without_each_example(problem):
    X, y, U = problem
    wanted = [naive.leave_one_out_gradient(x, t, U) for x, t in zip(X, y, strict=True)]
    P = X @ U
    for i, G in enumerate(wanted):
        total, norms = kernels.LeaveOneOut(X[i : i + 1], y[i : i + 1], P[i : i + 1]).clipped(1e300)
        same([total.T], [G], 1e-5)
        same(norms, [np.linalg.norm(G)], 1e-5)


@settings(max_examples=60, deadline=None)
@given(users(), st.floats(1e-3, 1e3))
def test_clipping_in_the_loop_is_clipping_one_by_one(problem, clip):
    X, y, U = problem
    total, norms = kernels.LeaveOneOut(X, y, X @ U).clipped(clip)
    wanted = sum(naive.clip(naive.leave_one_out_gradient(x, t, U), clip) for x, t in zip(X, y, strict=True))
    np.testing.assert_allclose(total.T, wanted, atol=1e-4 * clip)
    assert len(norms) == len(X)


@given(st.floats(0, 1e308), st.floats(1e-300, 1e300))
def test_both_forms_of_the_clip_factor_agree(norm, clip):
    assert kernels._clip_factor(norm, clip) == pytest.approx(clip_factors(np.array([norm]), clip)[0], rel=1e-15)


@settings(max_examples=100, deadline=None)
@given(users(), st.data())
def test_two_batch_gradients_equal_the_paper_line_by_line(problem, data):
    X, y, U = problem
    B, m, _ = X.shape
    split = data.draw(st.integers(1, m - 1))
    order = np.argsort(np.random.default_rng(0).random((B, m)), axis=1)
    head, other = order[:, :split], order[:, split:]
    G = kernels.two_batch_gradients(X, y, X @ U, head, other)
    wanted = [naive.two_batch_gradient(X[i], y[i], U, head[i], other[i]) for i in range(B)]
    same(G.transpose(0, 2, 1), wanted, 1e-5)


def test_the_gradient_is_the_derivative_of_the_loss():
    rng = np.random.default_rng(1)
    X, y, U = rng.standard_normal((1, 8, 5)), rng.standard_normal((1, 8)), rng.standard_normal((5, 2))
    head, other = np.arange(4)[None], np.arange(4, 8)[None]
    v = kernels.lstsq((X @ U)[:, :4], y[:, :4])[0]

    def loss(U):
        return np.mean((X[0, 4:] @ U @ v - y[0, 4:]) ** 2)

    G = kernels.two_batch_gradients(X, y, X @ U, head, other)[0].T
    for i, j in np.ndindex(U.shape):
        E = np.zeros_like(U)
        E[i, j] = 1e-6
        assert (loss(U + E) - loss(U - E)) / 2e-6 == pytest.approx(G[i, j], rel=1e-5, abs=1e-7)


def test_no_users_is_no_problem():
    assert kernels.lstsq(np.empty((0, 3, 2)), np.empty((0, 3))).shape == (0, 2)
    nobody = kernels.LeaveOneOut(np.empty((0, 3, 4)), np.empty((0, 3)), np.empty((0, 3, 2)))
    np.testing.assert_array_equal(nobody.clipped(1.0)[0], np.zeros((2, 4)))
