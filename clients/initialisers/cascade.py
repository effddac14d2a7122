"""A cascade of spectral releases, user side.

    V   columns (d, q) that the stage starts from          c   fraction of users' energy in V
    k   dimension of the representation
    a   posterior mean of the user's predictor in units of its prior (privfed/models/posterior.py)
    u   V^T a / |V^T a|

    send u u^T, as its isometric half-vectorisation: norm 1, or 0 for a user without data

In the first stage V = I, and u is the direction of the user's own ridge regression. Later the prior
knows that most of the predictor lies in V, and examples are explained by V first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.data.cohort import Cohort
from privfed.foundation.constraints import AT_LEAST_ZERO
from privfed.foundation.linalg import Array, svec
from privfed.models.posterior import Prior, unit
from privfed.privacy.clipping import clip_factors
from privfed.privacy.summation import sum_of_products


class CascadeTask:
    """Outer products of unit vectors.

    Args:
        noise: assumed label noise, in units of heads.
    """

    def __init__(self, noise: Annotated[float, AT_LEAST_ZERO]) -> None:
        self.noise = noise

    @task
    def cascade(self, block: Cohort, shared: NDArrays, told: Announcement) -> OuterProducts:
        """Return u_i u_i^T of every user."""
        block = block.exact()
        V, (captured, k) = shared
        prior = Prior.of_fraction(V, int(k), float(captured), self.noise)
        return OuterProducts(unit(prior.fit(block.X, block.y) @ V))


@dataclass(frozen=True)
class OuterProducts:
    """Contributions u_i u_i^T by their vectors u_i (B, q)."""

    u: Array

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Return svec of the clipped sum (q (q + 1) / 2,), and the norms |u|^2 (B,)."""
        norms = np.vecdot(self.u, self.u)
        rows = np.sqrt(clip_factors(norms, clip))[:, None] * self.u
        return svec(sum_of_products(rows, rows)), norms
