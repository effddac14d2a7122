"""FedRep for few users, user side: normalised posterior directions.

    U, heads, x   shared embedding (d, k), root of the covariance of heads (k, k), and spread: they
                  make the prior of a user's predictor (privfed/models/posterior.py)
    a             posterior mean of the predictor, in units of its prior: ridge regression
    v             U^T a (k,): the user's head                delta   a - U v (d,): what U misses

    send (delta v^T / (|delta| |v|))^T, of norm 1, or 0 for a user without data

It points along the score: for y ~ N(0, K), K the prior covariance of targets, the derivative of the
log-likelihood in U is delta v^T less its mean given X, which is small as long as m < d. All users
send the same length, because noise is paid for by the longest.
"""

from __future__ import annotations

from typing import Any

from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.algorithm.linear_client import LinearClient
from privfed.data.cohort import Cohort
from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import lstsq
from privfed.models.posterior import Prior, unit


class PosteriorFedRepClient(LinearClient):
    """Directions of norm 1; final predictors are posterior means.

    Args:
        cohort: users.
        init: user side of the initialiser.
        train: examples that train the embedding.
        heads: examples that fit the final head.
        noise: assumed label noise, in units of heads.
    """

    def __init__(self, cohort: Cohort, init: Any, train: str, heads: str, noise: float) -> None:
        super().__init__(cohort, init, train, heads)
        self.noise = noise

    def prior(self, shared: NDArrays) -> Prior:
        """Return the prior that the shared parameters make."""
        U, heads, spread = shared
        return Prior.of_spread(U, heads, float(spread[0]), self.noise)

    @task
    def direction(self, block: Cohort, shared: NDArrays, told: Announcement) -> Array:
        """Return v delta^T / (|v| |delta|) for every user of the block, (B, k, d)."""
        prior = self.prior(shared)
        v, delta = prior.parts(prior.fit(block.X, block.y))
        return unit(v)[:, :, None] * unit(delta)[:, None, :]

    def weights(self, block: Cohort, shared: NDArrays) -> Array:
        """Return posterior means w_i (B, d); if nothing was learnt, users' own least squares."""
        X, y = block.X[:, self.final], block.y[:, self.final]
        return self.prior(shared).predictors(X, y) if shared else lstsq(X, y)
