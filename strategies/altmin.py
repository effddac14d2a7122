"""Priv-AltMin, server side (DPMP Algorithm 2).

    U      shared embedding (d, k), orthonormal columns
    v_i    user i's head, fitted at the current U
    W      v x^T as a vector (k d): a user predicts <W, U^T>
    A, b   released means of W W^T (k d x k d) and of r W (k d)

    for t = 1..T, asking only the users of group t:
        U <- QR of the least-squares solution Z of  A vec(Z^T) = b

The T groups are disjoint. A user takes part in one iteration only, and the whole budget of the
rounds serves every one of them (parallel composition). The two releases of a group compose:
mu^2 = mu_A^2 + mu_b^2, each with sensitivity 2 clip (replace-one). A travels as its isometric
half-vectorisation, k d (k d + 1) / 2 numbers.

`target: labels` is the paper's, r = y. With `target: residuals` users send r = y - <W, U^T>, hence
b - A vec(U^T), and the system is solved for the change of U. Without noise both give the same Z.
With noise, an error in A is multiplied by what is solved for: by U itself, or only by its change.
Residuals are also far smaller than labels, so that less noise does.

Solving is post-processing: A is denoised and projected to the positive semidefinite matrices, and
`ridge` times the spectral norm of the noise left in it, which is known, is added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import numpy as np

from privfed.algorithm.linear_strategy import LinearStrategy
from privfed.algorithm.phases import Groups, Phase, Sum
from privfed.federation.federation import Federation
from privfed.foundation.constraints import AT_LEAST_ZERO, FLAG, Choice, Number, Rounds
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array, retraction, unsvec
from privfed.privacy.adaptive_clipping import AUTO
from privfed.privacy.settings import Clip


class AltMin(LinearStrategy):
    """Alternating minimisation: heads at the users, one noisy least-squares problem per round."""

    def __init__(
        self,
        federation: Federation,
        rounds: Rounds,
        clip: Clip | Mapping[str, Clip],
        share: Annotated[float, Number(lambda x: 0 < x < 1, "must lie strictly between 0 and 1")],
        shrink: Annotated[bool, FLAG],
        ridge: Annotated[float, AT_LEAST_ZERO],
        target: Annotated[str, Choice("residuals", "labels")],
        safety: Annotated[bool, FLAG] = False,
    ) -> None:
        super().__init__(federation, safety)
        if rounds > federation.n:
            allowed = f"every round needs users of its own, and there are {federation.n}"
            raise ConfigError.of("rounds", rounds, allowed)
        if not isinstance(clip, Mapping):
            if clip != AUTO:
                allowed = "there are two: set algo.clip.moments and algo.clip.products"
                raise ConfigError.of("algo.clip", clip, allowed)
            clip = {"moments": AUTO, "products": AUTO}
        self.rounds, self.clip, self.share = rounds, clip, share
        self.shrink, self.ridge, self.target = shrink, ridge, target

    def phases(self) -> list[Phase]:
        """Return the initialiser's phases, then T rounds of disjoint groups: svec(A) and b."""
        size, clip = self.federation.k * self.federation.d, self.clip
        svec_size = size * (size + 1) // 2
        sums = {
            "moments": Sum((svec_size,), clip["moments"], "algo.clip.moments", self.share),
            "products": Sum((size,), clip["products"], "algo.clip.products", 1 - self.share),
        }
        groups = Groups(self.rounds)
        return self.judged_at_last(
            Phase("moments", sums, self.update, self.rounds, participants=groups)
        )

    def update(self, t: int, moments: Array, products: Array) -> list[Array]:
        """Return U <- QR(Z) with A vec(Z^T) = b."""
        U = self.shared[0]
        A, noise = self._denoised(unsvec(moments, U.size))
        values, Q = np.linalg.eigh(A)
        damped = np.maximum(values, 0.0) + self.ridge * noise
        tiny = damped <= 1e-10 * damped.max()
        inverse = np.where(tiny, 0.0, 1.0 / np.where(tiny, 1.0, damped))
        z = Q @ (inverse * (Q.T @ products))
        start = U if self.target == "residuals" else 0.0
        return [retraction(start + z.reshape(U.shape[::-1]).T)]

    def _denoised(self, A: Array) -> tuple[Array, float]:
        """Return A shrunk toward C (x) I, and the spectral norm of the noise left in it.

        C (x) I is the form of A for features of identity covariance. C (k, k), the mean diagonals
        of the blocks, averages over d entries. The rest A - C (x) I keeps the share of its square
        that noise cannot explain (James-Stein): little where noise rules, all of it where the
        features are far from isotropic.
        """
        k, d = self.federation.k, self.federation.d
        std = self.noise_std("moments")  # on A's diagonal; off the diagonal smaller by sqrt(2)
        if not self.shrink:
            return A, std * math.sqrt(2 * len(A))
        C = np.trace(A.reshape(k, d, k, d), axis1=1, axis2=3) / d
        structured = np.kron(C, np.eye(d))
        rest = A - structured
        explained = std**2 * (A.size + len(A)) / 2
        keep = max(0.0, 1.0 - explained / max(float(np.sum(rest * rest)), 1e-300))
        noise = std * (keep * math.sqrt(2 * len(A)) + math.sqrt(2 * k / d))
        return structured + keep * rest, noise
