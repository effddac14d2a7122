"""DP-RGrad, server side (RGRAD Algorithm 2)."""

from __future__ import annotations

import numpy as np

from privfed.errors import ConfigError, check_number, check_positive
from privfed.federation import Federation
from privfed.linalg import Array, low_rank_retraction
from privfed.privacy.ledger import ADD_REMOVE, REPLACE_ONE, WEAK
from strategies.base import PrivateStrategy


class RGrad(PrivateStrategy):
    names = ("U", "S", "V")
    neighbourings = (REPLACE_ONE, ADD_REMOVE, WEAK)

    def __init__(self, federation: Federation, rounds: int, clip: float | str, step: float, decay: float, slope: float, d1: int, d2: int) -> None:
        self.relative_step, self.decay, self.slope = step, decay, slope
        self.d1, self.d2 = d1, d2
        self.auto = clip == "auto" or federation.privacy.clip == "auto"
        super().__init__(federation, rounds, clip)

    def shape(self) -> tuple[int, ...]:
        r = self.federation.k
        return (r * (r + self.d1 + self.d2),)

    def step(self, t: int, mean: Array) -> None:
        U, S, V = self.shared
        r = len(S)
        eta = self.relative_step * self.decay ** (t - 1)
        eta = min(eta, 1.0) / self.federation.privacy.quantile if self.auto else eta / self.slope
        A, B, C = np.split(-eta * mean, [r * r, r * r + r * self.d2])
        B, C = B.reshape(r, -1), C.reshape(-1, r)
        self.shared = list(low_rank_retraction(U, S, V, A.reshape(r, r), B - (B @ V) @ V.T, C - U @ (U.T @ C)))
