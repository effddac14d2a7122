from __future__ import annotations

import math

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from privfed.privacy.accounting import (
    GaussianRelease,
    Planned,
    Selection,
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


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-3, 100), st.floats(1e-12, 0.5))
def test_calibration_and_accounting_are_inverse_and_err_on_the_safe_side(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(epsilon, mu) <= delta
    assert gaussian_delta(epsilon, mu * (1 + 1e-6)) > delta
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-6)


COSTS = st.one_of(
    st.builds(Planned, mu=st.floats(0.01, 3), group=st.sampled_from([None, 0, 1, 2])),
    st.builds(Planned, epsilon=st.floats(0.01, 3), group=st.sampled_from([None, 0, 1, 2])),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(COSTS, min_size=1, max_size=8), COSTS)
def test_composition_is_monotone_and_order_free(costs, another):
    epsilon = total_epsilon(costs, 1e-6)
    more = total_epsilon([*costs, another], 1e-6)
    assert more > epsilon if another.group is None else more >= epsilon
    assert total_epsilon(reversed(costs), 1e-6) == pytest.approx(epsilon, rel=1e-12)


def test_disjoint_groups_compose_in_parallel():
    """A user pays for what everybody took part in and for its own group, whatever the others pay."""
    everybody, mine, theirs = Planned(mu=0.3), Planned(mu=0.4, group=0), Planned(mu=0.1, epsilon=0.0, group=1)
    assert total_epsilon([everybody, mine, theirs], 1e-6) == gaussian_epsilon(0.5, 1e-6)
    pure = Planned(epsilon=2.0, group=1)
    assert total_epsilon([everybody, mine, theirs, pure], 1e-6) == 2.0 + gaussian_epsilon(math.hypot(0.3, 0.1), 1e-6)


def test_pure_selections_add_up_and_need_no_delta():
    chosen = [Selection("best", t, 500, 1.0, 2.0, rate=0.25) for t in range(3)]
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
