"""Exact privacy cost of releases.

Gaussian releases of L2 sensitivity s with noise N(0, std^2) on the same users compose to one
Gaussian release with mu^2 = sum (s / std)^2. That release satisfies (eps, delta)-DP if and only if

    delta >= Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

No tighter bound exists. All searches below return the safe side: epsilon is never too small, and mu
is never too large.

Releases with Poisson sampling, in which each user takes part by its own coin, have no closed form.
Their privacy loss is composed numerically, on the safe side, together with that of the other
releases (`privfed/privacy/subsampling.py`).

Selections by the exponential mechanism are purely epsilon-DP and add their epsilon. Releases to
which only the users of one of several disjoint groups contribute compose in parallel: a user pays
for the releases of all users and for the releases of its own group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

from scipy.special import log_ndtr


class Cost(Protocol):
    """Cost of a release for the users who took part: mu of Gaussian noise, or a pure epsilon."""

    @property
    def mu(self) -> float:
        """Return the cost of Gaussian noise."""
        ...

    @property
    def epsilon(self) -> float:
        """Return the cost of a pure mechanism."""
        ...

    @property
    def group(self) -> int | None:
        """Return which of several disjoint groups of users took part; None means all users."""
        ...

    @property
    def sampling(self) -> float:
        """Return the probability with which each of these users took part."""
        ...


@dataclass(frozen=True)
class Planned:
    """Cost of a release that has not been made yet; see :class:`Cost`."""

    mu: float = 0.0
    epsilon: float = 0.0
    group: int | None = None
    sampling: float = 1.0


@dataclass(frozen=True)
class GaussianRelease:
    """Release of a sum with Gaussian noise.

    Attributes:
        name: name of the release.
        round: round of the phase that the release belongs to.
        size: number of released numbers.
        clip: radius of a ball that holds every user's part.
        sensitivity: largest distance of the sums over two neighbouring data sets.
        std: standard deviation of the noise; 0 means no noise.
        group: disjoint group of users who took part; None means all users.
        sampling: probability with which each user took part.
    """

    mechanism: ClassVar[str] = "gaussian"
    epsilon: ClassVar[float] = 0.0

    name: str
    round: int
    size: int
    clip: float
    sensitivity: float
    std: float
    group: int | None = None
    sampling: float = 1.0

    @property
    def mu(self) -> float:
        """Return the cost of this release alone: sensitivity / std, infinite without noise."""
        return self.sensitivity / self.std if self.std > 0 else math.inf


@dataclass(frozen=True)
class SelectionRelease:
    """Choice of one of `size` candidates, with probability proportional to exp(rate * score).

    The score of a candidate is the total over users. For the other attributes see
    :class:`GaussianRelease`.
    """

    mechanism: ClassVar[str] = "exponential"
    mu: ClassVar[float] = 0.0
    sampling: ClassVar[float] = 1.0

    name: str
    round: int
    size: int
    clip: float
    sensitivity: float
    rate: float
    group: int | None = None

    @property
    def epsilon(self) -> float:
        """Return the cost of this selection; infinite if the best candidate is always taken."""
        return self.rate * self.sensitivity


Release = GaussianRelease | SelectionRelease


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the exact delta of a mu-Gaussian release at epsilon, computed in log space."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    log_a = float(log_ndtr(mu / 2 - epsilon / mu))
    log_b = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(log_a) * -math.expm1(min(log_b - log_a, 0.0))


# Called after every release, and again in every repetition of an audit.
@lru_cache(maxsize=4096)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon of a mu-Gaussian release at delta."""
    if math.isinf(mu) or (delta == 0 and mu > 0):
        return math.inf
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(high, mu) > delta:
        high *= 2
    return _bisect(lambda epsilon: gaussian_delta(epsilon, mu) > delta, 0.0, high)[1]


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu whose release is (epsilon, delta)-DP."""
    if math.isinf(epsilon):
        return math.inf
    if delta == 0:
        return 0.0
    high = 1.0
    while gaussian_delta(epsilon, high) <= delta:
        high *= 2
    return _bisect(lambda mu: gaussian_delta(epsilon, mu) <= delta, 0.0, high)[0]


LARGEST_MU = 16.0
"""Upper limit on the mu of a sampled release, even if the budget would allow more."""


@lru_cache(maxsize=64)
def sampled_mu(epsilon: float, delta: float, q: float, rounds: int, replaced: bool) -> float:
    """Return the largest mu per release at which `rounds` sampled releases stay within the budget.

    Args:
        epsilon: budget.
        delta: budget.
        q: probability with which each user takes part in a release.
        rounds: number of releases.
        replaced: whether neighbouring data sets replace a user, rather than add or remove one.
    """
    if math.isinf(epsilon):
        return math.inf
    if delta == 0:
        return 0.0

    def holds(mu: float) -> bool:
        return total_epsilon([Planned(mu, sampling=q)] * rounds, delta, replaced) <= epsilon * (
            1 - 1e-6
        )

    # Sampling never increases the cost, so the mu without sampling is a lower bound.
    low = gaussian_mu(epsilon, delta) / math.sqrt(rounds)
    high = 2.0 * low
    # If almost no user takes part, delta alone would allow any mu; hence the limit.
    while high < LARGEST_MU and holds(high):
        low, high = high, 2.0 * high
    while high > low * (1 + 1e-4):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


Price = tuple[float, float, int | None, float]
"""Cost of a release as (mu, epsilon, group, sampling); see :class:`Cost`."""


def prices(costs: Iterable[Cost]) -> Counter[Price]:
    """Count the releases per price; composition depends on these counts alone."""
    return Counter((cost.mu, cost.epsilon, cost.group, cost.sampling) for cost in costs)


def total_epsilon(costs: Iterable[Cost], delta: float, replaced: bool = True) -> float:
    """Return the total cost for the user who pays most.

    Args:
        costs: cost of each release.
        delta: delta at which epsilon is stated.
        replaced: whether neighbouring data sets replace a user, rather than add or remove one.
    """
    return composed(prices(costs), delta, replaced)


def composed(paid: Mapping[Price, int], delta: float, replaced: bool = True) -> float:
    """Return the total cost for the user who pays most, given the number of releases per price.

    Args:
        paid: number of releases per price.
        delta: delta at which epsilon is stated.
        replaced: whether neighbouring data sets replace a user, rather than add or remove one.
    """
    parts: dict[int | None, Counter[tuple[float, float, float]]] = {}
    for (mu, epsilon, group, sampling), count in paid.items():
        parts.setdefault(group, Counter())[mu, epsilon, sampling] += count
    everybody = parts.pop(None, Counter())
    return max(
        _epsilon(everybody + part, delta, replaced) for part in parts.values() or [Counter()]
    )


def _epsilon(paid: Mapping[tuple[float, float, float], int], delta: float, replaced: bool) -> float:
    """Compose releases on the same users sequentially.

    The values of mu add up as squares; pure epsilons are added to the result.

    Args:
        paid: number of releases per (mu, epsilon, sampling).
        delta: delta at which epsilon is stated.
        replaced: whether neighbouring data sets replace a user, rather than add or remove one.
    """
    pure = math.fsum(epsilon * count for (_, epsilon, _), count in paid.items())
    mu = math.hypot(
        *(mu * math.sqrt(count) for (mu, _, sampling), count in paid.items() if sampling == 1)
    )
    sampled = Counter[tuple[float, float]]()
    for (cost, _, sampling), count in paid.items():
        if sampling < 1:
            sampled[cost, sampling] += count
    if not sampled:
        return pure + gaussian_epsilon(mu, delta)

    from privfed.privacy.subsampling import sampled_epsilon

    return pure + sampled_epsilon(mu, tuple(sorted(sampled.items())), delta, replaced)


def paid_by_one_user(costs: Iterable[Cost]) -> float:
    """Return what one user pays for releases, in the quantity that adds up: mu^2, or epsilon.

    Users of disjoint groups pay in parallel; the group that pays most counts.
    """
    by_group: dict[int | None, float] = {None: 0.0}
    for cost in costs:
        by_group[cost.group] = by_group.get(cost.group, 0.0) + cost.epsilon + cost.mu**2
    return by_group.pop(None) + max(by_group.values(), default=0.0)


def _bisect(below: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return adjacent floats around the switch of `below` from true (low) to false (high)."""
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return low, high
        low, high = (middle, high) if below(middle) else (low, middle)
