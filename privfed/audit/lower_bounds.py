"""Lower bounds on epsilon from repetitions in two worlds, which hold with a stated confidence.

Every function takes a statistic's values in the two worlds, `ones` and `zeros` (N,), one per
repetition. The two values of a repetition may depend on each other in any way; repetitions are
independent.

Likelihood ratio. A released sum R = S + z with noise N(0, s^2), S = S_1 or S_0, has log P_1(R) /
P_0(R) = <R - (S_0 + S_1) / 2, S_1 - S_0> / s^2. The log ratios of all releases add up, so the best
test is linear in the releases. Its value is normal in both worlds, with means mu^2/2 and -mu^2/2
and variance mu^2, where mu^2 = sum |S_1 - S_0|^2 / s^2 is what the ledger claims if the worlds are
as far apart as the sensitivity. If they are not, a discriminant that was learnt from the first half
of the repetitions (weights C^-1 d, from the mean difference d and covariance C of the observations)
is tested on the second half. It also finds noise that was used twice, or that depends on which
users replied.

Gaussian fit. mu = (mean_1 - mean_0) / sd, with the larger of the two sds. With N repetitions and
the correlation rho of the worlds, the estimate is (mu + e Z) / sqrt(chi^2_v / v), where e^2 =
var(ones - zeros) / (N sd^2) and v = 2 (N - 1) / (1 + rho^2): a noncentral t. By the usual normal
approximation to the root of chi^2 / v, the lower bound at error probability alpha is

    mu_hat (1 - 1 / (4 v)) - z_alpha sqrt(e^2 + mu_hat^2 / (2 v)).

mu becomes epsilon by the exact formula of `accounting`. This extends observations from the middle
of the distribution to tails of probability delta. So the bound counts only if a test of normality
(D'Agostino and Pearson) does not reject.

Clopper-Pearson. For any event E, (eps, delta)-privacy requires P_1(E) <= e^eps P_0(E) + delta, and
the same with the worlds swapped. The best threshold and direction come from the first half. On the
second half, P_1(E) is bounded from below and P_0(E) from above, each with half the error
probability: eps >= log((P_1 - delta) / P_0). It assumes nothing, and N repetitions cannot show more
than about log(N / 20) at a confidence of 99.9%.

One run (Steinke, Nasr, Jagielski: Privacy auditing with one (1) training run, 2023, their main
theorem). m users are each in one of two states by a fair coin. Of r guesses, v or more are right
under (eps, delta)-privacy with a probability of at most

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i,        B ~ Binomial(r, e^eps / (1 + e^eps)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from privfed.foundation.linalg import Array
from privfed.privacy.accounting import gaussian_epsilon

Counts = NDArray[np.integer[Any]]
NORMAL = 1e-3
"""The test of normality rejects below this p-value."""
MOST = 700.0
"""Largest epsilon that is distinguished from infinity in one run."""


@dataclass(frozen=True)
class Fit:
    """Gaussian fit: the estimate of mu, its lower bound, and the p-value of normality."""

    mu: float
    mu_lower: float
    normality: float

    @property
    def applies(self) -> bool:
        """Return whether the values look normal."""
        return self.normality >= NORMAL


def gaussian_fit(ones: Array, zeros: Array, alpha: float) -> Fit:
    """Estimate mu by means and standard deviations, with a lower bound.

    Args:
        ones: values in world 1, (N,), which has the larger mean.
        zeros: values in world 0, (N,).
        alpha: error probability of the lower bound.
    """
    n, gap = len(ones), ones - zeros
    difference = float(gap.mean())
    sd = max(float(ones.std(ddof=1)), float(zeros.std(ddof=1)), 1e-9 * abs(difference))
    if sd == 0:
        return Fit(0.0, 0.0, 1.0)
    rho = _correlation(ones, zeros)
    v = 2 * (n - 1) / (1 + rho**2)
    mu, e2 = difference / sd, float(gap.var(ddof=1)) / (n * sd**2)
    lower = mu * (1 - 1 / (4 * v)) - float(stats.norm.isf(alpha)) * math.sqrt(e2 + mu**2 / (2 * v))
    return Fit(mu, max(lower, 0.0), min(1.0, 2 * min(_normality(ones, sd), _normality(zeros, sd))))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the epsilon at delta of a lower bound on mu."""
    return gaussian_epsilon(mu, delta) if mu > 0 else 0.0


def threshold_bound(ones: Array, zeros: Array, delta: float, alpha: float) -> float:
    """Return a lower bound on epsilon by the best threshold (Clopper-Pearson).

    The first half of the repetitions chooses the threshold, the second half tests it.

    Args:
        ones: values in world 1, (N,).
        zeros: values in world 0, (N,).
        delta: delta of the claim.
        alpha: error probability.
    """
    half = len(ones) // 2
    best, chosen = -math.inf, (0.0, 1.0)
    for sign in (1.0, -1.0):
        # Sign 1 tests for large values in world 1, sign -1 for small values in world 0.
        a, b = (ones[:half], zeros[:half]) if sign > 0 else (-zeros[:half], -ones[:half])
        cuts = np.unique(np.quantile(np.concatenate([a, b]), np.linspace(0, 1, 401)))
        hits, alarms = (half - np.searchsorted(np.sort(x), cuts, side="left") for x in (a, b))
        values = _log_ratio(hits, alarms, half, delta, alpha)
        if values.max() > best:
            best, chosen = float(values.max()), (float(cuts[int(values.argmax())]), sign)
    cut, sign = chosen
    a, b = (ones[half:], zeros[half:]) if sign > 0 else (-zeros[half:], -ones[half:])
    tested = _log_ratio(
        np.array([np.sum(a >= cut)]), np.array([np.sum(b >= cut)]), len(a), delta, alpha
    )
    return max(0.0, float(tested[0]))


def _log_ratio(hits: Counts, alarms: Counts, n: int, delta: float, alpha: float) -> Array:
    """Return log((P_1 - delta) / P_0), with bounds at alpha / 2 on both probabilities.

    hits and alarms are counts out of n.
    """
    low, high = proportion_lower(hits, n, alpha / 2), proportion_upper(alarms, n, alpha / 2)
    return np.log(np.maximum(low - delta, 1e-300) / high)


def proportion_lower(count: Counts, n: int, alpha: float) -> Array:
    """Return the lower Clopper-Pearson bound on a probability, from `count` events in n trials."""
    return np.where(count > 0, stats.beta.ppf(alpha, np.maximum(count, 1), n - count + 1), 0.0)


def proportion_upper(count: Counts, n: int, alpha: float) -> Array:
    """Return the upper Clopper-Pearson bound on a probability, from `count` events in n trials."""
    return 1.0 - proportion_lower(n - count, n, alpha)


def discriminant(ones: Array, zeros: Array) -> Array:
    """Return the weights (p,) of the linear statistic that separates the two samples best.

    Args:
        ones: observations in world 1, (N, p).
        zeros: observations in world 0, (N, p).
    """
    scale = np.sqrt((ones.var(axis=0) + zeros.var(axis=0)) / 2)
    gap = (ones - zeros).mean(axis=0)
    scale = np.maximum(scale, 1e-9 * np.abs(gap))
    used = scale > 0
    weights = np.zeros(ones.shape[1])
    if not used.any():
        return weights
    a, b = (x[:, used] / scale[used] for x in (ones, zeros))
    covariance = (np.cov(a, rowvar=False) + np.cov(b, rowvar=False)).reshape(a.shape[1], -1) / 2
    ridge = 1e-9 * np.eye(a.shape[1])
    weights[used] = np.linalg.solve(covariance + ridge, gap[used] / scale[used]) / scale[used]
    return weights


def one_run_p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of at least v right guesses under (epsilon, delta)-DP.

    Args:
        m: number of canaries.
        r: number of guesses.
        v: number of right guesses.
        epsilon: claim.
        delta: claim.
    """
    q = 1.0 / (1.0 + math.exp(-epsilon))
    at_least = float(stats.binom.sf(v - 1, r, q))
    just_below = np.cumsum(stats.binom.pmf(np.arange(v - 1, -1, -1), r, q))
    alpha = float(np.max(just_below / np.arange(1, v + 1), initial=0.0))
    return min(1.0, at_least + 2 * m * delta * alpha)


def one_run_epsilon(m: int, r: int, v: int, delta: float, alpha: float) -> float:
    """Return the lower bound on epsilon from v right guesses of r.

    Args:
        m: number of canaries.
        r: number of guesses.
        v: number of right guesses.
        delta: delta of the claim.
        alpha: error probability.
    """
    low, high = 0.0, 1.0
    if one_run_p_value(m, r, v, 0.0, delta) > alpha:
        return 0.0
    while one_run_p_value(m, r, v, high, delta) <= alpha:
        low, high = high, 2 * high
        if high > MOST:
            return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if one_run_p_value(m, r, v, middle, delta) <= alpha else (low, middle)
        )
    return low


@dataclass(frozen=True)
class TradeOff:
    """False negative rates against false positive rates.

    Attributes:
        fpr: false positive rates, (points,).
        fnr: false negative rates, (points,).
        low: lower end of a pointwise band around `fnr`, (points,).
        high: upper end of the band, (points,).
    """

    fpr: Array
    fnr: Array
    low: Array
    high: Array


def measured_trade_off(ones: Array, zeros: Array, alpha: float, points: int = 120) -> TradeOff:
    """Return the error rates of all thresholds on one statistic.

    The test says "world 1" from the threshold on. The band covers the errors of both rates.

    Args:
        ones: values in world 1, (N,).
        zeros: values in world 0, (N,).
        alpha: error probability of the band.
        points: number of thresholds.
    """
    n = len(ones)
    low, high = (norm_quantiles(x, points // 2) for x in (zeros, ones))
    cuts = np.unique(np.concatenate([low, high]))
    alarms = n - np.searchsorted(np.sort(zeros), cuts, side="left")
    misses = np.searchsorted(np.sort(ones), cuts, side="left")
    band = proportion_lower(misses, n, alpha / 2), proportion_upper(misses, n, alpha / 2)
    return TradeOff(alarms / n, misses / n, *band)


def norm_quantiles(x: Array, points: int) -> Array:
    """Return `points` quantiles of x that are dense in both tails."""
    return np.asarray(np.quantile(x, stats.norm.cdf(np.linspace(-3.7, 3.7, points))))


def claimed_trade_off(epsilon: float, delta: float, mu: float | None, fpr: Array) -> Array:
    """Return the least false negative rate that the claim allows at each false positive rate.

    Args:
        epsilon: claim.
        delta: claim.
        mu: cost of a Gaussian release; None takes the curve of (epsilon, delta).
        fpr: false positive rates, (points,).
    """
    if mu is not None:
        return np.asarray(stats.norm.cdf(stats.norm.isf(fpr) - mu))
    steep, flat = (
        1 - delta - math.exp(min(epsilon, MOST)) * fpr,
        math.exp(-epsilon) * (1 - delta - fpr),
    )
    return np.maximum(0.0, np.maximum(steep, flat))


def _correlation(x: Array, y: Array) -> float:
    """Return Pearson's correlation; 1, the cautious value, if one sample is constant."""
    sds = float(x.std() * y.std())
    return float(np.mean((x - x.mean()) * (y - y.mean()))) / sds if sds > 0 else 1.0


def _normality(x: Array, sd: float) -> float:
    """Return the p-value of D'Agostino and Pearson's test.

    Values whose spread is negligible beside the distance of the worlds pass.
    """
    if float(x.std()) <= 1e-6 * sd or np.ptp(x) <= 1e-9 * float(np.abs(x).max()):
        return 1.0
    return float(stats.normaltest((x - x.mean()) / x.std()).pvalue)
