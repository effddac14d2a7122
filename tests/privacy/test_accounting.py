from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import (
    from_gaussian_mechanism,
    from_randomized_response,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from privfed.privacy.accounting import (
    GaussianRelease,
    Planned,
    SelectionRelease,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    total_epsilon,
)


def release(z):
    return GaussianRelease("test", 1, 1, 1.0, 1.0, z)


def by_pld(multipliers, delta):
    accountant = PLDAccountant()
    for z in multipliers:
        accountant.compose(dp_event.GaussianDpEvent(z))
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize("multipliers", [[1.0], [4.0] * 26, [20.0, 5.0, 9.0], [0.7, 3.0]])
@pytest.mark.parametrize("delta", [1e-5, 1e-6, 1e-8])
def test_exact_formula_agrees_with_numerical_accounting_and_is_never_above_it(multipliers, delta):
    exact, numerical = total_epsilon(map(release, multipliers), delta), by_pld(multipliers, delta)
    assert exact == pytest.approx(numerical, rel=1e-3)
    assert exact <= numerical * (1 + 1e-6)
    assert exact >= tightest([Planned(mu=1.0 / z) for z in multipliers], delta, pessimistic=False)


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-3, 100), st.floats(1e-12, 0.5))
def test_calibration_and_accounting_are_inverse_and_err_on_the_safe_side(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(epsilon, mu) <= delta
    assert gaussian_delta(epsilon, mu * (1 + 1e-6)) > delta
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-6)


def true_delta(epsilon, mu):
    """The closed form with 50 digits; arguments are taken for the exact numbers they are."""
    epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
    tail = mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
    return mpmath.ncdf(mu / 2 - epsilon / mu) - tail


MUS = [1e-5, 1.7e-4, 1e-3, 0.0123, 0.1, 0.37, 0.5, 0.9, 1.0, 1.83, 3.0, 7.7, 20.0, 93.0, 1e3, 4e3]
DELTAS = [0.3, 0.01, 1e-3, 1.1e-5, 1e-6, 1e-8, 7e-10, 1e-12, 1e-15]


@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_is_never_below_the_truth_nor_far_above(delta):
    with mpmath.workdps(50):
        for mu in MUS:
            epsilon = gaussian_epsilon(mu, delta)
            assert true_delta(epsilon, mu) <= delta, f"mu={mu}: too small"
            assert not epsilon or true_delta(epsilon * (1 - 1e-8), mu) > delta, f"mu={mu}"
            assert true_delta(epsilon, mu) <= gaussian_delta(epsilon, mu) <= delta


@pytest.mark.parametrize("delta", DELTAS)
def test_mu_is_never_above_the_truth_nor_far_below(delta):
    with mpmath.workdps(50):
        for epsilon in [1e-4, 1e-3, 0.0321, 0.1, 0.5, 1.0, 2.0, 3.3, 8.0, 31.0, 250.0, 1e4]:
            mu = gaussian_mu(epsilon, delta)
            assert true_delta(epsilon, mu) <= delta, f"epsilon={epsilon}: too large"
            assert true_delta(epsilon, mu * (1 + 1e-8)) > delta, f"epsilon={epsilon}"


@settings(deadline=None)
@given(
    st.lists(
        st.builds(Planned, st.floats(1e-3, 10), st.floats(0, 3)) | st.builds(Planned, st.just(0.1)),
        min_size=1,
        max_size=20,
    )
)
def test_totals_are_rounded_up(costs):
    square = sum(Fraction(cost.mu) ** 2 for cost in costs)
    rest = Fraction(total_epsilon(costs, 1e-6)) - sum(Fraction(cost.epsilon) for cost in costs)
    with mpmath.workdps(50):
        square, rest = (mpmath.mpf(x.numerator) / x.denominator for x in (square, rest))
        assert true_delta(rest, mpmath.sqrt(square)) <= 1e-6


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_costs_of_releases_are_rounded_up(a, b):
    assert Fraction(GaussianRelease("x", 1, 1, 1.0, a, b).mu) * Fraction(b) >= Fraction(a)
    chosen = SelectionRelease("x", 1, 1, 1.0, a, b)
    assert Fraction(chosen.epsilon) >= Fraction(a) * Fraction(b)
    assert chosen.epsilon <= a * b * (1 + 1e-15)


COSTS = st.one_of(
    st.builds(Planned, mu=st.floats(0.01, 3), group=st.sampled_from([None, 0, 1, 2])),
    st.builds(Planned, epsilon=st.floats(0.01, 3), group=st.sampled_from([None, 0, 1, 2])),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(COSTS, min_size=1, max_size=8),
    COSTS,
    st.floats(1.0, 2.0),
    st.randoms(use_true_random=False),
)
def test_composition_is_monotone_and_order_free(costs, another, dearer, random):
    """Up to rounding: mu is known to one part in 1e16, and epsilon to one in 1e13.

    Epsilon is worse where delta is nearly flat in it.
    """
    epsilon = total_epsilon(costs, 1e-6)
    least = epsilon * (1 - 1e-12)
    more = total_epsilon([*costs, another], 1e-6)
    assert more > epsilon if another.group is None else more >= least
    first, *rest = costs
    assert (
        total_epsilon(
            [Planned(dearer * first.mu, dearer * first.epsilon, first.group), *rest], 1e-6
        )
        >= least
    )
    assert total_epsilon([Planned(first.mu, first.epsilon, None), *rest], 1e-6) >= least, (
        "everybody pays more than a group"
    )
    shuffled = random.sample(costs, len(costs))
    assert total_epsilon(shuffled, 1e-6) == pytest.approx(epsilon, rel=1e-12)


def test_equal_releases_cost_the_same_whoever_pays():
    of_a_group = total_epsilon([Planned(mu=1.5, group=0)] * 2, 1e-6)
    assert total_epsilon([Planned(mu=1.5), Planned(mu=1.5, group=0)], 1e-6) == of_a_group
    assert total_epsilon([Planned(mu=1.5)] * 2, 1e-6) == of_a_group


def tightest(costs, delta, pessimistic):
    """Epsilon of what one user pays by numerical composition: too much (pessimistic) or too little.

    No pure mechanism tells more than randomised response of the same epsilon.
    """
    options = {"value_discretization_interval": 1e-3, "pessimistic_estimate": pessimistic}
    paid = None
    for cost in costs:
        if cost.epsilon:
            loss = from_randomized_response(2.0 / (1.0 + math.exp(cost.epsilon)), 2, **options)
        else:
            loss = from_gaussian_mechanism(1.0 / cost.mu, **options)
        paid = loss if paid is None else paid.compose(loss)
    return paid.get_epsilon_for_delta(delta)


def groups_of(costs):
    groups = {cost.group for cost in costs if cost.group is not None} or {None}
    return [[cost for cost in costs if cost.group in (None, group)] for group in groups]


MIXES = {
    "gaussian": [Planned(mu=0.3), Planned(mu=0.2), Planned(mu=0.5)],
    "gaussian and pure": [
        Planned(mu=0.3),
        Planned(epsilon=0.4),
        Planned(mu=0.5),
        Planned(epsilon=0.1),
    ],
    "groups": [
        Planned(mu=0.3),
        Planned(mu=0.4, group=0),
        Planned(mu=0.2, group=1),
        Planned(mu=0.4, group=1),
    ],
    "groups, gaussian and pure": [
        Planned(mu=0.3),
        Planned(epsilon=0.2),
        Planned(mu=0.4, group=0),
        Planned(epsilon=0.5, group=0),
        Planned(mu=0.9, group=1),
    ],
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_mixes_and_groups_against_numerical_accounting(mix, delta):
    """Exact for Gaussian releases.

    Where pure selections come on top, adding them is safe, and too much by at most their sum.
    """
    costs, ours = MIXES[mix], total_epsilon(MIXES[mix], delta)
    low, high = (
        max(tightest(mine, delta, pessimistic) for mine in groups_of(costs))
        for pessimistic in (False, True)
    )
    assert ours >= low
    if not any(cost.epsilon for cost in costs):
        assert ours == pytest.approx(high, rel=1e-3)
    else:
        assert ours <= high + max(sum(cost.epsilon for cost in mine) for mine in groups_of(costs))


@settings(max_examples=10, deadline=None)
@given(st.lists(COSTS, min_size=1, max_size=4))
def test_no_mix_is_cheaper_than_its_numerical_accounting(costs):
    low = max(tightest(mine, 1e-6, False) for mine in groups_of(costs) if mine)
    assert total_epsilon(costs, 1e-6) >= low * (1 - 1e-9)


def test_disjoint_groups_compose_in_parallel():
    """A user pays for what everybody took part in and for its own group, whatever others pay."""
    everybody, mine, theirs = (
        Planned(mu=0.3),
        Planned(mu=0.4, group=0),
        Planned(mu=0.1, epsilon=0.0, group=1),
    )
    one = total_epsilon([everybody, mine, theirs], 1e-6)
    assert one == pytest.approx(gaussian_epsilon(0.5, 1e-6), rel=1e-12)
    pure = Planned(epsilon=2.0, group=1)
    other = total_epsilon([everybody, mine, theirs, pure], 1e-6)
    assert other == pytest.approx(2.0 + gaussian_epsilon(math.hypot(0.3, 0.1), 1e-6), rel=1e-12)


def test_pure_selections_add_up_and_need_no_delta():
    chosen = [SelectionRelease("best", t, 500, 1.0, 2.0, rate=0.25) for t in range(3)]
    assert total_epsilon(chosen, 0.0) == 1.5
    assert total_epsilon([*chosen, release(3.0)], 0.0) == math.inf
    assert gaussian_mu(5.0, 0.0) == 0.0


@pytest.mark.parametrize("mu", [1e-9, 1e-3, 1.0, 50.0, 1e4])
def test_extreme_costs_stay_finite_and_ordered(mu):
    epsilon = gaussian_epsilon(mu, 1e-6)
    assert math.isfinite(epsilon) and gaussian_delta(epsilon, mu) <= 1e-6


def test_no_noise_has_no_guarantee():
    assert gaussian_epsilon(math.inf, 1e-6) == math.inf
    assert release(0.0).mu == math.inf
    assert gaussian_mu(math.inf, 1e-6) == math.inf
