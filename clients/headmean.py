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

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays
from numpy.typing import NDArray

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import CohortClient, task
from privfed.data.cohort import Cohort, Ids, is_class
from privfed.foundation.constraints import Number
from privfed.foundation.linalg import Array
from privfed.models.public_features import PublicFeatures

CHUNK = 32
"""Number of users that are computed together."""
STRENGTH = Number(lambda x: 1e-8 <= x < math.inf, "must be a number of at least 1e-8")
"""With much less, a user whose pictures are all equal would make the equations singular.

Singular equations would stop every user of the node.
"""


class HeadMeanClient(CohortClient):
    """Personal heads on fixed features, around a mean that all users have made together."""

    takes_rows = False
    nothing = -1.0

    def __init__(
        self,
        cohort: Cohort,
        init: Any,
        model: PublicFeatures,
        ridge: Annotated[float, STRENGTH],
        local: Annotated[float, STRENGTH],
        alone: Annotated[float, STRENGTH],
    ) -> None:
        super().__init__(cohort)
        self.model, self.ridge, self.local, self.alone = model, ridge, local, alone
        self._tested: tuple[Cohort, Users, Array] | None = None

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """Features of all users (n, m, D), not centred; computed once."""
        return self.model(self.cohort.X)

    def blocks(self, users: Ids | None = None) -> Iterator[Cohort]:
        """Yield CHUNK users at a time, with pictures as they are stored."""
        everybody = np.arange(len(self.cohort)) if users is None else users
        for start in range(0, len(everybody), CHUNK):
            yield self.cohort[everybody[start : start + CHUNK]]

    def judged(self) -> Iterator[Cohort]:
        """Yield the users as they are judged at the end, in the same blocks."""
        return self.blocks()

    @task
    def heads(self, block: Cohort, shared: NDArrays, told: Announcement) -> Array:
        """Return G (B, classes, k), each of length 1."""
        user = Users(block, self._phi(block), self.model)
        A = user.basis(user.phi)
        G = np.matmul(user.solve(A, user.Y, self.ridge).transpose(0, 2, 1), A)
        return G / np.maximum(np.linalg.norm(G, axis=(1, 2), keepdims=True), 1e-300)

    def own_errors(self, block: Cohort, shared: NDArrays) -> Array:
        """Return the fraction (B,) of each user's held-out pictures that its head gets wrong."""
        return self._errors(*self._test(block), shared[0] if shared else None)

    def rival_errors(self, block: Cohort) -> dict[str, Array]:
        """Return the errors of each user alone, on the same features."""
        return {"alone": self._errors(*self._test(block), None)}

    def _test(self, block: Cohort) -> tuple[Cohort, Users, Array]:
        """Return the users and the features of their held-out pictures; cache the last block."""
        if self._tested is None or self._tested[0] is not block:
            users = Users(block, self._phi(block), self.model)
            self._tested = (block, users, users.centred(self.model(block.truth.X)))  # type: ignore[union-attr]
        return self._tested

    def _errors(self, block: Cohort, user: Users, test: Array, M: Array | None) -> Array:
        phi = user.phi
        if M is None:
            scores = np.matmul(test @ phi.transpose(0, 2, 1), user.solve(phi, user.Y, self.alone))
        else:
            s, shift = (user.among_own(user.basis(x) @ M.T) for x in (phi, test))
            s = s * user.counts[:, :, None]
            a = np.sum(s * user.Y, axis=(1, 2)) / np.maximum(np.sum(s * s, axis=(1, 2)), 1e-300)
            rest = user.solve(phi, user.Y - a[:, None, None] * s, self.local)
            scores = a[:, None, None] * shift + np.matmul(test @ phi.transpose(0, 2, 1), rest)
        best = np.argmax(np.where(user.own[:, None, :], scores, -np.inf), axis=2)
        wrong: Array = block.truth.wrong(best)  # type: ignore[union-attr]
        return wrong

    def _phi(self, block: Cohort) -> NDArray[np.float32]:
        return self.features[np.searchsorted(self.cohort.ids, block.ids)]

    def keep(self, shared: NDArrays) -> None:
        """Keep nothing: heads follow from the published mean and the user's own pictures."""


class Users:
    """The examples of several users.

    Attributes:
        counts: whether a position holds an example, (B, m).
        phi: centred features (B, m, D); zero where there is no example.
        mean: mean features (B, 1, D).
        Y: targets (B, m, classes).
    """

    def __init__(self, block: Cohort, phi: NDArray[np.float32], model: PublicFeatures) -> None:
        y = block.y
        self.model = model
        self.counts = is_class(y, model.classes) & np.isfinite(phi).all(axis=2)
        hot = (np.where(self.counts, y, -1.0)[:, :, None] == np.arange(model.classes)).astype(
            np.float64
        )
        self.own = hot.any(axis=1)
        """The classes (B, classes) that each user has."""
        self.Y = (
            hot
            - self.counts[:, :, None]
            * self.own[:, None, :]
            / np.maximum(self.own.sum(axis=1), 1)[:, None, None]
        )
        number = np.maximum(self.counts.sum(axis=1), 1)[:, None, None]
        known = np.where(self.counts[:, :, None], phi, 0.0)
        self.mean = known.sum(axis=1, keepdims=True) / number
        self.phi = self.centred(known) * self.counts[:, :, None]

    def centred(self, phi: NDArray[Any]) -> Array:
        """Return the features minus the user's mean."""
        return np.asarray(phi - self.mean, dtype=np.float64)

    def basis(self, phi: Array) -> Array:
        """Return the features in the public basis: (B, m, k)."""
        return np.asarray(phi @ self.model.basis.astype(np.float64))

    def among_own(self, s: Array) -> Array:
        """Return scores (B, m, classes) minus their mean over the user's classes; 0 for others."""
        own = self.own[:, None, :]
        mean = (s * own).sum(axis=2, keepdims=True) / np.maximum(own.sum(axis=2, keepdims=True), 1)
        return np.asarray((s - mean) * own)

    def solve(self, A: Array, Y: Array, ridge: float) -> Array:
        """Return the dual coefficients (B, m, classes) of ridge regression of Y on A.

        Args:
            A: features (B, m, .).
            Y: targets (B, m, classes).
            ridge: strength, in units of the mean squared length of the rows of A.
        """
        K = A @ A.transpose(0, 2, 1)
        level = ridge * np.trace(K, axis1=1, axis2=2) / np.maximum(self.counts.sum(axis=1), 1)
        usable = np.isfinite(level) & (level > 0)
        K = np.where(usable[:, None, None], K, 0.0)
        diagonal = np.where(usable, level, 1.0)[:, None, None] * np.eye(K.shape[1])
        return np.asarray(
            np.linalg.solve(K + diagonal, np.where(usable[:, None, None], Y, 0.0)), dtype=np.float64
        )
