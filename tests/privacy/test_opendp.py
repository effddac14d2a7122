"""OpenDP's noise as an alternative source: the same distribution to the eye, charged as it is."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from scipy import stats

from privfed.foundation.errors import ConfigError
from privfed.privacy.accounting import (
    DISCRETE_GAUSSIAN,
    WIDER,
    GaussianRelease,
    gaussian_delta,
    gaussian_epsilon,
)
from privfed.privacy.bounds import NormBound
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.noise import DiscreteNoise, noise_source
from privfed.privacy.opendp_noise import OpenDPNoise


def counts(draws, s):
    """Numbers of draws in 20 intervals that are equally likely for a normal distribution."""
    edges = stats.norm.ppf(np.linspace(0, 1, 21)[1:-1]) * s
    return np.bincount(np.searchsorted(edges, draws), minlength=20)


def test_draws_of_both_libraries_are_alike():
    """Chi-square, at s as large as the gate uses: with each other and with the normal one."""
    s, n = 1 << 24, 20_000
    theirs = counts(OpenDPNoise().normal(n, s, "x", 1), s)
    ours = counts(DiscreteNoise().normal(n, s, "x", 1), s)
    assert stats.chi2_contingency([theirs, ours]).pvalue > 1e-6
    assert stats.chisquare(theirs).pvalue > 1e-6 and stats.chisquare(ours).pvalue > 1e-6


def test_small_parameters_show_the_difference_between_the_distributions():
    """At s = 1 they are far apart: the comparison could fail, and each is what it says."""
    n, values = 60_000, np.arange(-4, 5)
    draws = [source.normal(n, 1, "x", 1) for source in (OpenDPNoise(), DiscreteNoise())]
    theirs, ours = (np.sum(drawn[:, None] == values, axis=0) for drawn in draws)
    discrete = np.exp(-(values**2) / 2) / np.sum(np.exp(-(np.arange(-40, 41) ** 2) / 2))
    rounded = stats.norm.cdf(values + 0.5) - stats.norm.cdf(values - 0.5)

    def fits(seen, chances):
        left = n - seen.sum()
        return stats.chisquare([*seen, left], n * np.array([*chances, 1 - chances.sum()])).pvalue

    assert fits(theirs, discrete) > 1e-6 and fits(ours, rounded) > 1e-6
    assert fits(theirs, rounded) < 1e-6 and fits(ours, discrete) < 1e-6


@pytest.mark.parametrize("s", [64, 1000])
def test_densities_differ_by_no_more_than_is_charged(s):
    """The pointwise bounds behind the charge: -1/(8 s^2) <= log(rounded / discrete) <= x^2/(8 s^4).

    Checked with 50 digits where the difference is large enough to be seen.
    """
    with mpmath.workdps(50):
        mass = mpmath.sqrt(2 * mpmath.pi) * s  # of exp(-x^2 / (2 s^2)), up to exp(-2 pi^2 s^2)
        for x in (0, 1, s // 2, s, 3 * s, 10 * s, 30 * s):
            rounded = mpmath.ncdf((x + mpmath.mpf("0.5")) / s) - mpmath.ncdf(
                (x - mpmath.mpf("0.5")) / s
            )
            if x > 5 * s:  # complementary: no cancellation
                rounded = mpmath.ncdf(-(x - mpmath.mpf("0.5")) / s) - mpmath.ncdf(
                    -(x + mpmath.mpf("0.5")) / s
                )
            discrete = mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * s**2)) / mass
            ratio = mpmath.log(rounded / discrete)
            assert -1 / (8 * mpmath.mpf(s) ** 2) <= ratio <= mpmath.mpf(x) ** 2 / (8 * s**4)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-6, 1e-12])
def test_a_wider_mu_covers_a_factor_on_delta(mu, delta):
    epsilon = gaussian_epsilon(mu * (1 + WIDER), delta)
    assert gaussian_delta(epsilon, mu) * (1 + 0.97 * WIDER) <= delta


def discrete_delta(epsilon, s, shift):
    """Delta of one discrete Gaussian at a shift, added up over whole numbers with 30 digits."""
    with mpmath.workdps(30):
        xs = range(-15 * s, 15 * s + 1)
        weights = [mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * s**2)) for x in xs]
        loss = [(mpmath.mpf(shift) ** 2 + 2 * shift * x) / (2 * s**2) for x in xs]
        gains = (
            w * (1 - mpmath.exp(epsilon - z))
            for w, z in zip(weights, loss, strict=True)
            if z > epsilon
        )
        return mpmath.fsum(gains) / mpmath.fsum(weights)


@pytest.mark.parametrize("shift", [20, 64, 150])
def test_the_charge_covers_a_discrete_gaussian(shift):
    s, delta = 64, 1e-5
    release = GaussianRelease(
        "x", 1, 1, 1.0, float(shift), float(s), grid=1.0, noise=DISCRETE_GAUSSIAN
    )
    epsilon = gaussian_epsilon(release.mu, delta) + release.epsilon
    assert discrete_delta(epsilon, s, shift) <= delta


def test_the_ledger_says_which_noise_and_charges_it():
    gate = NoiseGate(Ledger(Budget(1.0, 1e-6)), OpenDPNoise())
    for t in range(3):
        gate.release("x", np.zeros(50), bound=NormBound(1.0), mu=0.1, round=t)
    entry = gate.ledger.releases[0]
    assert entry.noise == DISCRETE_GAUSSIAN and 0 < entry.epsilon < 1e-9
    assert 0.09999 * (1 - 1e-6) < entry.mu <= 0.1
    plain = gaussian_epsilon(math.sqrt(3) * entry.mu, 1e-6)
    assert gate.ledger.epsilon == pytest.approx(plain + 3 * entry.epsilon, rel=1e-9)
    with pytest.raises(ConfigError, match=r"at most 0\.1"):
        NoiseGate(Ledger(Budget(1.0, 0.2)), OpenDPNoise())


def test_choices_follow_permute_and_flip():
    """Two candidates, q apart: the worse one is taken with probability exp(-q) / 2."""
    source = OpenDPNoise()
    taken = [source.choice(np.array([0.0, -1.0]), "x", 1) for _ in range(2000)]
    assert stats.binomtest(sum(taken), 2000, math.exp(-1) / 2).pvalue > 1e-6


@pytest.mark.parametrize("algo", ["fedrep", "expmech"])
def test_a_run_spends_its_budget_and_its_ledger_holds(command, tmp_path, algo):
    done = command(
        f"algo={algo}",
        "data.n=100",
        "data.d=4",
        "rounds=2",
        "privacy.noise=opendp",
        "out=run",
        "--quiet",
        *(["algo.candidates=5"] if algo == "expmech" else []),
    )
    assert done.returncode == 0, done.stderr
    privacy = json.loads((tmp_path / "run/result.json").read_text())["privacy"]
    assert privacy["noise"] == "opendp" and 0.999 < privacy["epsilon"] <= 1.0
    check = [sys.executable, "-m", "privfed", "ledger", "run"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 0


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    with pytest.raises(ConfigError, match=r"privfed\[opendp\]"):
        noise_source("opendp", 0)
