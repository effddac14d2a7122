"""How far to go along a released mean: a Kalman filter for the way that is left, without data.

    Delta tangent vector from U to the true embedding, in units of heads; x = |Delta|^2, the spread
    M     released mean of unit vectors: s Delta / |Delta| + noise of known total variance
    s     signal at spread x, as rehearsed (strategies/rehearsal.py)
    rho^2 s^2 / variance                          gain    rho^2 / (1 + rho^2), at most 1/2

    Delta is estimated by sqrt(x) (gain / s) M, and what is left of it has
    y <- y ((1 - gain)^2 + gain^2 / rho^2) for y = x / (1 + x/k), the sum of sin^2

If x is right, the filter's innovations are not correlated. If the truth is r times as far as
predicted, the step was too short, and the next M' points along the last M:

    E<M', M> / (s' s) = kappa(r) = (r - gain (1 + 1/rho^2)) / sqrt((r - gain)^2 + gain^2 / rho^2)

A second scalar filter corrects log x by what <M', M> / (s' s) deviates from kappa(1). Several last
means take the place of M, with weights that fall from round to round; N is the sum of their
squares. The noise of the inner product, divided by N, has variance 1 / (rho^4 N k (d - k)). The
variance of log x is that of the rehearsal at first, and then grows by what noise does to x in every
round. Both filters use nothing but released means, and cost no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privfed.foundation.linalg import Array
from strategies.rehearsal import Filter, Rehearsal

LARGEST_CORRECTION = 0.5
"""Largest change of log x in a round: beyond it the slope of kappa is no guide."""
MEMORY = 4.0
"""Means are remembered for 1 / (MEMORY gain) rounds. A wrong x shows in correlations for 1 / gain
rounds, also after it was corrected; a quarter of that keeps the correction from going too far."""
DOUBT = 0.25
"""Variance of log x at the start, besides what the rehearsal shows: angles are not equal, and heads
and features are not those of the rehearsal. Theory ends here; a factor e^(1/2) is allowed for."""


def kappa(r: float, step: Filter) -> float:
    """Return the expected correlation of two successive means if the truth is r times as far."""
    left = (r - step.gain) ** 2 + step.gain**2 / step.rho2
    return (r - step.gain * (1.0 + 1.0 / step.rho2)) / math.sqrt(left)


@dataclass
class SpreadFilter:
    """Keeps x, corrects it by successive means, and says how far to go.

    Attributes:
        scene: rehearsed users, who give the signal s(x).
        x: spread.
        variance: variance of log x.
        past: weighted sum of the last means, each over its signal, (d, k); empty at first.
        depth: sum N of the squares of these weights.
        step: the last step's signal, rho^2 and gain.
    """

    scene: Rehearsal
    x: float
    variance: float
    past: Array
    depth: float
    step: Filter

    @classmethod
    def start(cls, scene: Rehearsal, x: float, variance: float) -> SpreadFilter:
        """Return the filter before the first round."""
        return cls(scene, x, variance + DOUBT, np.empty((0, 0)), 0.0, Filter(1.0, 1.0, 0.0))

    @property
    def size(self) -> int:
        """Number of dimensions of the tangent space."""
        return self.scene.k * (self.scene.d - self.scene.k)

    def length(self, M: Array, variance: float) -> float:
        """Take the mean of a round; return the factor of M in the estimate of Delta.

        Args:
            M: released mean in the tangent space, (d, k).
            variance: its total variance.
        """
        step = Filter.of(self.scene.signal(self.x), variance)
        if self.past.size:
            self._correct(M, step)
            step = Filter.of(self.scene.signal(self.x), variance)
        length = math.sqrt(self.x) * step.gain / step.signal
        kept = max(0.0, 1.0 - MEMORY * step.gain)
        older = math.sqrt(kept) * self.past if self.past.size else 0.0
        self.past, self.depth = older + M / step.signal, kept * self.depth + 1.0
        self.step = step
        self.x = step.after(self.x, self.scene.k)
        # Noise along Delta changes log x at random, by 2 gain / (rho sqrt(k (d - k))).
        self.variance += 4.0 * step.gain**2 / (step.rho2 * self.size)
        return length

    def _correct(self, M: Array, step: Filter) -> None:
        """Correct log x by the correlation of M with the last means."""
        seen = float(np.sum(M * self.past)) / (step.signal * self.depth)
        near = 0.05
        slope = kappa(math.exp(near), self.step) - kappa(math.exp(-near), self.step)
        slope /= 4.0 * near  # with respect to log x = 2 log r
        noise = 1.0 / (step.rho2 * self.step.rho2 * self.depth * self.size)
        gain = self.variance * slope / (slope**2 * self.variance + noise)
        change = gain * (seen - kappa(1.0, self.step))
        self.x *= math.exp(max(-LARGEST_CORRECTION, min(LARGEST_CORRECTION, change)))
        self.x = min(max(self.x, 1e-8), 2.0 * self.scene.d)
        self.variance *= 1.0 - gain * slope

    def memory(self) -> dict[str, Array]:
        """Return the state as arrays by name."""
        step = (self.step.signal, self.step.rho2, self.step.gain)
        numbers = np.array([self.x, self.variance, self.depth, *step])
        return {"spread filter": numbers, "past means": self.past}

    def recall(self, memory: dict[str, Array]) -> None:
        """Restore the state."""
        numbers = (float(number) for number in memory["spread filter"])
        self.x, self.variance, self.depth, *step = numbers
        self.step, self.past = Filter(*step), memory["past means"]
