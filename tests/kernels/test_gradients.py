"""Batched kernels against naive code: any shape, rank-deficient and zero users, any scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import naive

from clients.fedrep import leave_one_out, two_batches
from privfed.foundation.compilation import choosing
from privfed.kernels import least_squares
from privfed.kernels.gradients import FITS, JUDGES, Gradients, split_batches
from privfed.privacy.clipping import clip_factors


@pytest.fixture(params=["never", "always"], scope="module", autouse=True)
def mode(request):
    """Everything holds for NumPy and for compiled loops."""
    with choosing(request.param):
        yield request.param


def LeaveOneOut(X, y, U):
    return Gradients(leave_one_out, X, y, U, 2.0 / y.shape[1])


def TwoBatches(X, y, U, draws, head, batch, loss=1.0):
    weight = 2.0 * loss / batch
    return Gradients(two_batches, X, y, U, weight, split_batches(draws, head, batch))


@st.composite
def users(draw, deficient=True):
    """X (B, m, d), y (B, m), U (d, k): some users have zeros, repeated rows or an extreme scale."""
    B, m = draw(st.integers(1, 5)), draw(st.integers(2, 7))
    d = draw(st.integers(1, 9))
    k = draw(st.integers(1, min(4, d)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    X, y = rng.standard_normal((B, m, d)), rng.standard_normal((B, m))
    for i in range(B):
        kind = draw(
            st.sampled_from(
                ["plain", "zero", "repeated", "huge", "tiny"] if deficient else ["plain"]
            )
        )
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
        np.testing.assert_allclose(
            a, b, rtol=tolerance, atol=tolerance * max(np.linalg.norm(b), 1e-300)
        )


@settings(max_examples=150, deadline=None)
@given(users())
def test_lstsq_is_the_minimum_norm_solution(problem):
    X, y, U = problem
    P = X @ U
    same(least_squares.lstsq(P, y), [naive.min_norm(p, t) for p, t in zip(P, y, strict=True)])


@settings(max_examples=60, deadline=None)
@given(users())
def test_lstsq_of_all_features_is_the_minimum_norm_solution(problem):
    X, y, _ = problem
    same(least_squares.lstsq(X, y), [naive.min_norm(x, t) for x, t in zip(X, y, strict=True)], 1e-5)


@settings(max_examples=50, deadline=None)
@given(users(deficient=False), st.floats(1e-3, 10))
def test_ridge_solves_the_normal_equations(problem, ridge):
    X, y, _ = problem
    v = least_squares.lstsq(X, y, ridge)
    for x, t, w in zip(X, y, v, strict=True):
        np.testing.assert_allclose(x.T @ (x @ w - t) + ridge * w, 0, atol=1e-9)


@settings(max_examples=150, deadline=None)
@given(users())
def test_leave_one_out_gradients_equal_refitting_without_each_example(problem):
    X, y, U = problem
    wanted = [naive.leave_one_out_gradient(x, t, U) for x, t in zip(X, y, strict=True)]
    for i, G in enumerate(wanted):
        total, norms = LeaveOneOut(X[i : i + 1], y[i : i + 1], U).clipped(1e300)
        same([total.T], [G], 1e-5)
        same(norms, [np.linalg.norm(G)], 1e-5)


@settings(max_examples=60, deadline=None)
@given(users(), st.floats(1e-3, 1e3))
def test_clipping_in_the_loop_is_clipping_one_by_one(problem, clip):
    X, y, U = problem
    total, norms = LeaveOneOut(X, y, U).clipped(clip)
    wanted = sum(
        naive.clip(naive.leave_one_out_gradient(x, t, U), clip) for x, t in zip(X, y, strict=True)
    )
    np.testing.assert_allclose(total.T, wanted, atol=1e-4 * clip)
    assert len(norms) == len(X)


@given(st.floats(0, 1e308), st.floats(1e-300, 1e300))
def test_both_forms_of_the_clip_factor_agree(norm, clip):
    from privfed.kernels.compiled import gradient_sums

    assert gradient_sums._clip_factor(norm, clip) == pytest.approx(
        clip_factors(np.array([norm]), clip)[0], rel=1e-15
    )


@settings(max_examples=100, deadline=None)
@given(users(), st.data())
def test_two_batch_gradients_equal_the_paper_line_by_line(problem, data):
    X, y, U = problem
    B, m, _ = X.shape
    head = data.draw(st.integers(1, m - 1))
    batch = data.draw(st.integers(1, m - head))
    draws = np.random.default_rng(0).random((B, m))
    order = np.argsort(draws, axis=1)
    for i in range(B):
        G = naive.two_batch_gradient(X[i], y[i], U, order[i, :head], order[i, head : head + batch])
        own = TwoBatches(X[i : i + 1], y[i : i + 1], U, draws[i : i + 1], head, batch)
        total, norms = own.clipped(1e300)
        same([total.T], [G], 1e-5)
        same(norms, [np.linalg.norm(G)], 1e-5)


@pytest.mark.parametrize(
    ("B", "d", "k"), [(197, 6, 3), (8, 8, 1), (17, 11, 2), (9, 16, 4), (30, 50, 5)]
)
def test_many_users_are_the_sum_of_each_by_itself(B, d, k):
    """Eight users and features at a time, and the remainders; some users without a unique head."""
    rng = np.random.default_rng(3)
    m = 7
    X, y, U = (
        rng.standard_normal((B, m, d)),
        rng.standard_normal((B, m)),
        np.linalg.qr(rng.standard_normal((d, k)))[0],
    )
    X[1], X[2, 1:], X[-1] = 0.0, X[2, 0], X[-1, 0]
    draws = rng.random((B, m))
    for kind in (
        lambda i: LeaveOneOut(X[i], y[i], U),
        lambda i: TwoBatches(X[i], y[i], U, draws[i], 4, 3, 0.5),
    ):
        total, norms = kind(slice(None)).clipped(0.7)
        each = [kind(slice(i, i + 1)).clipped(0.7) for i in range(B)]
        np.testing.assert_allclose(total, sum(part for part, _ in each), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(
            norms, [float(norm[0]) for _, norm in each], rtol=1e-12, atol=1e-12
        )
    naively = sum(
        naive.clip(naive.leave_one_out_gradient(x, t, U), 0.7) for x, t in zip(X, y, strict=True)
    )
    np.testing.assert_allclose(
        LeaveOneOut(X, y, U).clipped(0.7)[0].T, naively, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e200, 3e38])
@pytest.mark.parametrize("place", [0, 5, 7, 10])
def test_what_a_user_has_never_touches_another(broken, place):
    """Not even one who is computed beside, and whatever is not finite adds nothing."""
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((11, 6, 12)), rng.standard_normal((11, 6))
    U, draws = np.linalg.qr(rng.standard_normal((12, 2)))[0], rng.random((11, 6))
    X[place, 2, 4] = broken
    others = np.arange(11) != place
    for kind in (
        lambda i: LeaveOneOut(X[i], y[i], U),
        lambda i: TwoBatches(X[i], y[i], U, draws[i], 3, 3),
    ):
        with np.errstate(all="ignore"):
            total, norms = kind(slice(None)).clipped(0.4)
            own, _ = kind(slice(place, place + 1)).clipped(0.4)
        rest, wanted = kind(others).clipped(0.4)
        assert np.linalg.norm(own) <= 0.4
        np.testing.assert_allclose(total, rest + own, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(norms[others], wanted, rtol=1e-13)


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75]), min_size=1, max_size=8))
def test_batches_are_split_by_order_with_ties_by_position(numbers):
    draws = np.array([numbers])
    order = np.argsort(numbers, kind="stable")
    for head in range(1, len(numbers)):
        marks = split_batches(draws, head, 1)[0]
        assert set(np.flatnonzero(marks == FITS)) == set(order[:head])
        assert np.flatnonzero(marks == JUDGES) == order[head]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_stored_numbers_are_used_as_they_are(dtype):
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((5, 6, 4)).astype(dtype), rng.standard_normal((5, 6)).astype(dtype)
    U = np.linalg.qr(rng.standard_normal((4, 2)))[0]
    found = LeaveOneOut(X, y, U).clipped(0.3)[0]
    wanted = LeaveOneOut(X.astype(np.float64), y.astype(np.float64), U).clipped(0.3)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-15)


def test_the_gradient_is_the_derivative_of_the_loss():
    rng = np.random.default_rng(1)
    X, y, U = (
        rng.standard_normal((1, 8, 5)),
        rng.standard_normal((1, 8)),
        rng.standard_normal((5, 2)),
    )
    v = least_squares.lstsq((X @ U)[:, :4], y[:, :4])[0]

    def loss(U):
        return np.mean((X[0, 4:] @ U @ v - y[0, 4:]) ** 2)

    G = TwoBatches(X, y, U, np.arange(8.0)[None], 4, 4).clipped(1e300)[0].T
    for i, j in np.ndindex(U.shape):
        E = np.zeros_like(U)
        E[i, j] = 1e-6
        assert (loss(U + E) - loss(U - E)) / 2e-6 == pytest.approx(G[i, j], rel=1e-5, abs=1e-7)


def test_no_users_is_no_problem():
    assert least_squares.lstsq(np.empty((0, 3, 2)), np.empty((0, 3))).shape == (0, 2)
    nobody = LeaveOneOut(np.empty((0, 3, 4)), np.empty((0, 3)), np.empty((4, 2)))
    np.testing.assert_array_equal(nobody.clipped(1.0)[0], np.zeros((2, 4)))


def test_heads_without_an_example_are_plain_fits_without_it():
    rng = np.random.default_rng(8)
    P, y = rng.standard_normal((30, 7, 3)), rng.standard_normal((30, 7))
    P[1], P[2, 1:], P[3, :, 2] = 0.0, P[2, 0], P[3, :, 1]
    V = least_squares.leave_one_out_heads(P, y)
    np.testing.assert_allclose(V, least_squares._refitted(P, y), rtol=1e-8, atol=1e-10)
