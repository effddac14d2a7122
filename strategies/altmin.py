"""Priv-AltMin, server side (DPMP Algorithm 2).

    U    shared embedding (d, k), orthonormal columns        v_i    user i's head, fitted at the current U
    W    v x^T as a vector (k d): a user predicts <W, U^T>   A, b   released means of W W^T (k d x k d) and of r W

    for t = 1..T, asking only the users of group t:  U <- QR of the least-squares solution of  A vec(Z^T) = b

The T groups are disjoint, so a user takes part in one iteration only and the whole budget of the rounds serves every one of
them (parallel composition). The two releases of a group compose: mu^2 = mu_A^2 + mu_b^2, each with sensitivity 2 clip
(replace-one). A travels as its isometric half-vectorisation, k d (k d + 1) / 2 numbers.

`target: labels` is the paper's, r = y. With `target: residuals` users send r = y - <W, U^T> instead, hence b - A vec(U^T), and
the system is solved for the change of U. Without noise both give the same Z. With noise, an error in A is multiplied by what
is solved for, by U itself or only by its change, and residuals are far smaller than labels, so less noise does.

Solving is post-processing: A is denoised, projected to the positive semidefinite matrices, and `ridge` times the spectral norm
of the noise left in it, which is known, is added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from privfed.algorithm.strategy import Clip, PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.errors import ConfigError, check_flag, check_number
from privfed.foundation.linalg import Array, retraction, unsvec
from privfed.privacy.accounting import GaussianRelease
from privfed.privacy.clip_norms import AUTO

TARGETS = ("residuals", "labels")


class AltMin(PrivateStrategy):
    """Alternating minimisation: heads at the users, one noisy least-squares problem for the embedding a round."""

    task = "moments"

    def __init__(
        self,
        federation: Federation,
        rounds: int,
        clip: Clip | Mapping[str, Clip],
        share: float,
        shrink: bool,
        ridge: float,
        target: str,
    ) -> None:
        check_number(
            "algo.ridge", ridge, lambda x: 0 <= x < math.inf, "must be a number of at least 0"
        )
        if target not in TARGETS:
            raise ConfigError.of("algo.target", target, f"must be one of {', '.join(TARGETS)}")
        if isinstance(rounds, int) and rounds > federation.n:
            raise ConfigError.of(
                "rounds",
                rounds,
                f"every round needs users of its own, and there are {federation.n}",
            )
        check_number("algo.share", share, lambda x: 0 < x < 1, "must lie strictly between 0 and 1")
        if not isinstance(clip, Mapping):
            if clip != AUTO:
                raise ConfigError.of(
                    "algo.clip", clip, "there are two: set algo.clip.moments and algo.clip.products"
                )
            clip = {"moments": AUTO, "products": AUTO}
        check_flag("algo.shrink", shrink)
        self.shares = {"moments": share, "products": 1 - share}
        self.groups, self.shrink, self.ridge, self.target = rounds, shrink, ridge, target
        super().__init__(federation, rounds, clip)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """svec(A) and b."""
        size = self.federation.k * self.federation.d
        return {"moments": (size * (size + 1) // 2,), "products": (size,)}

    def step(self, t: int, moments: Array, products: Array) -> None:
        """U <- QR(Z) with A vec(Z^T) = b."""
        U = self.shared[0]
        A, noise = self._denoised(unsvec(moments, U.size))
        values, Q = np.linalg.eigh(A)
        damped = np.maximum(values, 0.0) + self.ridge * noise
        tiny = damped <= 1e-10 * damped.max()
        z = Q @ (np.where(tiny, 0.0, 1.0 / np.where(tiny, 1.0, damped)) * (Q.T @ products))
        start = U if self.target == "residuals" else 0.0
        self.shared = [retraction(start + z.reshape(U.shape[::-1]).T)]

    def _denoised(self, A: Array) -> tuple[Array, float]:
        """A shrunk toward C (x) I, the form it has for features of identity covariance, and the spectral norm of noise left.

        C (k, k), the blocks' mean diagonals, averages over d entries. The rest A - C (x) I keeps the share of its square that
        noise cannot explain (James-Stein): little where noise rules, all of it where the features are far from isotropic.
        """
        k, d = self.federation.k, self.federation.d
        std = self._noise_std()
        if not self.shrink:
            return A, std * math.sqrt(2 * len(A))
        structured = np.kron(np.trace(A.reshape(k, d, k, d), axis1=1, axis2=3) / d, np.eye(d))
        rest = A - structured
        explained = std**2 * (A.size + len(A)) / 2
        keep = max(0.0, 1.0 - explained / max(float(np.sum(rest * rest)), 1e-300))
        return structured + keep * rest, std * (keep * math.sqrt(2 * len(A)) + math.sqrt(2 * k / d))

    def _noise_std(self) -> float:
        """Standard deviation of the noise in the mean svec(A) that was released last; beside A's diagonal sqrt 2 less."""
        last = [
            r
            for r in self.federation.gate.ledger.releases
            if isinstance(r, GaussianRelease) and r.name == "moments"
        ][-1]
        return last.std / sum(self.federation.asked(self.groups, last.group).values())
