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

SEEN = 4.2
"""Least visibility of a global model; below it users are better off alone: nothing is released."""
DIRECTIONS_SEEN = 20.0
"""Least visibility of shared slopes."""
FACTORS_SEEN = 39.0
"""Least visibility of shared directions of items."""
MOST_ITEMS = 2000
"""Most items for which a matrix of items by items is asked."""
SURE, FINE, BEARABLE = 0.12, 0.02, 0.06
"""Noise of shares of users: largest for clip norms; wanted, and largest, for scales."""
LEAST_SCALES, MOST_SCALES = 0.03, 0.2
"""Share of the budget for scales."""
HISTOGRAMS = 3
"""Number of histograms per column that its scale takes."""


def visibility(mu: float, share: float, n: int, entries: int) -> float:
    """Return how far a sum stands out of its noise; see the module."""
    return mu * math.sqrt(share) * n / (2.0 * math.sqrt(entries))


def scales(mu: float, n: int, columns: Sequence[int]) -> tuple[list[int], float]:
    """Return the columns whose scales are asked for, and the share of the budget for them.

    Each user adds shares of its rows to bins, of norm at most sqrt(c) for c columns and without a
    negative entry: the noise per bin is sqrt(2 c) / (mu' n). As many columns are asked for, in
    the given order, as MOST_SCALES of the budget bring below BEARABLE.
    """
    if math.isinf(mu):
        return list(columns), LEAST_SCALES if columns else 0.0

    def share(count: int, noise: float) -> float:
        return HISTOGRAMS * 2.0 * count / (noise * n * mu) ** 2

    count = len(columns)
    while count and share(count, BEARABLE) > MOST_SCALES:
        count -= 1
    if not count:
        return [], 0.0
    return list(columns[:count]), min(max(share(count, FINE), LEAST_SCALES), MOST_SCALES)


def measurable(mu: float, share: float, n: int) -> bool:
    """Return whether a private quantile of norms can be had with this share of the budget."""
    return mu * math.sqrt(share) * n * SURE >= 2.0
