"""FedRep for few users, server side: steps by normalised posterior directions.

    U     shared embedding (d, k)                 heads   root of the covariance of heads (k, k)
    x     spread: predicted sum of tan^2 of the principal angles between U and the true embedding
    M     released mean of delta v^T / (|delta| |v|), each of norm 1 (see the client)

    for t = 1..T:  U <- polar( U + lambda_t (I - U U^T) M heads^-1 )

lambda_t and the next x come from a Kalman filter (strategies/spread_filter.py). A rehearsal without
data (strategies/rehearsal.py) splits the budget, chooses T, and predicts the error. Where it
predicts that nothing can be learnt, nothing is released, and users keep their own models.

Privacy: each user's part has norm 1 or 0, so no clip norm has to be known. One user moves the sum
by at most 2 (replace-one).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from privfed.algorithm.phases import LAST, Phase, Sum, Update, check_gaussian
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.linalg import Array, polar
from privfed.privacy.bounds import NormBound
from strategies.dress_rehearsal import prediction
from strategies.initialisers.automatic import cascade_of
from strategies.rehearsal import Forecast, forecast, rehearsal_of
from strategies.spread_filter import SpreadFilter

WORTHWHILE = 0.9
"""A run is worthwhile if its predicted error is below this fraction of that of users alone."""
CLEAR = 0.5
"""Fraction up to which the arithmetic of a plan is believed. Above, planned runs are played."""


class PosteriorFedRep(PrivateStrategy):
    """Noisy steps along posterior directions.

    Args:
        federation: frame of the run.
        rounds: number of rounds; None leaves it to the rehearsal.
        m: examples per user that the rehearsal assumes.
        noise: assumed label noise, in units of heads.
        force: whether to run even if nothing can be learnt.
    """

    publishes = ("U", "heads", "spread")
    starts_from = ("U",)

    def __init__(
        self, federation: Federation, rounds: int | None, m: int, noise: float, force: bool
    ) -> None:
        super().__init__(federation)
        self.noise = noise
        check_gaussian(federation.privacy, federation.gate.ledger.budget.mu)
        d, k, budget = federation.d, federation.k, federation.gate.ledger.budget
        share = federation.privacy.init_share
        facts = (federation.n, d, k, m, noise, budget.mu, budget.neighbouring)
        self.facts = (*facts, share, rounds)
        self.expected = forecast(*self.facts)
        clear = self.expected.error < CLEAR * self.expected.alone
        self.worthwhile = clear or self.predicted.error < WORTHWHILE * self.expected.alone
        self.learns = self.worthwhile or force
        cascade = self.expected.cascade
        scene = rehearsal_of(d, k, m, noise)
        self.filter = SpreadFilter.start(scene, cascade.spread, cascade.variance)

    @cached_property
    def predicted(self) -> Forecast:
        """The plan with the error of runs that were played with simulated users."""
        return prediction(*self.facts)

    def start(self) -> list[Array]:
        """Return the initialiser's start, with what is known before any release."""
        first = super().start()
        return [*first, *self._beliefs(np.eye(self.federation.k))] if self.learns and first else []

    def phases(self) -> list[Phase]:
        """Return the initialiser's phases, then T rounds; clients send M_i^T (k, d)."""
        if not self.learns:
            return []
        if init := cascade_of(self.initialiser):
            init.expected = self.expected.cascade
        M = Sum((self.federation.k, self.federation.d), NormBound(1.0))
        own = Phase("direction", M, self.step, self.expected.rounds)
        *first, last = self.after_initialiser(own, share=self.expected.share)
        return [
            replace(phase, update=self._completed(phase.update)) if phase.model == LAST else phase
            for phase in first
        ] + [last]

    def _completed(self, update: Update) -> Update:
        """Return an initialiser's last update, followed by what is known about heads and spread."""

        def completed(t: int, *released: Array) -> list[Array]:
            start, init = update(t, *released), cascade_of(self.federation.init)
            heads = init.heads(self.federation.n) if init else np.eye(self.federation.k)
            return [*start, *self._beliefs(heads)]

        return completed

    def _beliefs(self, heads: Array) -> list[Array]:
        return [heads, np.array([self.filter.x])]

    def step(self, t: int, M: Array) -> list[Array]:
        """Return U after a step along the released mean; the argument M is M^T (k, d)."""
        U, heads, _ = self.shared
        d, k = U.shape
        tangent = M.T - U @ (U.T @ M.T)
        n = self.federation.n
        variance = k * (d - k) * self.noise_std("direction") ** 2 + 1.0 / n
        length = self.filter.length(tangent, variance)
        U = polar(U + length * tangent @ np.linalg.inv(heads))
        return [U, *self._beliefs(heads)]

    def forecast(self) -> list[str]:
        """Return the prediction in words."""
        told, k = self.predicted, self.federation.k
        words = (
            f"prediction, from public settings alone: error {told.error:.3g}, users alone "
            f"{told.alone:.3g}, in units in which heads have variance 1 in each of {k} dimensions "
            f"and label noise is {self.noise:g}"
        )
        return [words, *self.notes()]

    def notes(self) -> list[str]:
        """Say if nothing can be learnt."""
        if self.worthwhile:
            return []
        told = self.predicted
        nothing = (
            f"nothing can be learnt from so few users at this budget: predicted error "
            f"{told.error:.3g}, users alone {told.alone:.3g}"
        )
        if self.learns:
            return [f"{nothing}; force=true runs all the same"]
        kept = "nothing is released, and users keep their own models (force=true runs)"
        return [f"{nothing}; {kept}"]

    def memory(self) -> dict[str, Array]:
        """Return the state of the filter."""
        return self.filter.memory()

    def recall(self, memory: dict[str, Array]) -> None:
        """Restore the state of the filter."""
        self.filter.recall(memory)
