"""What Gaussian releases cost, exactly.

Gaussian releases of L2 sensitivity s with noise N(0, std^2) on the same users compose to one Gaussian release with
mu^2 = sum (s / std)^2, and that one satisfies (eps, delta)-DP if and only if

    delta >= Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

Nothing tighter exists. All searches below return the safe side: epsilon never too small, mu never too large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scipy.special import log_ndtr


@dataclass(frozen=True)
class GaussianRelease:
    """One noised release: what happened, apart from what it costs in total."""

    name: str
    round: int
    size: int
    clip: float
    sensitivity: float
    std: float

    @property
    def mu(self) -> float:
        """Its cost alone: sensitivity / std, infinite without noise."""
        return self.sensitivity / self.std if self.std > 0 else math.inf


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The exact delta of a mu-Gaussian release at epsilon, in log space."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    log_a = float(log_ndtr(mu / 2 - epsilon / mu))
    log_b = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(log_a) * -math.expm1(min(log_b - log_a, 0.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon of a mu-Gaussian release at delta."""
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, mu) > delta:
        high *= 2
    return _bisect(lambda epsilon: gaussian_delta(epsilon, mu) > delta, 0.0, high)[1]


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose release is (epsilon, delta)-DP."""
    if math.isinf(epsilon):
        return math.inf
    high = 1.0
    while gaussian_delta(epsilon, high) <= delta:
        high *= 2
    return _bisect(lambda mu: gaussian_delta(epsilon, mu) <= delta, 0.0, high)[0]


def compose(releases: Iterable[GaussianRelease]) -> float:
    """The mu of all releases together."""
    return math.sqrt(math.fsum(r.mu**2 for r in releases))


def _bisect(below: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Neighbouring numbers around the switch of ``below`` from true (at low) to false (at high)."""
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return low, high
        low, high = (middle, high) if below(middle) else (low, middle)
