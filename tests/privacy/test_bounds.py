"""Bounds state true sensitivities, and what a release is charged can be computed again."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from privfed.foundation.linalg import svec
from privfed.privacy.bounds import (
    AssumedSensitivity,
    NonNegativeBound,
    NormBound,
    OuterProductBound,
    SemidefiniteBound,
)
from privfed.privacy.clipping import (
    PROJECTIONS,
    SCORE,
    Dense,
    clip_non_negative,
    clip_semidefinite,
    norm,
)
from privfed.privacy.distances import DISTANCES, sensitivity_of
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.neighbouring import RELATIONS, REPLACE_ONE, ZERO_OUT
from privfed.privacy.noise import SeededNoise

VECTORS = arrays.arrays(np.float64, 4, elements=st.floats(-1e3, 1e3))
BOUNDS = [
    NormBound(3.0),
    OuterProductBound(0.5),
    NonNegativeBound(2.0),
    SemidefiniteBound(2.0),
    AssumedSensitivity(7.0),
]


@given(VECTORS, VECTORS, st.floats(1e-3, 1e3))
def test_outer_products_are_closer_than_two_norms(u, v, clip):
    """Any two users' parts, clipped and half-vectorised as clients do it; 0 is one of them."""
    parts = [svec(np.outer(x, x)) for x in (u, v, np.zeros(4))]
    one, other, none = (Dense(part[None]).clipped(clip)[0] for part in parts)
    bound = OuterProductBound(clip)
    assert np.linalg.norm(one - other) <= bound.sensitivity(REPLACE_ONE)
    assert np.linalg.norm(one - none) <= bound.sensitivity(ZERO_OUT)
    assert bound.sensitivity(REPLACE_ONE) == pytest.approx(math.sqrt(2) * clip)


def test_orthogonal_unit_vectors_reach_the_bound():
    e = np.eye(3)
    distance = np.linalg.norm(np.outer(e[0], e[0]) - np.outer(e[1], e[1]))
    assert distance == pytest.approx(OuterProductBound().sensitivity(REPLACE_ONE))


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.kind)
@pytest.mark.parametrize("relation", RELATIONS)
def test_kind_and_radius_say_the_sensitivity(bound, relation):
    assert sensitivity_of(bound.kind, bound.radius, relation) == bound.sensitivity(relation)
    assert bound.sensitivity(relation) <= 2 * bound.radius and bound.kind in DISTANCES


@pytest.mark.parametrize("bound", BOUNDS[:2], ids=lambda bound: bound.kind)
@pytest.mark.parametrize("relation", [REPLACE_ONE, ZERO_OUT])
@pytest.mark.parametrize("sampling", [1.0, 0.1])
def test_the_gate_charges_what_a_verifier_computes(bound, relation, sampling):
    gate = NoiseGate(Ledger(Budget(100.0, 1e-6, relation)), SeededNoise(0))
    gate.release("x", np.zeros(50), bound=bound, mu=0.5, round=1, sampling=sampling)
    (entry,) = gate.ledger.releases
    assert entry.bound == bound.kind and entry.grid > 0
    assert entry.sensitivity == sensitivity_of(
        entry.bound, entry.clip, relation, sampling=sampling, rounding=entry.rounding
    )


@pytest.mark.parametrize("relation", [REPLACE_ONE, ZERO_OUT])
def test_a_sampled_user_moves_the_rounded_sum_by_radius_and_a_whole_step(relation):
    """With coins, both parts are compared with the absence of a part.

    Rounding moves each of the two comparisons by up to one grid step per coordinate. Accounting
    uses the sensitivity divided by the number of comparisons as the length of one of them.
    """
    gate = NoiseGate(Ledger(Budget(100.0, 1e-6, relation)), SeededNoise(0))
    gate.release("x", np.zeros(50), bound=NormBound(1.0), mu=0.5, round=1, sampling=0.1)
    (entry,) = gate.ledger.releases
    lengths = 2 if relation == REPLACE_ONE else 1
    grid = 2.0 ** math.floor(math.log2(entry.std / 2**24))
    assert entry.sensitivity / lengths >= 1.0 + grid * math.sqrt(50)


def test_sampling_counts_the_radius_of_every_bound():
    """A part of norm 1 that joins or not moves the sum by 1, however close two parts are."""
    gate = NoiseGate(Ledger(Budget(100.0, 1e-6)), SeededNoise(0))
    gate.release("x", np.zeros(9), bound=OuterProductBound(), mu=0.5, round=1, sampling=0.1)
    assert gate.ledger.releases[0].sensitivity >= 2.0
    with pytest.raises(ValueError, match="sampled"):
        sensitivity_of("assumed", 1.0, REPLACE_ONE, sampling=0.5)


@given(st.integers(1, 10**9), st.floats(0.01, 20.0))
def test_rounding_of_exponents_is_part_of_a_selection_s_sensitivity(users, epsilon):
    """Exponents are rounded once; totals of n users are whole numbers up to n 2^20."""
    gate = NoiseGate(Ledger(Budget(100.0, 0.0)), SeededNoise(0))
    total = np.array([users * SCORE, np.floor(users * SCORE / 3), 0.0])
    gate.select("x", total, bound=NormBound(SCORE), epsilon=epsilon, round=1, users=users)
    (entry,) = gate.ledger.releases
    computed = entry.rate * (total - np.max(total))
    exact = [Fraction(entry.rate) * int(score - np.max(total)) for score in total]
    error = max(abs(Fraction(float(a)) - b) for a, b in zip(computed, exact, strict=True))
    exactly = Fraction(entry.rate) * Fraction(2 * SCORE)
    assert exactly + 4 * error <= Fraction(entry.epsilon)
    assert entry.epsilon <= epsilon * (1 + 1e-15)


@given(VECTORS, VECTORS)
def test_parts_without_negative_inner_products_are_closer_than_two_norms(a, b):
    """Whatever two nodes of one user send, the server's sums differ by at most sqrt(2) clip."""
    a, b = np.abs(a), np.abs(b)
    a, b = (x / max(1.0, norm(x)) for x in (a, b))
    assert norm(a - b) <= NonNegativeBound(1.0).sensitivity(REPLACE_ONE) * (1 + 1e-12)
    matrices = [svec(np.outer(x, x) + np.diag(x**2)) for x in (a, b)]
    A, B = (x / max(1.0, norm(x)) for x in matrices)
    assert norm(A - B) <= SemidefiniteBound(1.0).sensitivity(REPLACE_ONE) * (1 + 1e-12)


@pytest.mark.parametrize("kind", sorted(PROJECTIONS))
def test_the_server_makes_any_message_a_part_of_its_kind(kind):
    rng = np.random.default_rng(0)
    bounded = PROJECTIONS[kind]
    for scale in (1e-3, 1.0, 1e30):
        made = [bounded(scale * rng.standard_normal(10), 1.0) for _ in range(40)]
        apart = max(norm(one - other) for one in made for other in made)
        assert apart <= DISTANCES[kind](1.0, REPLACE_ONE)
    assert not bounded(np.full(10, np.nan), 1.0).any()


def test_what_users_send_passes_the_server_unchanged():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((3, 4))
    total = svec(X.T @ X)  # of rank 3: rounding leaves an eigenvalue on either side of 0
    np.testing.assert_array_equal(clip_semidefinite(total, 1e3), total)
    counts = np.abs(rng.standard_normal(6))
    np.testing.assert_array_equal(clip_non_negative(counts, 1e3), counts)
    np.testing.assert_allclose(clip_non_negative(np.array([3.0, -4.0]), 9.0), [3.0, 0.0])
    low = svec(np.diag([2.0, -1.0]))
    np.testing.assert_allclose(clip_semidefinite(low, 9.0), svec(np.diag([2.0, 0.0])), atol=1e-15)
