"""Poisson sampling against other libraries, against plain integration, and in mixes."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant

from privfed.foundation.errors import ConfigError
from privfed.privacy.accounting import GaussianRelease, Planned, gaussian_epsilon, total_epsilon
from privfed.privacy.ledger import Budget, Ledger


@pytest.mark.parametrize(
    ("mu", "q", "rounds", "delta"),
    [
        (0.8, 0.1, 50, 1e-5),
        (1.0, 0.01, 300, 1e-6),
        (0.3, 0.5, 20, 1e-5),
        (2.0, 0.05, 30, 1e-5),
        (0.5, 0.2, 100, 1e-6),
    ],
)
def test_agrees_with_opacus(mu, q, rounds, delta):
    ours = total_epsilon([Planned(mu, sampling=q)] * rounds, delta, replaced=False)
    accountant = PRVAccountant()
    accountant.history = [(1 / mu, q, rounds)]
    error = 0.01  # what opacus may be above or below the truth by
    theirs = accountant.get_epsilon(delta, eps_error=error)
    assert ours == pytest.approx(theirs, rel=0.02) and ours >= theirs - 2 * error


def integrated_delta(epsilon, mu, q, replaced):
    """The hockey-stick divergence of one release; the worse of both directions.

    Densities are added up on a fine grid.
    """
    length = 2.0 if replaced else 1.0
    std = length / mu
    x = np.linspace(-2 - 14 * std, 2 + 14 * std, 400_001)

    def density(centre):
        return np.exp(-0.5 * ((x - centre) / std) ** 2) / (std * math.sqrt(2 * math.pi))

    p = (1 - q) * density(0.0) + q * density(1.0)
    other = (1 - q) * density(0.0) + q * density(-1.0) if replaced else density(0.0)
    step = x[1] - x[0]
    directions = ((p, other), (other, p))
    return max(
        float(np.sum(np.maximum(a - math.exp(epsilon) * b, 0.0)) * step) for a, b in directions
    )


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize(("mu", "q"), [(1.0, 0.3), (2.0, 0.05), (0.5, 0.9)])
def test_one_release_agrees_with_plain_integration_and_errs_on_the_safe_side(mu, q, replaced):
    delta = 1e-4
    epsilon = total_epsilon([Planned(mu, sampling=q)], delta, replaced)
    assert integrated_delta(epsilon, mu, q, replaced) <= delta * (1 + 1e-6)
    assert integrated_delta(epsilon - 5e-4, mu, q, replaced) > delta


@pytest.mark.parametrize("replaced", [True, False])
def test_sampling_almost_everybody_is_no_sampling(replaced):
    most = total_epsilon([Planned(0.8), Planned(0.3, sampling=1 - 1e-9)], 1e-5, replaced)
    assert most == pytest.approx(gaussian_epsilon(math.hypot(0.8, 0.3), 1e-5), rel=1e-3)


def plane_delta(epsilon, q, std, v, w):
    """Delta of (1 - q) N(0) + q N(v) against the same with w, in the plane, on a fine grid."""
    x = np.arange(-1 - 7 * std, 1 + 7 * std, 0.05 * std)

    def mixture(centre):
        stay, join = (
            np.exp(-0.5 * ((x[:, None] - a) ** 2 + (x[None] - b) ** 2) / std**2)
            for a, b in ((0.0, 0.0), centre)
        )
        return ((1 - q) * stay + q * join) * (0.05**2 / (2 * math.pi))

    return float(np.sum(np.maximum(mixture(v) - math.exp(epsilon) * mixture(w), 0.0)))


@pytest.mark.parametrize(("q", "std", "epsilon"), [(0.1, 0.5, 0.3), (0.5, 1.0, 0.1), (0.3, 0.7, 1)])
def test_any_two_parts_of_a_sampled_user_are_dominated_by_opposite_ones(q, std, epsilon):
    """Parts within the unit ball, at any angle; 0 is what a user whose data are emptied sends."""
    worst = plane_delta(epsilon, q, std, (1.0, 0.0), (-1.0, 0.0))
    near = plane_delta(epsilon, q, std, (1.0, 0.0), (0.0, 0.0))
    for angle in np.linspace(0, math.pi, 7):
        for length in (0.0, 0.4, 1.0):
            w = (length * math.cos(angle), length * math.sin(angle))
            for pair in (((1.0, 0.0), w), (w, (1.0, 0.0))):
                assert plane_delta(epsilon, q, std, *pair) <= worst + 1e-5
    # Neither the diameter of a set of parts nor half of it would do where they are orthogonal.
    right = plane_delta(epsilon, q, std, (1.0, 0.0), (0.0, 1.0))
    half = plane_delta(epsilon, q, std, (math.sqrt(0.5), 0.0), (-math.sqrt(0.5), 0.0))
    assert half < right < worst and near < worst


@pytest.mark.parametrize("delta", [1e-9, 1e-10, 1e-12])
def test_many_releases_are_not_understated_at_small_delta(delta):
    """Errors of Fourier transforms add up over releases, and a small delta shows them."""
    costs = [Planned(0.03, sampling=1 - 1e-12)] * 1000
    epsilon, exact = total_epsilon(costs, delta), gaussian_epsilon(math.sqrt(0.9), delta)
    assert epsilon >= exact * (1 - 1e-9)
    if delta >= 1e-9:
        assert epsilon == pytest.approx(exact, rel=1e-3)


def test_a_delta_below_the_precision_has_no_guarantee():
    assert total_epsilon([Planned(0.01, sampling=0.5)] * 100, 1e-14) == math.inf


MIX = st.one_of(
    st.builds(Planned, mu=st.floats(0.05, 1.5)),
    st.builds(Planned, epsilon=st.floats(0.01, 2)),
    st.builds(Planned, mu=st.floats(0.1, 1.5), sampling=st.sampled_from([0.05, 0.3])),
)


@settings(max_examples=8, deadline=None)
@given(st.lists(MIX, min_size=1, max_size=4), MIX, st.booleans(), st.randoms(use_true_random=False))
def test_mixes_are_monotone_and_order_free(costs, another, replaced, random):
    epsilon = total_epsilon(costs, 1e-5, replaced)
    shuffled = random.sample(costs, len(costs))
    assert total_epsilon(shuffled, 1e-5, replaced) == pytest.approx(epsilon, rel=1e-9)
    assert total_epsilon([*costs, another], 1e-5, replaced) >= epsilon * (1 - 1e-3)
    everybody = [Planned(cost.mu, cost.epsilon) for cost in costs]
    assert epsilon <= total_epsilon(everybody, 1e-5, replaced) * (1 + 1e-3)


def test_a_ledger_accounts_for_sampling_and_needs_delta():
    ledger = Ledger(Budget(1.0, 1e-5, "zero-out"))
    release = GaussianRelease("gradient", 1, 10, 1.0, 1.0, 1.0, sampling=0.01)
    ledger.charge(release)
    assert 0 < ledger.epsilon < gaussian_epsilon(1.0, 1e-5)
    assert total_epsilon([release], 0.0) == math.inf
    assert ledger.epsilon_under("replace-one") > ledger.epsilon


def test_without_the_library_it_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    with pytest.raises(ConfigError, match="dp-accounting"):
        total_epsilon([Planned(0.7, sampling=0.123)], 1e-5)
