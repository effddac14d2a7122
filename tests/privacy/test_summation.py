"""One user moves a computed sum by no more than is charged, however many users there are."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from clients.fedrep import leave_one_out
from clients.initialisers.spectral import SecondMoments
from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import CohortClient, task
from privfed.algorithm.replies import totals_of
from privfed.data.cohort import Cohort
from privfed.foundation.compilation import choosing
from privfed.foundation.linalg import unsvec
from privfed.kernels.gradients import Gradients
from privfed.kernels.second_moments import second_moments
from privfed.privacy.bounds import NormBound
from privfed.privacy.clipping import Dense, clip
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.noise import SeededNoise
from privfed.privacy.summation import (
    DEPTH,
    OWN,
    SLACK,
    Total,
    excess,
    rounding,
    sum_of_products,
    weighted_sum,
    widened,
)
from privfed.runtimes.inprocess import LocalProxy

CLIP = 0.5 / (1 - 2e-6)
"""Parts of +-0.5 are as long as a clipped part can be, and pass the clip unchanged."""
LARGE, SMALL = 32, 20_000
STEP = 0.74 * 2.0**-31
"""Above 2^21 numbers have steps of 2^-31, and STEP is rounded up; below, it is rounded down."""


class Millions(CohortClient):
    """Others bring the sum to 2^21, and one user decides on which side of it rounding happens."""

    def __init__(self, one):
        super().__init__(Cohort.empty(2, 1), None)
        self.one = one

    def blocks(self, users=None):
        yield np.full((1, 1), self.one)
        for _ in range(LARGE):
            yield np.full((2**22 // LARGE, 1), 0.5)
        small = np.zeros((64, 1))
        small[0] = STEP
        for _ in range(SMALL):
            yield small

    @task
    def part(self, block, shared, told):
        return block


def test_one_of_five_million_users_moves_the_sum_by_two_clip_norms_at_most():
    told = Announcement(1, "part", 1, 0, (CLIP,), True, "").to_config()
    with choosing("never"):
        a, b = (Millions(one).fit([], told)[0][0] for one in (0.5, -0.5))
    users = 1 + 2**22 + 64 * SMALL
    assert abs(a - b)[0] <= NormBound(CLIP).sensitivity("replace-one")
    assert abs(a - b)[0] - 1.0 <= 2 * CLIP * rounding(users)


def test_one_of_many_nodes_moves_the_sum_by_two_clip_norms_at_most():
    def reply(x):
        return FitRes(Status(Code.OK, ""), ndarrays_to_parameters([np.array([x])]), 1, {"step": 1})

    large, small, nodes = reply(2.0**21), reply(STEP), 10_000
    asked = {"one": 1, "large": 2**22} | {str(i): 1 for i in range(nodes)}
    rest = [(LocalProxy("large", None), large)]
    rest += [(LocalProxy(str(i), None), small) for i in range(nodes)]
    (a,), (b,) = (
        totals_of([(LocalProxy("one", None), reply(one)), *rest], [((1,), CLIP)], asked, clip, 1)[0]
        for one in (0.5, -0.5)
    )
    assert abs(a - b)[0] <= NormBound(CLIP).sensitivity("replace-one")


@given(arrays.arrays(np.float64, (7, 2), elements=st.floats(-1e15, 1e15)))
def test_compensated_sums_are_rounded_once(values):
    total = Total()
    for row in values:
        total.add(row)
    for computed, column in zip(total.value, values.T, strict=True):
        exact = sum(map(Fraction, column.tolist()))
        error = abs(Fraction(float(computed)) - exact)
        terms = math.fsum(map(abs, column))
        assert error <= 2.0**-53 * abs(exact) + (7 * 2.0**-53) ** 2 * Fraction(terms)


def worst(computed, terms):
    """Return the largest error of a sum of terms (n, d), relative to their absolute values."""
    exact = [math.fsum(column) for column in np.asarray(terms).T]
    absolute = [math.fsum(column) for column in np.abs(terms).T]
    return np.max(np.abs(np.ravel(computed) - exact) / absolute)


LIMIT = (DEPTH + 8) * 2.0**-53


def test_sums_of_one_block_keep_the_depth():
    """Equal terms are rounded in the same direction every time: plain sums would drift away."""
    weights, rows = np.full(30_000, 0.3), np.full((30_000, 2), 0.1)
    assert worst(weighted_sum(weights, rows), weights[:, None] * rows) <= LIMIT
    assert worst(Dense(rows).clipped(1.0)[0], rows) <= LIMIT
    products = np.einsum("na,nb->nab", rows, rows).reshape(-1, 4)
    assert worst(sum_of_products(rows, rows), products) <= LIMIT
    np.testing.assert_array_equal(
        sum_of_products(rows, rows.copy()), sum_of_products(rows, rows), strict=True
    )


@pytest.mark.parametrize("compiled", ["never", "always"])
@pytest.mark.parametrize("users", [5, DEPTH, 3 * DEPTH + 8, 20_001])
def test_sums_of_gradients_keep_the_depth(compiled, users):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((1, 4, 9)), rng.standard_normal((1, 4))
    X, y = (np.repeat(array.astype(np.float32), users, axis=0) for array in (X, y))
    U = np.eye(9)[:, :2]
    gradients = Gradients(leave_one_out, X, y, U, weight=0.5)
    with choosing(compiled):
        total, norms = gradients.clipped(0.01)
        one = Gradients(leave_one_out, X[:1], y[:1], U, weight=0.5).clipped(0.01)[0]
    assert np.all(norms > 0.01)
    # Each user's own part is computed with a few roundings of its own.
    np.testing.assert_allclose(total, users * one, rtol=LIMIT, atol=0)


def test_few_users_cost_nothing_and_many_little():
    assert excess(0) == excess(20_000) == 0.0
    assert excess(10**6) == pytest.approx(2 * rounding(10**6) - (1 - SLACK - OWN))
    assert 0 < excess(10**6) < 1e-4 and excess(10**9) < 0.1


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
@pytest.mark.parametrize("sampling", [1.0, 0.5])
def test_the_gate_charges_rounding_of_sums(relation, sampling):
    entries = []
    for users in (0, 10**8):
        gate = NoiseGate(Ledger(Budget(100.0, 1e-6, relation)), SeededNoise(0))
        gate.release(
            "x",
            np.zeros(3),
            bound=NormBound(2.0),
            mu=0.5,
            round=1,
            users=users,
            sampling=sampling,
        )
        entries += gate.ledger.releases
    times = 2 if relation == "replace-one" and sampling < 1 else 1
    more = entries[1].sensitivity - entries[0].sensitivity
    assert more == pytest.approx(times * 2.0 * excess(10**8), rel=1e-6)


def test_norms_of_differences_are_widened_where_they_are_uncertain():
    assert widened(50, 10) == 1.0 < widened(200, 10) < widened(5000, 100)


@pytest.mark.parametrize("d", [3, 400])
@pytest.mark.parametrize("size", [1.0, 1e5])
def test_huge_examples_that_cancel_stay_within_the_clip_norm(d, size):
    rng = np.random.default_rng(d)
    a = size * rng.standard_normal((1, 1, d))
    X = np.concatenate([a, 1e-7 * size * rng.standard_normal((1, 3, d))], axis=1)
    A, s, norms = second_moments(X, np.ones((1, 4)))
    Z = unsvec(SecondMoments(A, s, norms, 1 / 12).clipped(1e-3)[0], d)
    assert np.linalg.norm(Z) <= 1e-3
