"""The noise gate: the one place that adds privacy noise or selects privately."""

from __future__ import annotations

import math

import numpy as np

from privfed.foundation.linalg import Array
from privfed.privacy.accounting import GaussianRelease, SelectionRelease
from privfed.privacy.bounds import Bound
from privfed.privacy.ledger import Ledger
from privfed.privacy.noise import NoiseSource

GRID = -24
"""Releases lie on a grid whose step is about 2^GRID times the standard deviation of the noise."""


class NoiseGate:
    """Adds noise to sums. Every release is in the ledger, on disk, before it leaves."""

    def __init__(self, ledger: Ledger, source: NoiseSource) -> None:
        self.ledger = ledger
        self.source = source

    def release(
        self,
        name: str,
        total: Array,
        *,
        bound: Bound,
        mu: float,
        round: int,
        group: int | None = None,
        sampling: float = 1.0,
    ) -> Array:
        """Return a sum over users with Gaussian noise of cost `mu`.

        Sum and noise are whole multiples of a public grid far below the noise, and are added as
        integers. The noise is a Gaussian rounded to the grid. The rounded sum lies on the grid,
        so the result equals rounding (rounded sum + Gaussian): post-processing of a Gaussian
        release. The low bits of the floating-point result cannot tell two sums apart. Rounding
        moves two sums apart by at most one grid step per coordinate; the sensitivity includes it.

        Args:
            name: name of the release; (name, round) is charged at most once.
            total: sum of all users' parts, any shape.
            bound: what is known about one user's part; states the sensitivity.
            mu: cost of the release to a user who takes part; infinite means no noise.
            round: round of the phase that the release belongs to.
            group: disjoint group of users that took part; None means everybody.
            sampling: probability with which each user took part, by a coin that nobody knows.

        Raises:
            BudgetError: if the release would exceed the budget; nothing leaves.
        """
        sensitivity = bound.sensitivity(self.ledger.budget.neighbouring)

        def charge(sensitivity: float, std: float) -> None:
            self.ledger.charge(
                GaussianRelease(
                    name, round, total.size, bound.radius, sensitivity, std, group, sampling
                )
            )

        if math.isinf(mu):
            charge(sensitivity, 0.0)
            return total
        grid = 2.0 ** (math.floor(math.log2(sensitivity / mu)) + GRID)
        sensitivity += grid * math.sqrt(total.size)
        s = math.ceil(sensitivity / mu / grid)
        charge(sensitivity, s * grid)
        noise = self.source.normal(total.size, s, name, round).reshape(total.shape)
        on_grid = np.rint(total / grid).astype(np.int64)
        return np.asarray(grid * (on_grid + noise), dtype=np.float64)

    def select(self, name: str, total: Array, *, bound: Bound, epsilon: float, round: int) -> int:
        """Return the index of one candidate, chosen by the exponential mechanism.

        The probability of a candidate is proportional to exp(rate * total score). One user gives
        each candidate a score from 0 to `bound.clip`. Replacing a user changes the probability of
        a candidate by at most a factor e^(2 rate clip). Adding a user can only raise scores: the
        numerator and the normalising sum both grow by a factor between 1 and e^(rate clip), and
        so does their quotient at most. Hence epsilon = rate * sensitivity, with the sensitivities
        of sums.

        Args:
            name: name of the release.
            total: total score per candidate, (C,).
            bound: range of one user's scores.
            epsilon: cost of the selection; infinite takes the best candidate.
            round: round of the phase.
        """
        sensitivity = bound.sensitivity(self.ledger.budget.neighbouring)
        rate = epsilon / sensitivity
        self.ledger.charge(
            SelectionRelease(name, round, total.size, bound.radius, sensitivity, rate)
        )
        if math.isinf(rate):
            return int(np.argmax(total))
        return self.source.choice(rate * (total - np.max(total)), name, round)
