"""A private mean of the users' heads on public features, user side.

    phi     public features (m, D) of the user's pictures, centred
    z       = phi T, the features in the public basis T: (m, k)
    Y       targets (m, classes): 1 for the class of the picture, minus 1 / (number of the user's
            classes); 0 for classes that the user does not have
    R_l(A)  ridge regression in its dual form, A^T (A A^T + l tr(A A^T)/m I)^-1
    M       published mean of the heads (classes, k)

    send:     G = R_ridge(z) Y, scaled to length zeta
    keep:     s = z M^T for the user's classes, minus its mean over these classes
              a = <s, Y> / <s, s>
              h = R_local(phi) (Y - a s)
    predict:  the largest of a s(x) + h phi(x) among the user's classes

Without M (each user alone) h = R_alone(phi) Y.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.algorithm.feature_client import STRENGTH, FeatureClient
from privfed.data.cohort import Cohort
from privfed.foundation.linalg import Array
from privfed.models.feature_users import FeatureUsers
from privfed.models.public_features import PublicFeatures


class HeadMeanClient(FeatureClient):
    """Personal heads on fixed features, around a mean that all users have made together."""

    def __init__(
        self,
        cohort: Cohort,
        init: Any,
        model: PublicFeatures,
        ridge: Annotated[float, STRENGTH],
        local: Annotated[float, STRENGTH],
        alone: Annotated[float, STRENGTH],
    ) -> None:
        super().__init__(cohort, model)
        self.ridge, self.local, self.alone = ridge, local, alone

    @task
    def heads(self, block: Cohort, shared: NDArrays, told: Announcement) -> Array:
        """Return G (B, classes, k), each of length 1."""
        user = self.users(block)
        z = self._in_basis(user.phi)
        G = np.matmul(user.solve(z, user.Y, self.ridge).transpose(0, 2, 1), z)
        return G / np.maximum(np.linalg.norm(G, axis=(1, 2), keepdims=True), 1e-300)

    def scores(self, user: FeatureUsers, test: Array, shared: NDArrays) -> Array:
        """Return a s + h phi for held-out pictures."""
        M, phi = shared[0], user.phi
        s, shift = (user.among_own(self._in_basis(x) @ M.T) for x in (phi, test))
        s = s * user.counts[:, :, None]
        a = np.sum(s * user.Y, axis=(1, 2)) / np.maximum(np.sum(s * s, axis=(1, 2)), 1e-300)
        rest = user.solve(phi, user.Y - a[:, None, None] * s, self.local)
        return a[:, None, None] * shift + np.matmul(test @ phi.transpose(0, 2, 1), rest)

    def scores_alone(self, user: FeatureUsers, test: Array) -> Array:
        """Return h phi for held-out pictures, without M."""
        phi = user.phi
        return np.matmul(test @ phi.transpose(0, 2, 1), user.solve(phi, user.Y, self.alone))

    def _in_basis(self, phi: Array) -> Array:
        return np.asarray(phi @ self.model.basis.astype(np.float64))
