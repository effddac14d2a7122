"""What the noise will let through, from n, mu and the number of columns alone: no data decide.

Users send parts of norm at most C. Their sum stands out of noise of sensitivity 2C in `entries`
entries about as far as

    visibility = mu sqrt(share) n / (2 sqrt(entries))

which is the largest length of the sum over the length of the noise. What cannot be seen is not
asked, and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SEEN = 4.2
"""Least visibility of a global model; below it users are better off alone: nothing is released."""
DIRECTIONS_SEEN = 20.0
"""Least visibility of shared slopes."""
FACTORS_SEEN = 39.0
"""Least visibility of shared directions of items."""
MOST_ITEMS = 2000
"""Most items for which a matrix of items by items is asked."""
SURE = 0.12
"""Largest noise of shares of users for clip norms."""
FINE, BEARABLE = 0.02, 0.04
"""Noise of shares of rows, wanted and largest, for centres and spreads of columns."""
FINE_WITHIN, BEARABLE_WITHIN = 0.04, 0.12
"""The same of shares of users, for spreads within users: one broad peak has to be found."""
LEAST_SCALES, MOST_SCALES, MOST_WITHIN = 0.03, 0.1, 0.15
"""Shares of the budget for scales."""
HISTOGRAMS = 3
"""Histograms per column that a centre and a spread take; a spread within users takes one."""


@dataclass(frozen=True)
class Scales:
    """What is asked about the scales of columns.

    Attributes:
        pooled: columns whose centre and spread over all rows are asked for.
        within: columns whose spread within users is asked for.
        pooled_share: share of the budget for the former.
        within_share: share for the latter.
    """

    pooled: tuple[int, ...] = ()
    within: tuple[int, ...] = ()
    pooled_share: float = 0.0
    within_share: float = 0.0

    @property
    def share(self) -> float:
        """Share of the budget for all scales."""
        return self.pooled_share + self.within_share

    def __contains__(self, column: int) -> bool:
        return column in self.pooled or column in self.within


def visibility(mu: float, share: float, n: int, entries: int) -> float:
    """Return how far a sum stands out of its noise; see the module."""
    return mu * math.sqrt(share) * n / (2.0 * math.sqrt(entries))


def scales(mu: float, n: int, columns: Sequence[int], target: int) -> Scales:
    """Return what is asked about the scales of columns without public bounds.

    Per histogram of c columns a user adds shares of norm at most sqrt(c), without a negative entry:
    the noise per bin is sqrt(2 c) / (mu' n). A spread within users takes one histogram, and bears
    much noise: as many columns are asked for, in the given order, as MOST_WITHIN of the budget pays
    for. Centre and spread over all rows take HISTOGRAMS more with less noise. They are asked for
    where they cost at most MOST_SCALES, for all columns or for the target alone. A column without
    a centre is taken around users' own means.

    Args:
        mu: the budget.
        n: number of users.
        columns: columns without public bounds, the target first.
        target: the target among them.
    """
    if not columns:
        return Scales()
    if math.isinf(mu):
        return Scales(tuple(columns), tuple(columns), LEAST_SCALES, LEAST_SCALES)

    def share(count: int, noise: float, histograms: int) -> float:
        return histograms * 2.0 * count / (noise * n * mu) ** 2

    within = list(columns)
    while within and share(len(within), BEARABLE_WITHIN, 1) > MOST_WITHIN:
        within.pop()
    pooled: Sequence[int] = ()
    for some in (columns, [column for column in columns if column == target]):
        if some and share(len(some), BEARABLE, HISTOGRAMS) <= MOST_SCALES:
            pooled = some
            break
    pays = min(max(share(len(pooled), FINE, HISTOGRAMS), LEAST_SCALES), MOST_SCALES)
    spends = min(max(share(len(within), FINE_WITHIN, 1), LEAST_SCALES), MOST_WITHIN)
    return Scales(tuple(pooled), tuple(within), pays if pooled else 0.0, spends if within else 0.0)


def measurable(mu: float, share: float, n: int) -> bool:
    """Return whether a private quantile of norms can be had with this share of the budget."""
    return mu * math.sqrt(share) * n * SURE >= 2.0
