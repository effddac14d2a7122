"""The audit's bounds: right as often as they say, and near the truth where there is enough data."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from privfed.audit import lower_bounds
from privfed.audit.audit_verdict import examine
from privfed.audit.lower_bounds import (
    claimed_trade_off,
    discriminant,
    epsilon_of,
    gaussian_fit,
    measured_trade_off,
    one_run_epsilon,
    one_run_p_value,
    proportion_lower,
    proportion_upper,
    threshold_bound,
)
from privfed.privacy.accounting import GaussianRelease, gaussian_epsilon, gaussian_mu
from privfed.privacy.ledger import Budget


def gaussian_worlds(rng, n, mu, rho):
    """Values of two worlds at distance mu whose noise has correlation rho."""
    z, w = rng.standard_normal((2, n))
    return mu + z, rho * z + math.sqrt(1 - rho**2) * w


@pytest.mark.parametrize(
    ("mu", "rho"), [(0.0, 0.0), (0.8, 0.0), (0.8, 0.6), (0.8, 1.0), (6.0, 1.0)]
)
def test_the_gaussian_bound_is_too_high_no_more_often_than_stated(mu, rho, monkeypatch):
    monkeypatch.setattr(
        lower_bounds, "_normality", lambda x, sd: 1.0
    )  # slow, and not what is tested here
    rng, trials, alpha = np.random.default_rng(0), 2000, 0.02
    bounds = np.array(
        [gaussian_fit(*gaussian_worlds(rng, 60, mu, rho), alpha).mu_lower for _ in range(trials)]
    )
    wrong = np.mean(bounds > mu)
    assert wrong <= alpha + 3 * math.sqrt(alpha / trials)
    assert mu == 0 or wrong > alpha / 20, "far too cautious"


def test_the_gaussian_bound_is_the_exact_one_for_a_known_difference():
    """With the same noise in both worlds only the sd is unknown; its bound is a chi^2 quantile."""
    rng = np.random.default_rng(1)
    for n, alpha in ((100, 0.01), (5000, 0.0005)):
        ones, zeros = gaussian_worlds(rng, n, 0.8, 1.0)
        fit = gaussian_fit(ones, zeros, alpha)
        exact = fit.mu * math.sqrt(stats.chi2.ppf(alpha, n - 1) / (n - 1))
        assert fit.mu_lower == pytest.approx(exact, rel=5e-3) and fit.mu_lower <= exact


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_a_known_mu_is_recovered(epsilon):
    mu = gaussian_mu(epsilon, 1e-6)
    fit = gaussian_fit(*gaussian_worlds(np.random.default_rng(2), 10_000, mu, 1.0), 0.0005)
    assert fit.applies and 0.95 * epsilon <= epsilon_of(fit.mu_lower, 1e-6) <= epsilon


def test_values_that_are_not_normal_are_noticed():
    rng = np.random.default_rng(3)
    assert not gaussian_fit(1 + rng.laplace(size=2000), rng.laplace(size=2000), 0.01).applies
    assert not gaussian_fit(
        rng.integers(0, 2, 2000).astype(float), rng.integers(0, 2, 2000).astype(float), 0.01
    ).applies


def test_worlds_without_noise_are_infinitely_far_apart_and_equal_ones_not_at_all():
    ones, zeros = np.full(100, 3.0), np.full(100, 1.0)
    assert gaussian_fit(ones, zeros, 0.01).mu_lower > 1e6
    assert gaussian_fit(zeros, zeros, 0.01).mu_lower == 0 and epsilon_of(0.0, 1e-6) == 0
    assert threshold_bound(ones, zeros, 0.0, 0.01) > 1.5


def test_proportions_agree_with_scipy():
    for count, n in ((0, 10), (3, 10), (10, 10), (7, 1000)):
        low, high = stats.binomtest(count, n).proportion_ci(0.98, "exact")
        assert proportion_lower(np.array(count), n, 0.01) == pytest.approx(low)
        assert proportion_upper(np.array(count), n, 0.01) == pytest.approx(high)


def test_the_counted_bound_is_too_high_no_more_often_than_stated():
    """Randomised response is exactly epsilon-private, and nothing smaller."""
    rng, trials, alpha, epsilon = np.random.default_rng(4), 600, 0.05, 1.0
    q = 1 / (1 + math.exp(-epsilon))
    bounds = []
    for _ in range(trials):
        ones, zeros = (rng.random((2, 400)) < np.array([[q], [1 - q]])).astype(float)
        bounds.append(threshold_bound(ones, zeros, 0.0, alpha))
    assert np.mean(np.array(bounds) > epsilon) <= alpha + 3 * math.sqrt(alpha / trials)
    ones, zeros = (rng.random((2, 200_000)) < np.array([[q], [1 - q]])).astype(float)
    assert 0.95 * epsilon < threshold_bound(ones, zeros, 0.0, alpha) <= epsilon


def test_the_counted_bound_finds_events_of_either_world():
    rng = np.random.default_rng(5)
    rare = (rng.random(20_000) < 0.2) * 5.0 + rng.random(20_000)
    assert threshold_bound(rare, rng.random(20_000), 0.0, 0.01) > 4
    assert threshold_bound(-rng.random(20_000), -rare, 0.0, 0.01) > 4
    assert threshold_bound(rare, rng.random(20_000), 0.3, 0.01) == 0, (
        "what delta allows is no violation"
    )


def test_the_counted_bound_of_gaussian_values_stays_below_the_exact_epsilon():
    ones, zeros = gaussian_worlds(np.random.default_rng(6), 100_000, 1.0, 0.0)
    assert 1.5 < threshold_bound(ones, zeros, 1e-2, 0.001) < gaussian_epsilon(1.0, 1e-2)


def test_the_discriminant_finds_the_best_weights():
    rng, C = np.random.default_rng(7), np.array([[1.0, 0.9, 0], [0.9, 1.0, 0], [0, 0, 4.0]])
    noise = rng.multivariate_normal(np.zeros(3), C, 20_000)
    weights = discriminant(noise + np.array([1.0, 0.0, 1.0]), noise)
    expected = np.linalg.solve(C, [1.0, 0.0, 1.0])
    np.testing.assert_allclose(weights / weights[0], expected / expected[0], atol=0.05)


def test_the_discriminant_finds_noise_that_was_used_twice_and_leaves_out_what_never_varies():
    z = np.random.default_rng(8).standard_normal(500)
    zeros = np.stack([z, z, np.full(500, 7.0)], axis=1)
    weights = discriminant(zeros + np.array([1.0, -1.0, 0.0]), zeros)
    assert (
        weights[2] == 0
        and gaussian_fit(
            (zeros + np.array([1.0, -1.0, 0])) @ weights, zeros @ weights, 0.01
        ).mu_lower
        > 100
    )


def test_one_run_is_too_high_no_more_often_than_stated():
    rng, m, epsilon, alpha = np.random.default_rng(9), 200, 1.5, 0.05
    right = rng.binomial(m, 1 / (1 + math.exp(-epsilon)), 400)
    bound = {v: one_run_epsilon(m, m, int(v), 0.0, alpha) for v in set(right)}
    bounds = np.array([bound[v] for v in right])
    assert (
        np.mean(bounds > epsilon) <= alpha + 3 * math.sqrt(alpha / 400)
        and np.median(bounds) > 0.7 * epsilon
    )


def test_one_run_knows_its_theorem():
    assert one_run_p_value(100, 100, 100, 0.0, 0.0) == pytest.approx(2.0**-100)
    assert one_run_p_value(100, 50, 0, 1.0, 0.0) == 1.0
    # Every guess right by chance at delta = 1 / m: the delta term is
    # 2 m delta P[B = v - 1 or ...] / i at its largest.
    q = 1 / (1 + math.exp(-2.0))
    below = [stats.binom.cdf(9, 10, q) - stats.binom.cdf(9 - i, 10, q) for i in range(1, 11)]
    expected = q**10 + 2 * 20 * 0.001 * max(p / i for i, p in enumerate(below, start=1))
    assert one_run_p_value(20, 10, 10, 2.0, 0.001) == pytest.approx(expected)
    assert (
        one_run_epsilon(1000, 100, 100, 1e-6, 0.001)
        > 2.5
        > one_run_epsilon(1000, 100, 90, 1e-6, 0.001)
    )
    assert one_run_epsilon(1000, 100, 50, 1e-6, 0.001) == 0


def test_measured_and_claimed_trade_off_curves_agree():
    ones, zeros = gaussian_worlds(np.random.default_rng(10), 50_000, 1.2, 0.0)
    measured = measured_trade_off(ones, zeros, 0.001)
    claimed = claimed_trade_off(math.inf, 1e-6, 1.2, measured.fpr)
    np.testing.assert_allclose(measured.fnr, claimed, atol=0.02)
    assert np.all(measured.low <= measured.fnr) and np.all(measured.fnr <= measured.high)


def test_the_pure_trade_off_curve_is_that_of_randomised_response():
    q = 1 / (1 + math.exp(-1.0))
    np.testing.assert_allclose(
        claimed_trade_off(1.0, 0.0, None, np.array([0.0, 1 - q, 1.0])),
        [1.0, 1 - q, 0.0],
        atol=1e-12,
    )


def test_a_true_claim_is_refuted_no_more_often_than_the_whole_verdict_allows():
    """Four Gaussian releases as the ledger says, a silent world halfway.

    There is as much noise beside the directions.
    """
    release = GaussianRelease("x", 1, 4, clip=1.0, sensitivity=2.0, std=5.0)
    experiment = SimpleNamespace(
        budget=Budget(1.0, 1e-6), ledger=SimpleNamespace(releases=[release] * 4)
    )
    stage = SimpleNamespace(experiment=experiment, silent_every=1)
    mu = math.hypot(*[release.mu] * 4)
    privacy = {"epsilon": gaussian_epsilon(mu, 1e-6), "delta": 1e-6}
    rng, trials, confidence, found = np.random.default_rng(11), 150, 0.9, []
    for _ in range(trials):
        along, beside = 5 * rng.standard_normal((200, 4)), 25 * rng.chisquare(3, (200, 4))
        worlds = {"plus": 1.0, "minus": -1.0, "silent": 0.0}
        seen = {world: np.stack([along + shift, beside], axis=2) for world, shift in worlds.items()}
        found.append(examine(stage, seen, np.ones(4), privacy, confidence).epsilon_lower)
    refuted = np.mean(np.array(found) > privacy["epsilon"])
    assert (
        refuted <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / trials)
        and np.median(found) > 0.85 * privacy["epsilon"]
    )
