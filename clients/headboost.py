"""Private boosting of one mean head on public features, user side.

    phi     public features (m, D) of the user's pictures, centred
    z       = phi T, public coordinates (m, k)
    s(M)    = z M^T for the user's classes, minus its mean over these classes
    R(s)    one-hot labels minus softmax(s), over the user's classes
    r_l(A)  ridge regression in its dual form, A^T (A A^T + l tr(A A^T)/m I)^-1

    send:     G = r_ridge(z) R(s(M)), scaled to length 1
    keep:     for each a of TRUST:  h_a = r_local(phi) R(a s(M)), score a s(x) + h_a phi(x)
    predict:  the largest score among the user's classes, with the a that the user's own pictures
              speak for

With a = 0 a user predicts as it would alone. Every score of a picture of its own is known as if
the picture had been left out, in closed form, so the choice of a costs nothing. M is trusted unless
another a has a smaller loss by more than the standard error of the difference.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays
from numpy.typing import NDArray

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.algorithm.feature_client import STRENGTH, FeatureClient
from privfed.data.cohort import Cohort
from privfed.foundation.linalg import Array
from privfed.models.feature_users import FeatureUsers
from privfed.models.public_features import PublicFeatures

TRUST = (1.0, 0.5, 0.25, 0.0)
"""How much of the mean head a user may take; 0 is the user alone."""
SHARPNESS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Factors of scores among which losses are compared: scores of a ridge are no log-odds."""


class HeadBoostClient(FeatureClient):
    """Personal heads on fixed features, on top of a head that all users have made together."""

    def __init__(
        self,
        cohort: Cohort,
        init: Any,
        model: PublicFeatures,
        ridge: Annotated[float, STRENGTH],
        local: Annotated[float, STRENGTH],
    ) -> None:
        super().__init__(cohort, model)
        self.ridge, self.local = ridge, local

    @cached_property
    def coordinates(self) -> NDArray[np.float64]:
        """Public coordinates of all users' pictures (n, m, k), not centred."""
        return np.asarray(self.features @ self.model.coordinates)

    @task
    def residual_heads(self, block: Cohort, shared: NDArrays, told: Announcement) -> Array:
        """Return G (B, classes, k), each of length 1."""
        user = FeatureUsers(block, self.of_block(self.coordinates, block), self.model.classes)
        z = user.phi
        R = user.residuals(z @ shared[0].T)
        G = np.matmul(user.solve(z, R, self.ridge).transpose(0, 2, 1), z)
        return G / np.maximum(np.linalg.norm(G, axis=(1, 2), keepdims=True), 1e-300)

    def scores(self, user: FeatureUsers, test: Array, shared: NDArrays) -> Array:
        """Return the scores of held-out pictures, with the trust that each user has chosen."""
        T, M = self.model.coordinates, shared[0]
        inverse, across = self._kernels(user, test)
        s, shift = (user.among_own(x @ T @ M.T) for x in (user.phi, test))
        s = s * user.counts[:, :, None]
        chosen = trusted(user, inverse, s)
        dual = inverse @ user.residuals(chosen * s)
        return chosen * shift + across @ dual

    def scores_alone(self, user: FeatureUsers, test: Array) -> Array:
        """Return the scores of held-out pictures without the mean head."""
        inverse, across = self._kernels(user, test)
        return across @ (inverse @ user.Y)

    def _kernels(self, user: FeatureUsers, test: Array) -> tuple[Array, Array]:
        """Return the inverse kernel of the users' pictures, and the kernel with held-out ones."""
        phi = user.phi.transpose(0, 2, 1)
        return user.inverse(user.phi @ phi, self.local), test @ phi


def trusted(user: FeatureUsers, inverse: Array, s: Array) -> Array:
    """Return a (B, 1, 1) for every user, by its pictures' losses when each is left out in turn.

    Args:
        user: users.
        inverse: inverse kernels of the local ridge, (B, m, m).
        s: scores of the users' pictures by the mean head, (B, m, classes).
    """
    full = sharpest(user, left_out(user, inverse, TRUST[0] * s))
    chosen, most = np.full(len(s), TRUST[0]), np.zeros(len(s))
    for a in TRUST[1:]:
        gain = full - sharpest(user, left_out(user, inverse, a * s))
        mean = gain.sum(axis=1) / user.number
        spread = np.sum((gain - mean[:, None]) ** 2 * user.counts, axis=1)
        sure = mean - np.sqrt(spread) / user.number
        chosen, most = np.where(sure > most, a, chosen), np.maximum(sure, most)
    return chosen[:, None, None]


def left_out(user: FeatureUsers, inverse: Array, s: Array) -> Array:
    """Return the scores of each picture if the local ridge had been fitted without it.

    Args:
        user: users.
        inverse: inverse kernels of the local ridge, (B, m, m).
        s: scores by the mean head as far as it is trusted, (B, m, classes).
    """
    R = user.residuals(s)
    own = np.maximum(np.diagonal(inverse, axis1=1, axis2=2), 1e-300)[:, :, None]
    return s + R - (inverse @ R) / own


def sharpest(user: FeatureUsers, scores: Array) -> Array:
    """Return the losses (B, m) of scores times the factor that suits each user best."""
    losses = np.stack([user.losses(factor * scores) for factor in SHARPNESS])
    best = np.argmin(losses.sum(axis=2), axis=0)
    return np.asarray(losses[best, np.arange(len(best))])
