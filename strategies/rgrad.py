"""DP-RGrad, server side (RGRAD Algorithm 2): low-rank trace regression y = <X, M*> + noise.

    M = U diag(S) V^T   published matrix of rank r: U (d1, r), S (r,), V (d2, r)
    P_T                 projection on the tangent space at M, of rank 2r
    G                   mean of the users' clipped gradients, released with noise
    psi                 clip norm of a projected gradient
    eta_t               step size of round t
    q                   fraction of users whose gradient is not clipped

    for t = 1..T:  M <- SVD_r( M - eta_t P_T(G) )

Users send P_T(G_i) by its coordinates A (r, r), B (r, d2), C (d1, r), an isometry (see the client):
one release of r^2 + r d2 + d1 r numbers, not d1 d2. Noise on B and C falls partly outside the
tangent space. Projecting it away, B (I - V V^T) and (I - U U^T) C, is post-processing, and leaves
noise in the r (d1 + d2 - r) dimensions that matter. SVD_r is exact by two thin QRs and the SVD of
a 2r x 2r core: O((d1 + d2) r^2) per round, without any d1 x d2 matrix.

Sensitivity and budget (calibration=clipped): a user's vector has norm at most psi. Replacing a user
(or only its labels: neighbouring=weak) moves the sum by at most 2 psi; emptying the data of one by
psi, whatever the data. A release with noise std costs mu_t = sensitivity / std, and everything
together, initialiser and clip norms included, mu^2 = sum_t mu_t^2.

Step size: for Gaussian X and m = 1 Stein's identity gives, but for the spread of |P_T(X)|,
E clip(r P_T(X), psi) = q P_T(M - M*), as far from M* as near it. So 1/q is Newton's step, and
eta_t = (step / q) decay^(t - 1): long steps first, then shorter and shorter ones that average the
noise of many rounds. With clip=auto, q is the private quantile asked for, and clip norms follow the
residuals as they shrink. A fixed clip norm leaves fewer users alone while M is far away, and takes
more or longer steps; `slope` is q near the solution.

calibration=paper clips nothing (q = 1) and trusts the paper's sensitivities
(`rgrad_sensitivity.py`): the guarantee then holds under that assumption only, and the result
says so. Costs are still counted exactly, by mu, not by the paper's eps / l* per round with
2 log(1.25 l* / delta).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from privfed.algorithm.phases import Phase, Sum
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.constraints import POSITIVE, Choice, Rounds
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array, low_rank_retraction
from privfed.privacy.bounds import AssumedSensitivity
from privfed.privacy.neighbouring import REPLACE_ONE, WEAK, ZERO_OUT
from privfed.privacy.settings import Clip
from strategies.initialisers.regression import RegressionStart
from strategies.rgrad_sensitivity import ASSUMPTION, GaussianDesign


class RGrad(PrivateStrategy):
    """Noisy Riemannian gradient steps on the matrices of rank r."""

    publishes = ("U", "S", "V")
    relations: tuple[str, ...] = (REPLACE_ONE, ZERO_OUT, WEAK)

    def __init__(
        self,
        federation: Federation,
        rounds: Rounds,
        clip: Clip,
        step: Annotated[float, POSITIVE],
        decay: Annotated[float, POSITIVE],
        slope: Annotated[float, POSITIVE],
        calibration: Annotated[str, Choice("clipped", "paper")],
        d1: int | None,
        d2: int | None,
        sigma_xi: float | None,
        sigma_1: float | None,
        sigma_r: float | None,
        C2: float | None,
        C3: float,
        C_l: Annotated[float, POSITIVE],
        C_u: Annotated[float, POSITIVE],
        singular: Sequence[float] | None,
        rank: int | None,
    ) -> None:
        super().__init__(federation)
        if d1 is None or d2 is None:
            raise ConfigError(
                "data: algo=rgrad needs features that are matrices (data.d1, data.d2), as "
                "data=trace has them"
            )
        if federation.k > min(d1, d2):
            allowed = f"the rank cannot be larger than the smaller of data.d1={d1} and data.d2={d2}"
            raise ConfigError.of("model.k", federation.k, allowed)
        self.d1, self.d2, self.rounds, self.clip = d1, d2, rounds, clip
        self.first_step, self.decay = step / slope, decay
        self.design: GaussianDesign | None = None
        if calibration == "paper":
            C2 = math.sqrt(d1 + d2) if C2 is None else C2
            self.design = GaussianDesign(
                sigma_xi, sigma_1, sigma_r, C2, C3, singular, rank, C_l, C_u
            )
            self.relations, self.guarantee = (REPLACE_ONE, WEAK), ASSUMPTION
            self.first_step = step
            self.design.check(federation)
            if federation.privacy.clip is not None:
                allowed = "algo.calibration=paper clips nothing"
                raise ConfigError.of("privacy.clip", federation.privacy.clip, allowed)
            if isinstance(federation.init, RegressionStart):
                federation.init.assume(self.design)

    def phases(self) -> list[Phase]:
        """Return the initialiser's phases, then T rounds: coordinates A, B, C in one vector."""
        r = self.federation.k
        shape = (r * (r + self.d1 + self.d2),)
        if self.design is None:
            G = Sum(shape, self.clip)
        else:
            assumed = self.design.gradients(self.federation, self.d1, self.d2)
            G = Sum(shape, AssumedSensitivity(assumed))
        return self.after_initialiser(Phase("gradient", G, self.update, self.rounds))

    def update(self, t: int, G: Array) -> list[Array]:
        """Return U, S, V of M <- SVD_r(M - eta_t P_T(G))."""
        U, S, V = self.shared
        r = len(S)
        step = -self.first_step * self.decay ** (t - 1) * G
        A, B, C = np.split(step, [r * r, r * r + r * self.d2])
        B, C = B.reshape(r, self.d2), C.reshape(self.d1, r)
        xi = A.reshape(r, r), B - (B @ V) @ V.T, C - U @ (U.T @ C)
        return list(low_rank_retraction(U, S, V, *xi))

    def notes(self) -> list[str]:
        """Say that the paper's constants are a guess."""
        if self.design is None:
            return []
        chosen = f"C2={self.design.C2:g} and C3={self.design.C3:g}"
        return [
            f"the paper leaves its constants open; that {chosen} are large enough is assumed, too"
        ]
