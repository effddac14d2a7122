"""Users with fixed features of their images: targets, kernels, and heads in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.data.cohort import Cohort, is_class
from privfed.foundation.linalg import Array


class FeatureUsers:
    """The examples of several users.

    Args:
        block: users.
        phi: features of their examples, (B, m, D), not centred.
        classes: number of classes.

    Attributes:
        counts: whether a position holds an example, (B, m).
        own: the classes that each user has, (B, classes).
        Y: targets (B, m, classes): 1 for the class of the image, minus 1 / (number of the user's
            classes); 0 for classes that the user does not have.
        mean: mean features (B, 1, D).
        phi: centred features (B, m, D); zero where there is no example.
    """

    def __init__(self, block: Cohort, phi: NDArray[Any], classes: int) -> None:
        y = block.y
        self.counts = is_class(y, classes) & np.isfinite(phi).all(axis=2)
        hot = (np.where(self.counts, y, -1.0)[:, :, None] == np.arange(classes)).astype(np.float64)
        self.own = hot.any(axis=1)
        self.Y = (
            hot
            - self.counts[:, :, None]
            * self.own[:, None, :]
            / np.maximum(self.own.sum(axis=1), 1)[:, None, None]
        )
        self.number = np.maximum(self.counts.sum(axis=1), 1)
        """Number of examples of each user (B,), at least 1."""
        known = np.where(self.counts[:, :, None], phi, 0.0)
        self.mean = known.sum(axis=1, keepdims=True) / self.number[:, None, None]
        self.phi = self.centred(known) * self.counts[:, :, None]

    def centred(self, phi: NDArray[Any]) -> Array:
        """Return the features minus the user's mean."""
        return np.asarray(phi - self.mean, dtype=np.float64)

    def among_own(self, s: Array) -> Array:
        """Return scores (B, m, classes) minus their mean over the user's classes; 0 for others."""
        own = self.own[:, None, :]
        mean = (s * own).sum(axis=2, keepdims=True) / np.maximum(own.sum(axis=2, keepdims=True), 1)
        return np.asarray((s - mean) * own)

    def residuals(self, s: Array) -> Array:
        """Return targets minus the probabilities that scores s give to the user's classes.

        Args:
            s: scores of the examples, (B, m, classes).

        Returns:
            (B, m, classes); for s = 0 these are the targets Y.
        """
        own = np.where(self.own[:, None, :], s, -np.inf)
        with np.errstate(invalid="ignore"):  # users without any class
            P = np.exp(own - own.max(axis=2, keepdims=True))
            P = np.nan_to_num(P / P.sum(axis=2, keepdims=True))
        share = self.own / np.maximum(self.own.sum(axis=1), 1)[:, None]
        return np.asarray(self.Y + (share[:, None, :] - P) * self.counts[:, :, None])

    def inverse(self, K: Array, ridge: float) -> Array:
        """Return (K + l I)^-1 with l = ridge times the mean of the diagonal of K.

        Zero for users whose kernel is zero or not finite: they learn nothing.

        Args:
            K: kernels (B, m, m).
            ridge: strength, in units of the mean squared length of the examples.
        """
        level = ridge * np.trace(K, axis1=1, axis2=2) / self.number
        usable = (np.isfinite(level) & (level > 0))[:, None, None]
        diagonal = np.where(usable[:, 0, 0], level, 1.0)[:, None, None] * np.eye(K.shape[1])
        return np.asarray(np.linalg.inv(np.where(usable, K, 0.0) + diagonal) * usable)

    def solve(self, A: Array, Y: Array, ridge: float) -> Array:
        """Return the dual coefficients (B, m, classes) of ridge regression of Y on A.

        Args:
            A: features (B, m, .).
            Y: targets (B, m, classes).
            ridge: strength, in units of the mean squared length of the rows of A.
        """
        return self.inverse(A @ A.transpose(0, 2, 1), ridge) @ Y

    def losses(self, scores: Array) -> Array:
        """Return the cross-entropy (B, m) of the user's classes; 0 where there is no example.

        Args:
            scores: scores of the user's examples, (B, m, classes).
        """
        s = np.where(self.own[:, None, :], scores, -np.inf)
        top = np.where(self.own.any(axis=1)[:, None, None], s.max(axis=2, keepdims=True), 0.0)
        with np.errstate(divide="ignore"):  # users without any class
            total = top[:, :, 0] + np.log(np.exp(s - top).sum(axis=2))
        right = np.sum(np.where(self.Y > 0, scores, 0.0), axis=2)
        return np.asarray(np.where(self.counts, total - right, 0.0))

    def best(self, scores: Array) -> NDArray[np.int64]:
        """Return the class of the user's own with the largest score, (B, t)."""
        return np.asarray(np.argmax(np.where(self.own[:, None, :], scores, -np.inf), axis=2))
