"""The users behind one node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from privfed.linalg import Array

BLOCK = 1024
"""Users are numbered in public blocks of this size; randomness that concerns users is keyed by block."""


@dataclass(frozen=True)
class Cohort:
    """Users first, first + 1, ... with m examples each: X (n, m, d), y (n, m).

    W_star (n, d) holds the true predictors where data are simulated, and is None otherwise: no error can then be told
    without spending privacy.
    """

    first: int
    X: Array
    y: Array
    W_star: Array | None = None

    @classmethod
    def empty(cls, m: int, d: int) -> Cohort:
        """Nobody, with m examples of d features each."""
        return cls(0, np.empty((0, m, d)), np.empty((0, m)))

    def __len__(self) -> int:
        return len(self.X)

    def without_broken_users(self) -> Cohort:
        """The same with zeros for users who have a number that is not finite: they keep their place and contribute nothing."""
        broken = ~(np.isfinite(self.X).all(axis=(1, 2)) & np.isfinite(self.y).all(axis=1))
        if not broken.any():
            return self
        whole = (~broken).astype(float)
        X, y = (np.nan_to_num(array, posinf=0.0, neginf=0.0) for array in (self.X, self.y))
        return Cohort(self.first, X * whole[:, None, None], y * whole[:, None], self.W_star)

    def blocks(self, examples: slice = slice(None), bytes_each: int = 1 << 21) -> Iterator[Cohort]:
        """Consecutive users, with some of their examples, whose features fit a processor's cache together."""
        size = int(np.clip(bytes_each // max(1, self.X[0].nbytes), 64, 4096)) if len(self) else 1
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            W = None if self.W_star is None else self.W_star[part]
            yield Cohort(self.first + start, np.ascontiguousarray(self.X[part, examples]), self.y[part, examples], W)


def spread(n: int, nodes: int) -> list[tuple[int, int]]:
    """n users on nodes as evenly as possible: [first, last) a node."""
    edges = [n * i // nodes for i in range(nodes + 1)]
    return list(pairwise(edges))
