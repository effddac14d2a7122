"""A private mean of the users' heads on public features, server side: one release.

    G_u   user u's ridge head (classes, k) in a public basis, scaled to length zeta
    M     mean of the G_u, released with noise

    M <- (sum_u G_u + noise) / n, minus its mean over classes

Privacy: every G_u has norm at most zeta, so one user moves the sum by at most 2 zeta (replace-one).
The one release has the whole budget. All heads are as long as they may be, so zeta is a unit and
no setting.
"""

from __future__ import annotations

import numpy as np

from privfed.algorithm.phases import Phase, Sum
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.models.public_features import PublicFeatures

ZETA = 1.0


class HeadMean(PrivateStrategy):
    """Releases the mean head, toward which personal heads are drawn."""

    publishes = ("M",)

    def __init__(self, federation: Federation, rounds: int, model: PublicFeatures) -> None:
        super().__init__(federation)
        if rounds != 1:
            raise ConfigError.of("rounds", rounds, "this algorithm makes one release")
        self.size = (model.classes, model.k)

    def start(self) -> list[Array]:
        """Return zeros (classes, k): nothing is known about any class yet."""
        return [np.zeros(self.size)]

    def phases(self) -> list[Phase]:
        """Return the one release."""
        return [Phase("heads", Sum(self.size, ZETA), self.update)]

    def update(self, t: int, M: Array) -> list[Array]:
        """Return M minus its mean over classes."""
        return [M - M.mean(axis=0)]
