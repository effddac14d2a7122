from __future__ import annotations

import math

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from privfed.privacy.accounting import GaussianRelease, compose, gaussian_delta, gaussian_epsilon, gaussian_mu


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
    exact, numerical = gaussian_epsilon(compose(map(release, multipliers)), delta), by_pld(multipliers, delta)
    assert exact == pytest.approx(numerical, rel=1e-3)
    assert exact <= numerical * (1 + 1e-6)


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-3, 100), st.floats(1e-12, 0.5))
def test_calibration_and_accounting_are_inverse_and_err_on_the_safe_side(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(epsilon, mu) <= delta
    assert gaussian_delta(epsilon, mu * (1 + 1e-6)) > delta
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=8), st.floats(0.1, 100))
def test_composition_is_monotone_and_order_free(multipliers, another):
    mu = compose(map(release, multipliers))
    assert compose(map(release, [*multipliers, another])) > mu
    assert compose(map(release, reversed(multipliers))) == mu


@pytest.mark.parametrize("mu", [1e-9, 1e-3, 1.0, 50.0, 1e4])
def test_extreme_costs_stay_finite_and_ordered(mu):
    epsilon = gaussian_epsilon(mu, 1e-6)
    assert math.isfinite(epsilon) and gaussian_delta(epsilon, mu) <= 1e-6


def test_no_noise_has_no_guarantee():
    assert gaussian_epsilon(math.inf, 1e-6) == math.inf
    assert release(0.0).mu == math.inf
    assert gaussian_mu(math.inf, 1e-6) == math.inf
