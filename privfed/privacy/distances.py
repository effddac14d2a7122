"""How far one user can move a sum, by the kind of the bound on the user's part.

A release is charged `sensitivity_of(kind, radius, ...)`, and `privfed ledger` computes it again
from each line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from privfed.privacy.neighbouring import influence

NORM, OUTER_PRODUCT, ASSUMED = "norm", "outer-product", "assumed"
NON_NEGATIVE, SEMIDEFINITE = "non-negative", "semidefinite"
ROOT = 1.4142135623730951
"""Square root of 2, rounded up."""
DISTANCES: Mapping[str, Callable[[float, str], float]] = {
    NORM: lambda radius, relation: influence(relation) * radius,
    **dict.fromkeys(
        (OUTER_PRODUCT, NON_NEGATIVE, SEMIDEFINITE),
        lambda radius, relation: min(influence(relation), ROOT) * radius,
    ),
    ASSUMED: lambda radius, relation: 2.0 * radius,
}
"""(radius, relation) -> how far one user can move a sum, per kind of bound."""


def sensitivity_of(
    kind: str, radius: float, relation: str, *, sampling: float = 1.0, rounding: float = 0.0
) -> float:
    """Return how far one user can move a computed sum: what a release is charged for.

    Under Poisson sampling the parts themselves are compared with the absence of a part, so that
    the radius counts for every kind of bound: a sum moves by up to radius + rounding when a user
    joins with either of two data sets. Accounting is told twice that length if data are replaced.

    Args:
        kind: kind of the bound, a key of DISTANCES.
        radius: radius of a ball that holds every user's part.
        relation: neighbouring relation.
        sampling: probability with which each user took part.
        rounding: how far rounding can move the sums over two data sets apart.

    Raises:
        KeyError: the kind is unknown.
        ValueError: the bound says nothing about sampled users.
    """
    if sampling < 1:
        if kind == ASSUMED:
            raise ValueError("an assumed sensitivity does not bound the part of a sampled user")
        exact, times = radius, influence(relation)
    else:
        exact, times = DISTANCES[kind](radius, relation), 1.0
    # One step up covers what is lost in adding, and in the last digit of `rounding`.
    return times * (math.nextafter(exact + rounding, math.inf) if rounding else exact)
