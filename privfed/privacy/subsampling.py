"""Releases with Poisson sampling: every user takes part with probability q, decided by a coin of its own.

A user who is added or removed turns N(0, s^2) into the mixture (1-q) N(0, s^2) + q N(1, s^2), in units of the clip norm; one
who is replaced, (1-q) N(0, s^2) + q N(1, s^2) into (1-q) N(0, s^2) + q N(-1, s^2). Unsampled releases join as one Gaussian. The
privacy loss distributions are convolved by dp-accounting, rounded up: epsilon is never too small.
"""

from __future__ import annotations

import math
from functools import lru_cache

from privfed.foundation.errors import ConfigError

STEP = 1e-4
"""Grid of the privacy loss of small releases."""


@lru_cache(maxsize=4096)
def sampled_epsilon(
    mu: float, sampled: tuple[tuple[tuple[float, float], int], ...], delta: float, replaced: bool
) -> float:
    """Epsilon at delta of a mu-Gaussian release (0: none) and sampled ones: ((mu, q), how many) each."""
    if math.isinf(mu) or delta == 0 or any(math.isinf(each) for (each, _), _ in sampled):
        return math.inf
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld
        from dp_accounting.privacy_accountant import NeighboringRelation
    except ImportError as error:
        raise ConfigError(
            "Poisson sampling is accounted with dp-accounting; install it with pip install dp-accounting"
        ) from error
    relation = (
        NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    length = (
        2.0 if replaced else 1.0
    )  # of a user's influence, in clip norms; the library counts it by itself

    largest = max([mu, *(each for (each, _), _ in sampled)])
    step = STEP * max(
        1.0, largest**2 / 2 + 8 * largest
    )  # of losses that are spread wider, a wider grid tells as much

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
    return float(total.get_epsilon_for_delta(delta))
