"""A clip norm from the data, privately: users say where their contribution's norm lies, and only the noised sum is looked at.

Two statistics, both sums like any other, which pass the noise gate and are charged; the clip norm is post-processing.
Before a task starts nothing is known: a histogram on public bins that span 19 orders of magnitude. While rounds go on, one
number is enough to follow a slowly changing scale: how many users lie below the clip norm of the round.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from privfed.foundation.linalg import Array
from privfed.privacy.bounds import NormBound

AUTO = "auto"


class Measure(Protocol):
    """One way to ask where the norms lie. A user's answer has `size` numbers and norm at most `bound`."""

    size: int
    bound: NormBound

    def count(self, norms: Array, clip: float) -> Array:
        """The sum of the users' answers: norms (B,) -> (size,)."""
        ...

    def clip(self, total: Array, n: int, q: float, last: float) -> float:
        """The next clip norm, a positive number, from the noised sum over n users; q: fraction that should lie below it."""
        ...


class Histogram:
    """A user adds one count to a bin: bin j for norms in [2^(bottom + j), 2^(bottom + j + 1)), the ends for what is outside."""

    bound = NormBound(1.0)

    def __init__(self, size: int = 64, bottom: int = -32) -> None:
        self.size, self.bottom = size, bottom

    def count(self, norms: Array, clip: float) -> Array:
        """Counts on the public bins."""
        exponent = np.where(norms > 0, np.frexp(norms)[1] - 1 - self.bottom, 0)
        return np.bincount(np.clip(exponent, 0, self.size - 1), minlength=self.size).astype(
            np.float64
        )

    def clip(self, total: Array, n: int, q: float, last: float) -> float:
        """The quantile.

        Ranks are counted from both ends, which halves the worst accumulated noise, and made monotone; inside the bin where
        they cross q n the norm is interpolated.
        """
        below = np.concatenate([[0.0], np.cumsum(total)])
        above = np.concatenate([np.cumsum(total[::-1])[::-1], [0.0]])
        rank = (below + (n - above)) / 2.0
        rank = (np.maximum.accumulate(rank) + np.minimum.accumulate(rank[::-1])[::-1]) / 2.0
        j = int(np.argmax(rank[1:] >= q * n)) if np.any(rank[1:] >= q * n) else self.size - 1
        width = rank[j + 1] - rank[j]
        inside = float(np.clip((q * n - rank[j]) / width, 0.0, 1.0)) if width > 0 else 1.0
        return float(2.0 ** (self.bottom + j + inside))


class Below:
    """A user says +1/2 when its norm is at most the clip norm and -1/2 otherwise."""

    size, bound = 1, NormBound(0.5)
    limit = 2.0

    def count(self, norms: Array, clip: float) -> Array:
        """Half the difference between users below and above."""
        return np.array([np.sum(np.where(norms <= clip, 0.5, -0.5))])

    def clip(self, total: Array, n: int, q: float, last: float) -> float:
        """A step toward the quantile on a logarithmic scale, by at most the factor `limit`."""
        fraction = float(np.clip(total[0] / n + 0.5, 0.0, 1.0))
        return float(last * self.limit ** ((q - fraction) / (q if fraction < q else 1.0 - q)))


NORMS = Histogram()
MEASURES: dict[str, Measure] = {"histogram": NORMS, "narrow": Histogram(20, -8), "below": Below()}
"""`narrow` is for contributions whose data were brought to a common scale before: fewer bins, less noise."""
