"""Base of strategies that learn a linear representation U, with a judgement at the end.

    U       shared embedding (d, k)
    spread  how far U is from what users' predictors share: chosen by users' own examples

With `safety` a closing phase asks all users what their examples say about U, and releases the mean
with SHARE of the budget. It chooses the spread, and from then on users mix what U gives
them with their own fit (privfed/models/personal_predictors.py). An embedding that helps nobody is
then not used by anybody.

Privacy: a user's part has norm at most 1, so that replacing a user moves the sum by at most 2. All
users are asked and charged: groups of another phase (Priv-AltMin) are disjoint among themselves,
but not from those who judge.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privfed.algorithm.phases import LAST, NEVER, Phase, Sum, Update
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.linalg import Array
from privfed.models.personal_predictors import (
    FRACTIONS,
    NOT_JUDGED,
    SAYS_NOTHING,
    chosen_spread,
)
from privfed.privacy.bounds import NormBound

SHARE = 0.02
"""Share of mu^2 for the judgement."""


class LinearStrategy(PrivateStrategy):
    """Publishes U, and with `safety` the spread that users' examples chose."""

    starts_from = ("U",)

    def __init__(self, federation: Federation, safety: bool) -> None:
        super().__init__(federation)
        self.safety = safety
        if safety:
            self.publishes = ("U", "spread")

    def start(self) -> list[Array]:
        """Return the initialiser's start, which nobody has judged."""
        first = super().start()
        return [*first, np.array([NOT_JUDGED])] if self.safety and first else first

    def judged_at_last(self, *phases: Phase) -> list[Phase]:
        """Return the initialiser's phases and the given ones, followed by the judgement."""
        learning = self.after_initialiser(*phases)
        if not self.safety:
            return learning
        whole = sum(phase.share for phase in learning)
        judgement = Phase(
            "evidence",
            Sum((len(FRACTIONS),), NormBound(1.0)),
            self.judge,
            share=whole * SHARE / (1.0 - SHARE),
            model=LAST,
            closing=True,
        )
        return [
            phase if phase.model == NEVER else replace(phase, update=self._unjudged(phase.update))
            for phase in learning
        ] + [judgement]

    def _unjudged(self, update: Update) -> Update:
        def updated(t: int, *released: Array) -> list[Array]:
            return [*update(t, *released), np.array([NOT_JUDGED])]

        return updated

    def judge(self, t: int, evidence: Array) -> list[Array]:
        """Return U with the spread that the released mean of users' evidence speaks for."""
        U = self.shared[0]
        return [U, np.array([chosen_spread(evidence, self.noise_std("evidence"), *U.shape)])]

    def notes(self) -> list[str]:
        """Say if users do better alone."""
        if self.safety and len(self.shared) == 2 and self.shared[1][0] >= SAYS_NOTHING:
            return ["users' examples do not speak for the embedding: users keep their own models"]
        return []
