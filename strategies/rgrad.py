"""DP-RGrad, server side (RGRAD Algorithm 2): low-rank trace regression y = <X, M*> + noise.

    M = U diag(S) V^T   published matrix of rank r, U (d1, r), S (r,), V (d2, r)      psi    clip norm of a projected gradient
    P_T                 projection on the tangent space at M, of rank 2r              eta_t  step size of round t
    G                   mean of the users' clipped gradients, released with noise     q      fraction of users not clipped

    for t = 1..T:  M <- SVD_r( M - eta_t P_T(G) )

Users send P_T(G_i) by its coordinates A (r, r), B (r, d2), C (d1, r), an isometry (see clients/rgrad.py): one release of
r^2 + r d2 + d1 r numbers, not d1 d2. Noise on B and C falls partly outside the tangent space; projecting it away,
B (I - V V^T) and (I - U U^T) C, is post-processing, and leaves noise in the r (d1 + d2 - r) dimensions that matter. SVD_r is
exact by two thin QRs and the SVD of a 2r x 2r core: O((d1 + d2) r^2) a round, no d1 x d2 matrix at all.

Sensitivity and budget (calibration=clipped): a user's vector has norm at most psi, so replacing a user (or only its labels:
neighbouring=weak) moves the sum by at most 2 psi, adding or removing one by psi, whatever the data. A release with noise std
costs mu_t = sensitivity / std, and everything together, initialiser and clip norms included, mu^2 = sum mu_t^2.

Step size: for Gaussian X and m = 1 Stein's identity gives, but for the spread of |P_T(X)|, E clip(r P_T(X), psi) =
q P_T(M - M*), as far from M* as near it. So 1/q is Newton's step, and eta_t = (step / q) decay^(t - 1): long steps first, then
shorter and shorter ones that average the noise of many rounds. With clip=auto, q is the private quantile asked for, and clip
norms follow the residuals as they shrink. A fixed clip norm leaves fewer users alone while M is far away, so that it takes
more or longer steps; `slope` is q near the solution.

calibration=paper clips nothing (q = 1) and trusts the paper's sensitivities (strategies/gaussian_design.py): the guarantee then holds
under that assumption only, and the result says so. Costs are still counted exactly, by mu, not by the paper's eps / l* a round
with 2 log(1.25 l* / delta).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from privfed.algorithm.phases import Step
from privfed.algorithm.strategy import Clip, PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.errors import ConfigError, check_positive, nearest
from privfed.foundation.linalg import Array, low_rank_retraction
from privfed.privacy.ledger import ADD_REMOVE, REPLACE_ONE, WEAK
from strategies.gaussian_design import ASSUMPTION, GaussianDesign
from strategies.initialisers.regression import Regression

CALIBRATIONS = ("clipped", "paper")
UNCLIPPED = 1e99
"""A clip norm that no finite data reach in practice."""


class RGrad(PrivateStrategy):
    """Noisy Riemannian gradient steps on the matrices of rank r."""

    names = ("U", "S", "V")
    neighbourings: tuple[str, ...] = (REPLACE_ONE, ADD_REMOVE, WEAK)

    def __init__(
        self,
        federation: Federation,
        rounds: int,
        clip: Clip,
        step: float,
        decay: float,
        slope: float,
        calibration: str,
        d1: int | None,
        d2: int | None,
        assumed: Mapping[str, Any],
    ) -> None:
        for key, value in (("algo.step", step), ("algo.decay", decay), ("algo.slope", slope)):
            check_positive(key, value)
        if calibration not in CALIBRATIONS:
            raise ConfigError.of(
                "algo.calibration", calibration, nearest(str(calibration), CALIBRATIONS)
            )
        if d1 is None or d2 is None:
            raise ConfigError(
                "data: algo=rgrad needs features that are matrices (data.d1, data.d2), as data=trace has them"
            )
        if federation.k > min(d1, d2):
            raise ConfigError.of(
                "model.k",
                federation.k,
                f"the rank cannot be larger than the smaller of data.d1={d1} and data.d2={d2}",
            )
        self.d1, self.d2 = d1, d2
        constants = {"C2": assumed["C2"] if assumed["C2"] is not None else math.sqrt(d1 + d2)}
        self.design = GaussianDesign(**{**assumed, **constants}) if calibration == "paper" else None
        if self.design is not None:
            self.neighbourings, self.guarantee = (REPLACE_ONE, WEAK), ASSUMPTION
            self.design.check(federation)
            if isinstance(federation.init, Regression):
                federation.init.assume(self.design)
        self.first_step, self.decay = step / (slope if self.design is None else 1.0), decay
        super().__init__(federation, rounds, clip)

    def shape(self) -> tuple[int, ...]:
        """The coordinates A, B, C in one vector."""
        return (self.federation.k * (self.federation.k + self.d1 + self.d2),)

    def step(self, t: int, mean: Array) -> None:
        """M <- SVD_r(M - eta_t P_T(G))."""
        U, S, V = self.shared
        r = len(S)
        A, B, C = np.split(
            -self.first_step * self.decay ** (t - 1) * mean, [r * r, r * r + r * self.d2]
        )
        B, C = B.reshape(r, self.d2), C.reshape(self.d1, r)
        xi = A.reshape(r, r), B - (B @ V) @ V.T, C - U @ (U.T @ C)
        self.shared = list(low_rank_retraction(U, S, V, *xi))

    def release(self, step: Step, sums: dict[str, Array], users: int) -> list[Array]:
        """The mean gradient; with calibration=paper its noise is that of the assumed sensitivity, not of a clip norm."""
        if self.design is None:
            return super().release(step, sums, users)
        half = (
            self.design.gradients(self.federation, self.d1, self.d2) / 2.0
        )  # the gate doubles what one user sends
        return [
            self.federation.gate.release(
                step.task, sums[step.task], bound=half, mu=step.mu, round=step.round
            )
            / users
        ]

    @property
    def notes(self) -> list[str]:
        """That the paper's constants are a guess."""
        if self.design is None:
            return super().notes
        chosen = f"C2={self.design.C2:g} and C3={self.design.C3:g}"
        return [
            f"the paper leaves its constants open; that {chosen} are large enough is assumed, too",
            *super().notes,
        ]

    def _clips(self, clip: Clip | Mapping[str, Clip]) -> dict[str, Clip]:
        clips = super()._clips(clip)
        if self.design is None:
            return clips
        if self.federation.privacy.clip is not None:
            raise ConfigError.of(
                "privacy.clip", self.federation.privacy.clip, "algo.calibration=paper clips nothing"
            )
        free = [self.task, Regression.task] if isinstance(self.init, Regression) else [self.task]
        return clips | dict.fromkeys(free, UNCLIPPED)
