"""Posterior means of users' predictors, under a Gaussian prior around a shared representation.

    U       shared embedding (d, k), orthonormal         w   predictor (d,): y = X w + noise
    root    square root (k, k) of the covariance of heads, symmetric
    outside standard deviation of w in each direction that U does not hold
    S       U root U^T + outside (I - U U^T): the prior is w = S a with a ~ N(0, I)
    noise   standard deviation of the label noise, in the units of heads

The posterior mean of a is ridge regression of y on X S with ridge noise^2, and that of w is S a.
Only ratios matter: multiplying all targets by a number multiplies a, and changes no direction. The
prior joins two well-known fits. With outside = 0 and little noise the user fits a head by least
squares; with outside = root the embedding plays no part, and w is the user's own fit of minimum
norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import lstsq
from privfed.kernels.tolerances import TINY


@dataclass(frozen=True)
class Prior:
    """What is known about users' predictors; see the head of this file."""

    U: Array
    root: Array
    outside: float
    noise: float = 0.0

    @classmethod
    def of_spread(cls, U: Array, heads: Array, spread: float, noise: float = 0.0) -> Prior:
        """Return the prior at which an embedding is `spread` away from the true one.

        Users' predictors keep their size: with t = spread / k a fraction 1 / (1 + t) of their
        energy lies in U, and the rest is spread over the other d - k
        directions. No embedding says less than that all directions are alike: t <= (d - k) / k.

        Args:
            U: embedding, (d, k).
            heads: square root of the covariance of heads, with tr(heads^2) = k: (k, k).
            spread: sum of tan^2 of the principal angles between U and the true embedding, if these
                are equal.
            noise: standard deviation of the label noise, in units of heads.
        """
        d, k = U.shape
        inside = max(1.0 / (1.0 + spread / k), k / d)
        outside = math.sqrt((1.0 - inside) * k / (d - k)) if d > k else 0.0
        return cls(U, math.sqrt(inside) * heads, outside, noise)

    @classmethod
    def of_fraction(cls, V: Array, k: int, captured: float, noise: float = 0.0) -> Prior:
        """Return the prior of predictors of rank k with a fraction of their energy in V (d, q)."""
        d, q = V.shape
        inside = math.sqrt(captured * k / q)
        outside = math.sqrt((1.0 - captured) * k / (d - q)) if d > q else inside
        return cls(V, inside * np.eye(q), min(outside, inside), noise)

    def scaled(self, X: Array) -> Array:
        """Return X S (B, m, d): examples (B, m, d) in the units of the prior."""
        change = (self.root - self.outside * np.eye(len(self.root))) @ self.U.T
        return self.outside * X + np.matmul(np.matmul(X, self.U), change)

    def fit(self, X: Array, y: Array, gram: Array | None = None) -> Array:
        """Return the posterior mean of a for every user, (B, d).

        Args:
            X: examples, (B, m, d).
            y: targets, (B, m).
            gram: X X^T (B, m, m), if it is known: users who are asked often are faster with it.
                It needs noise > 0, which keeps X S^2 X^T + noise^2 I from being singular.
        """
        if gram is None or self.noise <= 0.0:
            return lstsq(self.scaled(X), y, self.noise**2)
        P, square = np.matmul(X, self.U), self.outside**2
        inside = self.root @ self.root - square * np.eye(len(self.root))
        K = square * gram + np.matmul(P @ inside, P.transpose(0, 2, 1))
        K += self.noise**2 * np.eye(X.shape[1])
        alpha = np.linalg.solve(K, y[..., None])[..., 0]
        w = np.matmul(alpha[:, None, :], X)[:, 0]
        change = self.root - self.outside * np.eye(len(self.root))
        return np.asarray(self.outside * w + (w @ self.U) @ change @ self.U.T)

    def parts(self, a: Array) -> tuple[Array, Array]:
        """Split a (B, d) into its part in the embedding (B, k) and its part outside (B, d)."""
        v = np.matmul(a[:, None, :], self.U)
        return v[:, 0], a - np.matmul(v, self.U.T)[:, 0]


def unit(a: Array) -> Array:
    """Return rows of norm 1, (B, c); rows of zeros, or not finite, become zeros."""
    length = np.sqrt(np.vecdot(a, a))[:, None]
    return np.divide(a, length, out=np.zeros_like(a), where=(length > TINY) & np.isfinite(length))
