"""Private clip norms: users report the norm of their contribution, and only a noised sum is used.

There are two statistics. Both are sums that pass the noise gate and are charged like any other sum;
the clip norm is post-processing. Before a task starts, nothing is known about the norms: users fill
a histogram on public bins that span 19 orders of magnitude. During the rounds, one number is enough
to follow a slowly changing scale: how many users lie below the clip norm of the round.

A user whose contribution is 0 answers nothing: emptying a user's data (zero-out) must take its
answer away, and not turn it into another one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from privfed.foundation.linalg import Array
from privfed.privacy.bounds import NormBound

AUTO = "auto"


class Measure(Protocol):
    """Question about the norms of users' contributions.

    Attributes:
        size: number of numbers in a user's answer.
        bound: bound on the norm of a user's answer.
    """

    size: int
    bound: NormBound

    def count(self, norms: Array, clip: float) -> Array:
        """Return the sum of the users' answers, (size,).

        Args:
            norms: norm of each user's contribution, (B,).
            clip: clip norm of the round.
        """
        ...

    def clip(self, total: Array, n: float, q: float, last: float) -> float:
        """Return the next clip norm, a positive number.

        Args:
            total: noised sum of the answers, (size,).
            n: number of users; the expected one where groups take turns.
            q: fraction of users whose norm should lie below the clip norm.
            last: clip norm of the round.
        """
        ...


class Histogram:
    """Each user adds one count to a bin.

    Bin j is for norms in [2^(bottom + j), 2^(bottom + j + 1)). The first and the last bin also
    count norms outside the range, but for 0.
    """

    bound = NormBound(1.0)

    def __init__(self, size: int = 64, bottom: int = -32) -> None:
        self.size, self.bottom = size, bottom

    def count(self, norms: Array, clip: float) -> Array:
        """Return counts on the public bins; see :class:`Measure`."""
        exponent = np.frexp(norms[norms > 0])[1] - 1 - self.bottom
        return np.bincount(np.clip(exponent, 0, self.size - 1), minlength=self.size).astype(
            np.float64
        )

    def clip(self, total: Array, n: float, q: float, last: float) -> float:
        """Return the q-quantile of the norms; see :class:`Measure`.

        Ranks are counted from both ends, which halves the worst accumulated noise, and are made
        monotone. Inside the bin where they cross q n, the norm is interpolated.
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
    """Each user reports +1/2 if its norm is at most the clip norm, -1/2 if above, 0 if it is 0."""

    size, bound = 1, NormBound(0.5)
    limit = 2.0

    def count(self, norms: Array, clip: float) -> Array:
        """Return half the difference between the numbers of users below and above the clip norm."""
        return np.array([np.sum(np.where(norms <= clip, 0.5, -0.5) * (norms > 0))])

    def clip(self, total: Array, n: float, q: float, last: float) -> float:
        """Return a clip norm closer to the quantile; see :class:`Measure`.

        It is a step on a logarithmic scale, by at most the factor `limit`.
        """
        fraction = float(np.clip(total[0] / n + 0.5, 0.0, 1.0))
        return float(last * self.limit ** ((q - fraction) / (q if fraction < q else 1.0 - q)))


NORMS = Histogram()
MEASURES: dict[str, Measure] = {"histogram": NORMS, "narrow": Histogram(20, -8), "below": Below()}
"""`narrow` is for contributions already brought to a common scale: fewer bins, less noise."""
