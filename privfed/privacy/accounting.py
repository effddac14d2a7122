"""Exact privacy cost of releases.

Gaussian releases of L2 sensitivity s with noise N(0, std^2) on the same users compose to one
Gaussian release with mu^2 = sum (s / std)^2. That release satisfies (eps, delta)-DP if and only if

    delta >= Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

No tighter bound exists. Everything below is rounded to the safe side, computed numbers included:
delta and epsilon are never too small, and mu of a budget is never too large.

Releases with Poisson sampling, in which each user takes part by its own coin, have no closed form.
Their privacy loss is composed numerically, on the safe side, together with that of the other
releases (`privfed/privacy/subsampling.py`).

Selections by the exponential mechanism are purely epsilon-DP and add their epsilon.

Releases to which only the users of one of several disjoint groups contribute compose in parallel: a
user pays for the releases of all users and for the releases of its own group; the total is that of
the group that pays most. A user's group follows from the user's own identity and from nobody
else's. If a user is replaced by one of the same group, the sums of that group move by at most the
sensitivity s, and nobody else's. If the new user belongs to another group, one group loses a part
of norm at most r and the other gains one. For Gaussian releases with noise std_g this costs
(r / std_g)^2 + (r / std_h)^2, which is at most max_g (s / std_g)^2 as long as r <= s / sqrt(2). All
bounds on norms satisfy it, since s = 2 r under replace-one (`privfed/privacy/bounds.py`), and the
noise gate checks it. A selection whose scores lie in [0, r] is e^(rate r)-close to the one without
the user; both together cost 2 rate r = rate s. Under the other relations users keep their groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Protocol

from scipy.special import log_ndtr

from privfed.privacy.directed_rounding import product_up, quotient_up, root_up, up

ROUNDED_GAUSSIAN, DISCRETE_GAUSSIAN = "rounded-gaussian", "discrete-gaussian"
SUMMED_GAUSSIANS = "sum-of-rounded-gaussians"
WIDER = 1e-6
"""By how much a cost counts more if noise is no rounded Gaussian. It covers a factor 1 + WIDER on
delta, which holds for up to 2e9 released numbers."""


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
        bound: kind of the bound behind `clip`; see `privfed.privacy.bounds`.
        grid: step of the grid that sum and noise lie on; 0 if there is none.
        summation: how much further rounding can move the sums over two data sets apart.
        noise: distribution of the noise on whole multiples of the grid. With s = std / grid, it is
            round(s Z) of a standard normal Z, or the discrete Gaussian of parameter s, or a sum of
            independent round(s_j Z_j) with s_1^2 + s_2^2 + ... >= s^2.
        parts: largest number of rounded Gaussians that are added up.
    """

    mechanism: ClassVar[str] = "gaussian"

    name: str
    round: int
    size: int
    clip: float
    sensitivity: float
    std: float
    group: int | None = None
    sampling: float = 1.0
    bound: str = "norm"
    grid: float = 0.0
    summation: float = 0.0
    noise: str = ROUNDED_GAUSSIAN
    parts: int = 1

    @property
    def rounding(self) -> float:
        """Return how far all rounding can move two sums apart."""
        return self.summation + self.grid * math.sqrt(self.size)

    @property
    def mu(self) -> float:
        """Return the cost of this release alone: sensitivity / std, infinite without noise."""
        if self.std == 0:
            return math.inf
        mu = quotient_up(self.sensitivity, self.std)
        return mu if self.noise == ROUNDED_GAUSSIAN else mu * (1 + WIDER)

    @property
    def epsilon(self) -> float:
        """Return what is charged besides mu: 0 for a rounded Gaussian.

        Densities of the other distributions and of a rounded Gaussian differ by factors of at most
        e^epsilon, except with a probability below 1e-300 (docs/proofs.md).
        """
        if self.noise == ROUNDED_GAUSSIAN or self.std == 0:
            return 0.0
        if self.grid <= 0:  # a line of a ledger that does not say it
            return math.inf
        longest = self.size + 2 * math.sqrt(700.0 * self.size) + 1400.0
        if self.noise == SUMMED_GAUSSIANS:
            total = (self.parts + 1) * (self.size + 1.02 * longest)
            return total / (24 * (self.std / self.grid) ** 2)
        return (self.size + 1.02 * longest) / (8 * (self.std / self.grid) ** 2)


@dataclass(frozen=True)
class SelectionRelease:
    """Choice of one of `size` candidates, with probability proportional to exp(rate * score).

    The score of a candidate is the total over users. For the other attributes see
    :class:`GaussianRelease`.
    """

    mechanism: ClassVar[str] = "exponential"
    mu: ClassVar[float] = 0.0
    sampling: ClassVar[float] = 1.0
    rounding: ClassVar[float] = 0.0

    name: str
    round: int
    size: int
    clip: float
    sensitivity: float
    rate: float
    group: int | None = None
    bound: str = "norm"

    @property
    def epsilon(self) -> float:
        """Return the cost of this selection; infinite if the best candidate is always taken."""
        return product_up(self.rate, self.sensitivity)


Release = GaussianRelease | SelectionRelease


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return delta of a mu-Gaussian release at epsilon, rounded up.

    It is computed in log space, as a (1 - b / a) with a = Phi(x) and b = e^epsilon Phi(y). Errors
    of log a and log b are bounded and added in the direction that makes delta larger.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    size = mu / 2 + epsilon / mu
    x, y = mu / 2 - epsilon / mu, -size
    log_a, log_phi = float(log_ndtr(x)), float(log_ndtr(y))
    error_a, error_phi = _error(x, size), _error(y, size)
    # Further roundings: of epsilon + log Phi(y), and of the difference.
    error = error_a + error_phi + 4 * ULP * (epsilon + abs(log_phi) + abs(log_a))
    ratio = min(epsilon + log_phi - log_a - error, 0.0)
    return min(1.0, math.exp(log_a + error_a) * -math.expm1(ratio) * (1 + 16 * ULP))


ULP = 2.0**-53
"""Largest relative error of one floating-point operation."""
ACCURACY = 8.0
"""`log_ndtr(x)` is within ACCURACY (1 + x^2) ULP of the truth; at most 3.3 was seen."""


def _error(x: float, size: float) -> float:
    """Return how far the computed log Phi(x) may be from the truth.

    Args:
        x: argument, computed from terms that add up to `size` in absolute value.
        size: see x; x is wrong by at most 2 ULP size, and log Phi changes at most 1 + |x| times as
            fast as x.
    """
    return ULP * (ACCURACY * (1 + x * x) + 2 * size * (1 + abs(x)))


# Called after every release, and again in every repetition of an audit.
@lru_cache(maxsize=4096)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of a mu-Gaussian release at delta: never too small.

    It is above the truth by less than 1e-8, relatively, if mu is at least 1e-5.
    """
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
        replaced: whether neighbouring data sets replace a user, rather than empty one user's data.
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
        replaced: whether neighbouring data sets replace a user, rather than empty one user's data.
    """
    return composed(prices(costs), delta, replaced)


def composed(paid: Mapping[Price, int], delta: float, replaced: bool = True) -> float:
    """Return the total cost for the user who pays most, given the number of releases per price.

    Args:
        paid: number of releases per price.
        delta: delta at which epsilon is stated.
        replaced: whether neighbouring data sets replace a user, rather than empty one user's data.
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
        replaced: whether neighbouring data sets replace a user, rather than empty one user's data.
    """
    if any(math.isinf(mu) or math.isinf(epsilon) for mu, epsilon, _ in paid):
        return math.inf
    pure = sum((Fraction(epsilon) * count for (_, epsilon, _), count in paid.items()), Fraction())
    squares = (Fraction(mu) ** 2 * n for (mu, _, sampling), n in paid.items() if sampling == 1)
    mu = root_up(sum(squares, Fraction()))
    sampled = Counter[tuple[float, float]]()
    for (cost, _, sampling), count in paid.items():
        if sampling < 1:
            sampled[cost, sampling] += count
    if not sampled:
        return _sum_up(pure, gaussian_epsilon(mu, delta))

    from privfed.privacy.subsampling import sampled_epsilon

    return _sum_up(pure, sampled_epsilon(mu, tuple(sorted(sampled.items())), delta, replaced))


def _sum_up(pure: Fraction, epsilon: float) -> float:
    return epsilon if math.isinf(epsilon) else up(pure + Fraction(epsilon))


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
