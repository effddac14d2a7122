"""Every node's part of the noise, in components that can be taken away again.

Let N be the number of registered users, C of whom may be behind nodes that collude with the server,
and let a step tolerate the loss of L users. A total of variance s^2 must come from honest survivors
in every case. With l lost users at least N - C - l users are honest and present. So a node of n_i
users needs the variance n_i s^2 / (N - C - l), and does not know l when it sends.

It therefore sends the noise of the largest loss L, as a sum of components. Losses come in levels
0 = l_0 < l_1 < ... < l_M = L. The component m has the variance

    n_i (V_m - V_{m-1}),   V_m = s^2 / (N - C - l_m),   V_{-1} = 0,

so that components 0 to m add up to n_i V_m. When l is known, components above the level of l are
taken away: nodes reveal their seeds (after Jiang et al., Dordis, 2024). Seeds are a chain: that of
component m gives those of all later components, and none of the earlier ones.

A component is round(s_m Z), exactly, s_m a whole number rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from privfed.privacy.exact_sampling import Whole
from privfed.privacy.quantile_sampling import MOST, rounded_normals
from privfed.secure.keys import quick, stream

LEVELS = 5
"""Number of levels of losses, besides none; noise exceeds its target by up to 1% of std then."""
FEW_LEVELS = 1
"""The same for long vectors, in which every component takes time."""
LONG = 1 << 17
"""Vectors of more numbers are long."""
AT_ONCE = 1 << 20
"""Numbers that are drawn at the same time."""
SMALLEST = 1 << 10
"""Smallest standard deviation of a component that is not zero, in steps of the grid."""


@dataclass(frozen=True)
class Levels:
    """Losses of users that a step tells apart.

    Attributes:
        users: number of registered users.
        colluding: number of users behind nodes that may collude.
        lost: largest tolerated number of lost users.
        count: number of levels besides 0.
    """

    users: int
    colluding: int
    lost: int
    count: int

    @cached_property
    def losses(self) -> list[int]:
        """Number of lost users up to which each level is enough."""
        if not self.lost:
            return [0]
        return sorted({math.ceil(self.lost * m / self.count) for m in range(self.count + 1)})

    def level(self, lost: int) -> int:
        """Return the level of a number of lost users.

        Raises:
            ValueError: it is not tolerated.
        """
        if lost > self.losses[-1]:
            raise ValueError(f"{lost} users are lost, {self.losses[-1]} are tolerated")
        return next(m for m, most in enumerate(self.losses) if lost <= most)

    def components(self, s: int, mine: int) -> list[int]:
        """Return the standard deviation of each component of a node, in steps of the grid.

        Args:
            s: standard deviation of the whole noise; 0 means none.
            mine: number of users of the node.

        Raises:
            ValueError: one is out of range.
        """
        if not s:
            return [0] * len(self.losses)
        honest = self.users - self.colluding
        # V_m - V_{m-1} = s^2 (l_m - l_{m-1}) / ((N - C - l_m) (N - C - l_{m-1}))
        shares = [mine / honest]
        for before, now in zip(self.losses, self.losses[1:], strict=False):
            shares.append(mine * (now - before) / ((honest - now) * (honest - before)))
        found = [math.ceil(s * math.sqrt(share) * (1 + 1e-12)) for share in shares]
        if not all(SMALLEST <= each <= MOST for each in found):
            raise ValueError(f"components of {min(found)} to {max(found)} steps of the grid")
        return found

    def kept_std(self, s: int, sizes: list[int], lost: int) -> float:
        """Return the standard deviation of the noise that remains, in steps of the grid.

        Args:
            s: standard deviation that honest survivors have to reach.
            sizes: number of users of each survivor.
            lost: number of lost users.
        """
        kept = self.level(lost) + 1
        return math.sqrt(sum(each**2 for mine in sizes for each in self.components(s, mine)[:kept]))


def chain(first: bytes, count: int) -> list[bytes]:
    """Return the seeds of consecutive components from the seed of the first of them."""
    seeds = [first]
    while len(seeds) < count:
        seeds.append(quick(seeds[-1], "next component"))
    return seeds[:count]


def components_sum(
    seeds: Sequence[bytes], deviations: Sequence[int], place: int, size: int
) -> Whole:
    """Return the sum of components of the noise of one sum, (size,).

    Args:
        seeds: seed of each component.
        deviations: standard deviation of each in steps of the grid; 0 means none.
        place: place of the sum among those of the step.
        size: number of entries.
    """
    total = np.zeros(size, dtype=np.int64)
    drawn = [(seed, s) for seed, s in zip(seeds, deviations, strict=True) if s]
    at_once = max(1, AT_ONCE // size)
    for start in range(0, len(drawn), at_once):
        total += _drawn(drawn[start : start + at_once], place, size).sum(axis=0)
    return total


def _drawn(drawn: Sequence[tuple[bytes, int]], place: int, size: int) -> Whole:
    """Return components, (len(drawn), size)."""
    words = np.concatenate([stream(quick(seed, "noise", place), size) for seed, _ in drawn])
    s = np.repeat(np.array([s for _, s in drawn], dtype=np.int64), size)
    tied: dict[int, int] = {}

    def more(i: int) -> int:
        tied[i] = tied.get(i, 0) + 1
        seed = drawn[i // size][0]
        return int(stream(quick(seed, "further bits", place, i % size), tied[i])[-1])

    return rounded_normals(words, s, more).reshape(len(drawn), size)
