"""The noise gate: the one place that adds privacy noise or selects privately."""

from __future__ import annotations

import math

import numpy as np

from privfed.foundation.linalg import Array
from privfed.privacy.accounting import GaussianRelease, Selection
from privfed.privacy.ledger import SENSITIVITY, Ledger
from privfed.privacy.noise import NoiseSource

GRID = -24
"""Releases lie on multiples of a power of two about 2^GRID below the noise's standard deviation."""


class NoiseGate:
    """The one place where privacy noise is added, and where a release is charged before it leaves."""

    def __init__(self, ledger: Ledger, source: NoiseSource) -> None:
        self.ledger = ledger
        self.source = source

    def sensitivity(self, bound: float) -> float:
        """How far one user can move a sum of contributions of norm at most bound."""
        return SENSITIVITY[self.ledger.budget.neighbouring] * bound

    def release(
        self,
        name: str,
        total: Array,
        *,
        bound: float,
        mu: float,
        round: int,
        group: int | None = None,
        sampling: float = 1.0,
    ) -> Array:
        """The sum of all users' contributions, each of norm at most bound, plus Gaussian noise of cost mu.

        sampling: the probability with which each user took part, by a coin that nobody knows; mu is the cost without it.

        The ledger has it on disk when this returns; a release over budget raises and nothing leaves.

        Sum and noise are whole multiples of a public grid far below the noise; they are added as integers. The noise is a
        Gaussian rounded to the grid. As the rounded sum lies on the grid, that equals rounding (rounded sum + Gaussian):
        post-processing of a Gaussian release, and the low bits of the floating-point result cannot tell sums apart.
        Rounding moves two sums apart by at most one grid step a coordinate; the sensitivity includes it.
        """
        sensitivity = self.sensitivity(bound)
        if math.isinf(mu):
            self.ledger.charge(
                GaussianRelease(name, round, total.size, bound, sensitivity, 0.0, group, sampling)
            )
            return total
        grid = 2.0 ** (math.floor(math.log2(sensitivity / mu)) + GRID)
        sensitivity += grid * math.sqrt(total.size)
        s = math.ceil(sensitivity / mu / grid)
        self.ledger.charge(
            GaussianRelease(name, round, total.size, bound, sensitivity, s * grid, group, sampling)
        )
        noise = self.source.normal(total.size, s, name, round).reshape(total.shape)
        return np.asarray(grid * (np.rint(total / grid).astype(np.int64) + noise), dtype=np.float64)

    def select(self, name: str, total: Array, *, bound: float, epsilon: float, round: int) -> int:
        """The index of one candidate by the exponential mechanism: probability proportional to exp(rate * total score).

        One user gives each candidate a score from 0 to bound, so replacing a user changes the probability of a candidate by
        at most e^(2 rate bound). Adding a user can only raise scores: both the numerator and the normalising sum grow
        by a factor between 1 and e^(rate bound), and their quotient by at most that. Hence epsilon = rate * sensitivity
        with the sensitivities of sums.
        """
        sensitivity = self.sensitivity(bound)
        rate = epsilon / sensitivity
        self.ledger.charge(Selection(name, round, total.size, bound, sensitivity, rate))
        if math.isinf(rate):
            return int(np.argmax(total))
        return self.source.choice(rate * (total - np.max(total)), name, round)
