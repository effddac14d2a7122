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
    noise: float

    @classmethod
    def of_spread(cls, U: Array, heads: Array, spread: float, noise: float) -> Prior:
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
    def of_fraction(cls, V: Array, k: int, captured: float, noise: float) -> Prior:
        """Return the prior of predictors of rank k with a fraction of their energy in V (d, q)."""
        d, q = V.shape
        inside = math.sqrt(captured * k / q)
        outside = math.sqrt((1.0 - captured) * k / (d - q)) if d > q else inside
        return cls(V, inside * np.eye(q), min(outside, inside), noise)

    def fit(self, X: Array, y: Array, noise: Array | None = None) -> Array:
        """Return the posterior mean of a for every user, (B, d).

        Args:
            X: examples, (B, m, d).
            y: targets, (B, m).
            noise: noise of each user, (B,); None takes the prior's.
        """
        change = (self.root - self.outside * np.eye(len(self.root))) @ self.U.T
        XS = self.outside * X + np.matmul(np.matmul(X, self.U), change)
        if noise is None:
            return lstsq(XS, y, self.noise**2)
        return lstsq(XS / noise[:, None, None], y / noise[:, None], 1.0)

    def parts(self, a: Array) -> tuple[Array, Array]:
        """Split a (B, d) into its part in the embedding (B, k) and its part outside (B, d)."""
        v = np.matmul(a[:, None, :], self.U)
        return v[:, 0], a - np.matmul(v, self.U.T)[:, 0]

    def predictors(self, X: Array, y: Array) -> Array:
        """Return the posterior means of w (B, d), each with the noise that its user measures.

        The residuals of a user's least-squares head hold label noise and what U misses of w. What
        U is expected to miss is subtracted, with two standard deviations of its mean square over
        m - k residuals; the rest is the user's noise, at least the prior's.
        """
        v, outer = self.parts(self.fit(X, y, self._own_noise(X, y)))
        return v @ self.root @ self.U.T + self.outside * outer

    def _own_noise(self, X: Array, y: Array) -> Array:
        B, m, d = X.shape
        k = len(self.root)
        # Without residuals, or without an embedding that explains more than others, there is no
        # noise to be seen.
        if m <= k or self.outside**2 * k >= (1.0 - 1e-9) * np.sum(self.root**2):
            return np.full(B, self.noise)
        P = (X.reshape(-1, d) @ self.U).reshape(B, m, k)
        v = lstsq(P, y)
        residual = np.sum((y - np.matmul(P, v[..., None])[..., 0]) ** 2, axis=1) / (m - k)
        scale = np.maximum(np.sum((v @ np.linalg.inv(self.root)) ** 2, axis=1) / k, TINY)
        beyond = np.mean(np.vecdot(X, X), axis=1) - np.mean(np.vecdot(P, P), axis=1)
        missed = self.outside**2 * beyond * (1.0 + 2.0 * math.sqrt(2.0 / (m - k)))
        return np.sqrt(np.maximum(residual / scale - missed, self.noise**2))


def unit(a: Array) -> Array:
    """Return rows of norm 1, (B, c); rows of zeros, or not finite, become zeros."""
    length = np.sqrt(np.vecdot(a, a))[:, None]
    return np.divide(a, length, out=np.zeros_like(a), where=(length > TINY) & np.isfinite(length))
