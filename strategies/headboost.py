"""Private boosting of one mean head on public features, server side: T small steps.

    G_u     user u's head on what M leaves to explain (classes, k), scaled to length 1
    M       mean head, the sum of T steps along the noised means of the G_u
    sigma   standard deviation of the noise per entry of a released mean
    eta     step size

    each round:  M <- M + eta (sum_u G_u + noise) / n, minus its mean over classes

Privacy: every G_u has length at most 1, so one user moves a sum by at most 2 (replace-one). Rounds
share the budget equally, and nothing else is released.

The step size follows from the noise, and the noise from n and the budget alone. With
sigma = 2 sqrt(T) / nu (replace-one: nu = n mu), M ends with noise of 2 eta T / nu per entry, so T
rounds have as much noise as one round with a step of eta T: rounds cost nothing. Pictures have
length about 1 in public coordinates, so a score has noise of the same size. It may be one unit of
log-odds where the mean of the heads stands out of the noise, and has to be less where it does not:

    eta T = shrinkage * nu / 2,    shrinkage = snr^2 / (2 + snr^2)

snr = nu / (2 sqrt(classes k)) compares the length of the longest possible mean,
1, with that of the noise of one release.
"""

from __future__ import annotations

import math

import numpy as np

from privfed.algorithm.phases import Phase, Sum
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.constraints import Rounds
from privfed.foundation.linalg import Array
from privfed.models.public_features import PublicFeatures

LENGTH = 1.0
"""Length of every user's message: a unit and no setting."""
LONGEST = 40.0
"""Longest step, in log-odds of a picture that points along the step; without noise it decides."""


class HeadBoost(PrivateStrategy):
    """Releases the mean head, step by step, on which personal heads build."""

    publishes = ("M",)

    def __init__(self, federation: Federation, rounds: Rounds, model: PublicFeatures) -> None:
        super().__init__(federation)
        self.rounds, self.size = rounds, (model.classes, model.k)

    def start(self) -> list[Array]:
        """Return zeros (classes, k): nothing is known about any class yet."""
        return [np.zeros(self.size)]

    def phases(self) -> list[Phase]:
        """Return T rounds."""
        return [Phase("residual_heads", Sum(self.size, LENGTH), self.update, self.rounds)]

    def update(self, t: int, G: Array) -> list[Array]:
        """Return M + eta G, minus its mean over classes."""
        M = self.shared[0] + self.step() * G
        return [M - M.mean(axis=0)]

    def step(self) -> float:
        """Return eta, from the noise of the last release."""
        sigma = self.noise_std("residual_heads")
        if sigma == 0:
            return LONGEST
        nu = 2 * math.sqrt(self.rounds) / sigma
        snr = nu / (2 * math.sqrt(math.prod(self.size)))
        return min(LONGEST, snr**2 / (2 + snr**2) * nu / 2 / self.rounds)
