"""What releases cost, exactly.

Gaussian releases of L2 sensitivity s with noise N(0, std^2) on the same users compose to one Gaussian release with
mu^2 = sum (s / std)^2, and that one satisfies (eps, delta)-DP if and only if

    delta >= Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

Nothing tighter exists. All searches below return the safe side: epsilon never too small, mu never too large.

Releases in which every user takes part by a coin of its own (Poisson sampling) have no closed form; their privacy loss is
composed numerically, on the safe side, together with the others' (`privfed/privacy/subsampling.py`).

Selections by the exponential mechanism are purely epsilon-DP and add their epsilon. Releases that only the users of one of
several disjoint groups took part in compose in parallel: a user pays for what everybody took part in and for its own group.
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
    """What a release costs those who took part: mu of Gaussian noise, or a pure epsilon. group: None means everybody."""

    @property
    def mu(self) -> float:
        """Cost of Gaussian noise."""
        ...

    @property
    def epsilon(self) -> float:
        """Cost of a pure mechanism."""
        ...

    @property
    def group(self) -> int | None:
        """Which of several disjoint groups of users took part."""
        ...

    @property
    def sampling(self) -> float:
        """The probability with which each of them took part."""
        ...


@dataclass(frozen=True)
class Planned:
    """The cost of a release that has not been made yet."""

    mu: float = 0.0
    epsilon: float = 0.0
    group: int | None = None
    sampling: float = 1.0


@dataclass(frozen=True)
class GaussianRelease:
    """A sum with Gaussian noise: what happened, apart from what it costs in total."""

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
        """Its cost alone to those who took part: sensitivity / std, infinite without noise."""
        return self.sensitivity / self.std if self.std > 0 else math.inf


@dataclass(frozen=True)
class Selection:
    """One of `size` candidates chosen with probability proportional to exp(rate * total score)."""

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
        """Its cost alone; infinite when the best candidate is simply taken."""
        return self.rate * self.sensitivity


Release = GaussianRelease | Selection


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The exact delta of a mu-Gaussian release at epsilon, in log space."""
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    log_a = float(log_ndtr(mu / 2 - epsilon / mu))
    log_b = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(log_a) * -math.expm1(min(log_b - log_a, 0.0))


@lru_cache(maxsize=4096)  # asked for after every release, and again in every repetition of an audit
def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon of a mu-Gaussian release at delta."""
    if math.isinf(mu) or (delta == 0 and mu > 0):
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
    if delta == 0:
        return 0.0
    high = 1.0
    while gaussian_delta(epsilon, high) <= delta:
        high *= 2
    return _bisect(lambda mu: gaussian_delta(epsilon, mu) <= delta, 0.0, high)[0]


LARGEST_MU = 16.0
"""No sampled release costs more, whatever the budget would hold."""


@lru_cache(maxsize=64)
def sampled_mu(epsilon: float, delta: float, q: float, rounds: int, replaced: bool) -> float:
    """The largest mu of each of so many releases, in which every user takes part with probability q, within the budget."""
    if math.isinf(epsilon):
        return math.inf
    if delta == 0:
        return 0.0

    def holds(mu: float) -> bool:
        return total_epsilon([Planned(mu, sampling=q)] * rounds, delta, replaced) <= epsilon * (
            1 - 1e-6
        )

    low = gaussian_mu(epsilon, delta) / math.sqrt(
        rounds
    )  # without sampling it costs at least as much
    high = 2.0 * low
    while high < LARGEST_MU and holds(
        high
    ):  # where next to nobody takes part, delta alone would allow anything
        low, high = high, 2.0 * high
    while high > low * (1 + 1e-4):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


Price = tuple[float, float, int | None, float]
"""What a release costs: mu, epsilon, group and sampling, as a `Cost` has them."""


def prices(costs: Iterable[Cost]) -> Counter[Price]:
    """How many of them cost the same: all that composition needs to know."""
    return Counter((cost.mu, cost.epsilon, cost.group, cost.sampling) for cost in costs)


def total_epsilon(costs: Iterable[Cost], delta: float, replaced: bool = True) -> float:
    """What everything together costs the user who pays most. replaced: users are replaced, rather than added or removed."""
    return composed(prices(costs), delta, replaced)


def composed(paid: Mapping[Price, int], delta: float, replaced: bool = True) -> float:
    """The same, of so many releases at each price."""
    parts: dict[int | None, Counter[tuple[float, float, float]]] = {}
    for (mu, epsilon, group, sampling), count in paid.items():
        parts.setdefault(group, Counter())[mu, epsilon, sampling] += count
    everybody = parts.pop(None, Counter())
    return max(
        _epsilon(everybody + part, delta, replaced) for part in parts.values() or [Counter()]
    )


def _epsilon(paid: Mapping[tuple[float, float, float], int], delta: float, replaced: bool) -> float:
    """Sequential composition: the mus as the root of their squares' sum, pure epsilons as a sum on top.

    paid: so many releases at each mu, epsilon and sampling.
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

    Users of disjoint groups pay side by side; the group that pays most counts.
    """
    by_group: dict[int | None, float] = {None: 0.0}
    for cost in costs:
        by_group[cost.group] = by_group.get(cost.group, 0.0) + cost.epsilon + cost.mu**2
    return by_group.pop(None) + max(by_group.values(), default=0.0)


def _bisect(below: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Neighbouring numbers around the switch of ``below`` from true (at low) to false (at high)."""
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return low, high
        low, high = (middle, high) if below(middle) else (low, middle)
