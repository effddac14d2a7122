"""Releases with Poisson sampling: each user takes part with probability q, by its own coin.

In units of the clip norm, emptying a user's data turns (1-q) N(0, s^2) + q N(1, s^2) into
N(0, s^2): the user throws its coin all the same, and its part is 0 either way. dp-accounting calls
this pair of distributions add-or-remove-one and takes the worse of its two orders. Replacing a user
turns (1-q) N(0, s^2) + q N(1, s^2) into (1-q) N(0, s^2) + q N(-1, s^2). Releases without sampling
are included as one Gaussian. The privacy loss distributions are rounded up, and convolved by
dp-accounting. Its Fourier transforms are wrong by about 1e-17 per release in delta, in either
direction. Epsilon is stated for a delta that is smaller by more than that: it is never too small.
"""

from __future__ import annotations

import math
from functools import lru_cache

from privfed.foundation.errors import ConfigError
from privfed.privacy.accounting import WIDER

STEP = 1e-4
"""Grid step of the privacy loss of small releases."""
CONVOLUTION = 2.0**-51
"""Error of delta per convolved release; a tenth of it was seen, with 10,000 releases."""


@lru_cache(maxsize=4096)
def sampled_epsilon(
    mu: float, sampled: tuple[tuple[tuple[float, float], int], ...], delta: float, replaced: bool
) -> float:
    """Return the epsilon at delta of a mu-Gaussian release together with sampled releases.

    Args:
        mu: cost of all releases without sampling; 0 if there are none.
        sampled: ((mu, q), number of releases) per kind of sampled release.
        delta: delta at which epsilon is stated.
        replaced: whether neighbouring data sets replace a user, rather than empty one user's data.

    Raises:
        ConfigError: dp-accounting is not installed.
    """
    if math.isinf(mu) or delta == 0 or any(math.isinf(each) for (each, _), _ in sampled):
        return math.inf
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld
        from dp_accounting.privacy_accountant import NeighboringRelation
    except ImportError as error:
        raise ConfigError(
            "Poisson sampling is accounted with dp-accounting; install it with pip install "
            "dp-accounting"
        ) from error
    relation = (
        NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    # Influence of one user in clip norms; dp-accounting itself accounts for the factor 2.
    length = 2.0 if replaced else 1.0

    largest = max([mu, *(each for (each, _), _ in sampled)])
    # For losses that are spread wider, a wider grid is as precise.
    step = STEP * max(1.0, largest**2 / 2 + 8 * largest)

    def loss(each: float, q: float) -> pld.PrivacyLossDistribution:
        return pld.from_gaussian_mechanism(
            length / each,
            sampling_prob=q,
            value_discretization_interval=step,
            neighboring_relation=relation,
        )

    total = loss(mu, 1.0) if mu > 0 else pld.identity(step)
    for (each, q), count in sampled:
        if each > 0:
            total = total.compose(loss(each, q).self_compose(count))
    # WIDER: for noise that is a discrete Gaussian.
    left = delta * (1 - WIDER) - CONVOLUTION * (10 + sum(count for _, count in sampled))
    return float(total.get_epsilon_for_delta(left)) if left > 0 else math.inf
