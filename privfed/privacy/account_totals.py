"""What several runs on the same users cost together.

Composition is over the releases of all runs, not over their claims: values of mu^2 add up, pure
epsilons add up, sampled releases are convolved, and epsilon is read off once, at one delta. Adding
the claims up would be valid, too, and say more than is true.

**Groups.** Within a run, disjoint groups of users compose in parallel. Over runs they compose
sequentially, since nothing says which group of one run a user of another run's group was in. So a
run is first reduced to what its worst user can have paid: the releases of all users, and of each
kind of cost the largest that any group paid. Where all groups pay in the same kind, as in every
plan there is, this is the exact cost of the user who pays most.

**Relations.** Runs may be under different neighbouring relations. A run under `zero-out` costs at
most twice its mu or epsilon under `replace-one`, as replacing a user's data is emptying them and
filling them again (group privacy for two; a factor 2 on mu for Gaussian releases, with or without
sampling). A run under `replace-one` costs at most as much under `zero-out` and `weak`, since both
replace the data of one user by particular others. A run under `weak` says nothing about a change of
features: under the other relations its cost is infinite.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from scipy.special import log_expit, ndtri_exp

from privfed.privacy.accounting import Price, composed, gaussian_epsilon
from privfed.privacy.neighbouring import WEAK, influence

Paid = Mapping[Price, int]
"""Number of releases per price."""


def factor(given: str, wanted: str) -> float:
    """Return by how much the cost of a release grows if another relation is asked about.

    Args:
        given: relation of the run.
        wanted: relation for which the cost is wanted.
    """
    if given == WEAK and wanted != WEAK:
        return math.inf
    return max(1.0, influence(wanted) / influence(given))


def worst_user(paid: Paid) -> Counter[Price]:
    """Return prices without groups that no user of a run can have exceeded.

    Args:
        paid: number of releases of the run per price.
    """
    everybody = Counter({price: count for price, count in paid.items() if price[2] is None})
    gaussian: dict[int, float] = {}
    pure: dict[int, float] = {}
    sampled: dict[int, Counter[Price]] = {}
    for (mu, epsilon, group, sampling), count in paid.items():
        if group is None:
            continue
        if sampling < 1:
            sampled.setdefault(group, Counter())[mu, 0.0, None, sampling] += count
        else:
            gaussian[group] = gaussian.get(group, 0.0) + count * mu**2
        pure[group] = pure.get(group, 0.0) + count * epsilon
    most = Counter[Price]()
    for counts in sampled.values():
        most |= counts
    if mu := math.sqrt(max(gaussian.values(), default=0.0)):
        most[mu, 0.0, None, 1.0] += 1
    if epsilon := max(pure.values(), default=0.0):
        most[0.0, epsilon, None, 1.0] += 1
    return everybody + most


def together(runs: Iterable[tuple[str, Paid]], wanted: str) -> Counter[Price]:
    """Return the prices that one user has paid in all runs, under one relation.

    Args:
        runs: relation and prices of each run.
        wanted: relation for which the cost is wanted.
    """
    union = Counter[Price]()
    for relation, paid in runs:
        times = factor(relation, wanted)
        for (mu, epsilon, _, sampling), count in worst_user(paid).items():
            union[_scaled(mu, times), _scaled(epsilon, times), None, sampling] += count
    return union


def total(runs: Iterable[tuple[str, Paid]], delta: float, wanted: str) -> float:
    """Return the epsilon of all runs together: the odometer.

    Args:
        runs: relation and prices of each run.
        delta: delta at which epsilon is stated.
        wanted: relation for which the cost is wanted.
    """
    return composed(together(runs, wanted), delta, influence(wanted) > 1)


def counted(runs: Iterable[tuple[str, Paid]], delta: float, wanted: str) -> float:
    """Return the epsilon that counts against a limit: the filter.

    Whoever chooses the next run by the results of earlier ones chooses its cost adaptively. A rule
    that stops before the limit is still valid then (a privacy filter; Rogers, Roth, Ullman and
    Vadhan 2016) if what is limited adds up whatever is chosen:

    - Gaussian releases: the sum of mu^2. Given the past, each release is mu_t-Gaussian private, and
      the privacy loss of the whole is dominated by that of one Gaussian release with the largest
      allowed sum of mu^2 (fully adaptive composition: Smith and Thakurta 2022; Whitehouse, Ramdas,
      Rogers and Wu 2023 have it for general mechanisms). So the filter equals the odometer, and
      nothing is lost by adaptivity.
    - Pure releases alone: the sum of the epsilons, which bounds the loss surely.
    - Both: the limit must not be a trade-off that can be chosen by results, so a pure release
      counts as the Gaussian one that dominates it: with a = 1 / (1 + e^epsilon), a test cannot do
      better than the point (a, a), which lies on the trade-off curve of mu = -2 Phi^-1(a). A path
      that stays pure never has a loss above the limit and adds nothing to delta.
    - Sampled releases: their exact composition. It is a filter if the costs of runs are not chosen
      by the results of earlier runs; no exact filter is known for adaptive sampling rates.

    Args:
        runs: relation and prices of each run.
        delta: delta of the limit.
        wanted: relation of the limit.
    """
    paid = together(runs, wanted)
    pure = any(epsilon > 0 for _, epsilon, _, _ in paid)
    gaussian = any(mu > 0 for mu, _, _, _ in paid)
    if not (pure and gaussian) or any(sampling < 1 for _, _, _, sampling in paid):
        return composed(paid, delta, influence(wanted) > 1)
    squares = (
        count * (mu**2 + as_gaussian(epsilon) ** 2) for (mu, epsilon, *_), count in paid.items()
    )
    return gaussian_epsilon(math.sqrt(math.fsum(squares)), delta)


def as_gaussian(epsilon: float) -> float:
    """Return the mu of the Gaussian release that dominates every epsilon-private one."""
    if epsilon in (0.0, math.inf):
        return epsilon
    return float(-2.0 * ndtri_exp(log_expit(-epsilon)))


def _scaled(cost: float, times: float) -> float:
    return cost * times if cost else 0.0
