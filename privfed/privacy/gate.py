"""The noise gate: the one place that adds privacy noise or selects privately."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.foundation.linalg import Array
from privfed.privacy.accounting import ROUNDED_GAUSSIAN, GaussianRelease, SelectionRelease
from privfed.privacy.bounds import Bound
from privfed.privacy.distances import ASSUMED, sensitivity_of
from privfed.privacy.exact_sampling import Whole
from privfed.privacy.ledger import Ledger
from privfed.privacy.neighbouring import REPLACE_ONE
from privfed.privacy.noise import NoiseSource
from privfed.privacy.summation import UNIT, excess

GRID = -24
"""Releases lie on a grid whose step is about 2^GRID times the standard deviation of the noise."""
MASKED_GRID = -40
"""Masked sums without noise lie on a grid whose step is about 2^MASKED_GRID times the clip norm."""


LARGEST_DELTA = 0.1
"""Up to here what discrete Gaussians are charged covers how they differ from rounded ones."""


class NoiseGate:
    """Adds noise to sums. Every release is in the ledger, on disk, before it leaves."""

    def __init__(self, ledger: Ledger, source: NoiseSource) -> None:
        delta = ledger.budget.delta
        if source.distribution != ROUNDED_GAUSSIAN and delta > LARGEST_DELTA:
            allowed = f"privacy.noise={source.name} needs at most {LARGEST_DELTA}"
            raise ConfigError.of("delta", delta, allowed)
        self.ledger = ledger
        self.source = source
        ledger.simulation = source.repeatable
        self._opened: dict[tuple[str, int], Array] = {}
        """Noisy sums of masked steps, charged already, by name and round."""

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
        users: int = 0,
    ) -> Array:
        """Return a sum over users with Gaussian noise of cost `mu`.

        Sum and noise are whole multiples of a public grid far below the noise, and are added as
        integers. The noise is a Gaussian rounded to the grid. The rounded sum lies on the grid,
        so the result equals rounding (rounded sum + Gaussian): post-processing of a Gaussian
        release. (A source may draw discrete Gaussians instead, which are charged accordingly.)
        The low bits of the floating-point result cannot tell two sums apart. Rounding moves two
        sums apart by at most one grid step per coordinate. The sensitivity includes it, and what
        rounding in the sums over many users adds (docs/proofs.md).

        Args:
            name: name of the release; (name, round) is charged at most once.
            total: sum of all users' parts, any shape.
            bound: what is known about one user's part; states the sensitivity.
            mu: cost of the release to a user who takes part; infinite means no noise.
            round: round of the phase that the release belongs to.
            group: disjoint group of users that took part; None means everybody.
            sampling: probability with which each user took part, by a coin that nobody knows.
            users: largest number of users behind a sum that was rounded; 0 if the sum is exact.

        Raises:
            BudgetError: if the release would exceed the budget; nothing leaves.
            PrivfedError: if groups do not compose in parallel with this bound; nothing leaves.
        """
        if (name, round) in self._opened:
            return self._opened.pop((name, round)).reshape(total.shape)
        made = self.calibrated(
            name,
            total.size,
            bound=bound,
            mu=mu,
            round=round,
            group=group,
            sampling=sampling,
            users=users,
        )
        self.ledger.charge(made)
        if made.std == 0:
            return total
        s = int(made.std / made.grid)
        noise = self.source.normal(total.size, s, name, round).reshape(total.shape)
        on_grid = np.rint(total / made.grid).astype(np.int64)
        return np.asarray(made.grid * (on_grid + noise), dtype=np.float64)

    def open(
        self, releases: Sequence[GaussianRelease], unmask: Callable[[], Sequence[Whole]]
    ) -> None:
        """Charge the releases of a masked step, and only then have their sums unmasked.

        The noise is in the sums already; `release` returns them.

        Args:
            releases: what is released, as `calibrated` says.
            unmask: returns the noisy sum of each, in steps of its grid.

        Raises:
            BudgetError: if a release would exceed the budget; nothing is unmasked.
        """
        for made in releases:
            self.ledger.charge(made)
        for made, total in zip(releases, unmask(), strict=True):
            self._opened[made.name, made.round] = made.grid * total.astype(np.float64)

    def calibrated(
        self,
        name: str,
        size: int,
        *,
        bound: Bound,
        mu: float,
        round: int,
        group: int | None = None,
        sampling: float = 1.0,
        users: int = 0,
        masked: bool = False,
    ) -> GaussianRelease:
        """Return a release as the ledger charges it, with its noise and its grid: all public.

        Args:
            name: see `release`.
            size: number of entries of the sum.
            bound: see `release`.
            mu: see `release`.
            round: see `release`.
            group: see `release`.
            sampling: see `release`.
            users: see `release`.
            masked: whether the sum lies on a grid even without noise.
        """
        relation = self.ledger.budget.neighbouring
        # What is assumed about unclipped parts is assumed of the computed sums.
        summation = 0.0 if bound.kind == ASSUMED else bound.radius * excess(users)

        def moved(rounding: float) -> float:
            return sensitivity_of(
                bound.kind, bound.radius, relation, sampling=sampling, rounding=rounding
            )

        def made(sensitivity: float, std: float, grid: float) -> GaussianRelease:
            return GaussianRelease(
                name,
                round,
                size,
                bound.radius,
                sensitivity,
                std,
                group,
                sampling,
                bound.kind,
                grid,
                summation,
                self.source.distribution,
                self.source.parts,
            )

        if math.isinf(mu):
            grid = 2.0 ** (math.floor(math.log2(bound.radius)) + MASKED_GRID) if masked else 0.0
            return made(moved(summation + grid * math.sqrt(size)), 0.0, grid)
        mu *= 1 - self.source.margin
        # Parts of a sum lie on a finer grid, so that each is as fine as one whole noise.
        finer = math.ceil(math.log2(self.source.parts) / 2)
        grid = 2.0 ** (math.floor(math.log2(moved(0.0) / mu)) + GRID - finer)
        rounding = summation + grid * math.sqrt(size)
        sensitivity = moved(rounding)
        if group is not None:
            self._check_moves(bound.radius + rounding, sensitivity)
        return made(sensitivity, math.ceil(sensitivity / mu / grid) * grid, grid)

    def _check_moves(self, radius: float, sensitivity: float) -> None:
        """Check what parallel composition needs where replacing a user may change its group.

        One group then loses a part of norm at most `radius`, and another group gains one; see
        `privfed/privacy/accounting.py`.

        Raises:
            PrivfedError: if the two together cost more than one group pays.
        """
        if self.ledger.budget.neighbouring == REPLACE_ONE and radius * math.sqrt(2) > sensitivity:
            raise PrivfedError(
                f"a user's part of norm {radius:g} in one of several groups needs a sensitivity of "
                f"at least {radius * math.sqrt(2):g}, not {sensitivity:g}; nothing was released"
            )

    def select(
        self,
        name: str,
        total: Array,
        *,
        bound: Bound,
        epsilon: float,
        round: int,
        users: int = 0,
    ) -> int:
        """Return the index of one candidate, chosen by the exponential mechanism.

        The probability of a candidate is proportional to exp(rate * total score). One user gives
        each candidate a score from 0 to `bound.clip`. Replacing a user changes the probability of
        a candidate by at most a factor e^(2 rate clip). Adding a user can only raise scores: the
        numerator and the normalising sum both grow by a factor between 1 and e^(rate clip), and
        so does their quotient at most. Hence epsilon = rate * sensitivity, with the sensitivities
        of sums. Total scores are whole numbers, so that their differences are exact. Each product
        with the rate is rounded once, by at most 2^-53 rate users clip, and two products count in
        each of two data sets: the sensitivity includes 4 such errors.

        Args:
            name: name of the release.
            total: total score per candidate, (C,).
            bound: range of one user's scores.
            epsilon: cost of the selection; infinite takes the best candidate.
            round: round of the phase.
            users: largest number of users behind the scores.
        """
        sensitivity = bound.sensitivity(self.ledger.budget.neighbouring) * (1 + 4 * users * UNIT)
        rate = epsilon / sensitivity
        self.ledger.charge(
            SelectionRelease(
                name, round, total.size, bound.radius, sensitivity, rate, bound=bound.kind
            )
        )
        if math.isinf(rate):
            return int(np.argmax(total))
        return self.source.choice(rate * (total - np.max(total)), name, round)
