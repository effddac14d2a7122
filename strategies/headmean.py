"""A private mean of the users' heads on public features, server side: one release.

    G_u   user u's ridge head (classes, k) in a public basis, scaled to length zeta     M   their mean, released with noise

    M <- (sum_u G_u + noise) / n, less its mean over classes

Noise: every G_u has norm at most zeta, so one user moves the sum by at most 2 zeta (replace-one). One release has the whole
budget. As all heads are as long as they may be, zeta is a unit and no setting.
"""

from __future__ import annotations

import numpy as np

from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.models.public_features import PublicFeatures


class HeadMean(PrivateStrategy):
    """One release: the mean head, what personal heads are drawn to."""

    task = "heads"
    uses_init = False
    names = ("M",)

    def __init__(self, federation: Federation, rounds: int, model: PublicFeatures) -> None:
        if rounds != 1:
            raise ConfigError.of("rounds", rounds, "this algorithm makes one release")
        self.size = (model.classes, model.k)
        super().__init__(federation, rounds=1, clip=1.0)

    def initial(self) -> list[Array]:
        """Nothing is known about any class."""
        return [np.zeros(self.size)]

    def step(self, t: int, mean: Array) -> None:
        """M, less what all classes have in common."""
        self.shared = [mean - mean.mean(axis=0)]
