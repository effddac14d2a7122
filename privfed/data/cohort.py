"""The users behind one node."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from privfed.data.error_bins import Scale
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator

BLOCK = 1024
"""Users are numbered in public blocks of this size; randomness that concerns users is keyed by block."""

BYTES = 1 << 21
"""Of examples that are worked on at a time."""

Ids = NDArray[np.int64]


class Truth(Protocol):
    """What a simulation knows about a cohort's users, and real data never tell."""

    scale: ClassVar[Scale]
    """How errors are counted for the picture of who gains what."""

    @property
    def U_star(self) -> Array:
        """The representation (d, k) that all true predictors share."""
        ...

    def errors(self, W: Array) -> Array:
        """The error of each user's predictor: W (B, d) -> (B,)."""
        ...

    def __getitem__(self, users: slice | Ids) -> Truth:
        """The same for some of the users."""
        ...


@dataclass(frozen=True)
class Cohort:
    """Users with public numbers ids (n,) and m examples each: X (n, m, d), y (n, m).

    truth is known where data are simulated, and None otherwise: no error can then be told without spending privacy.
    """

    ids: Ids
    X: Array
    y: Array
    truth: Truth | None = None

    @classmethod
    def empty(cls, m: int, d: int) -> Cohort:
        """Nobody, with m examples of d features each."""
        return cls(np.arange(0), np.empty((0, m, d)), np.empty((0, m)))

    def __len__(self) -> int:
        return len(self.X)

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, m, d)."""
        return self.X.shape

    def __getitem__(self, users: slice | Ids) -> Cohort:
        """Some of the users, with everything as it is stored."""
        truth = None if self.truth is None else self.truth[users]
        return Cohort(self.ids[users], self.X[users], self.y[users], truth)

    def without_broken_users(self, target: float = 0.0) -> Cohort:
        """The same with zeros for users who have a number that is not finite: they keep their place and contribute nothing.

        target: what stands in the place of their targets; where targets are classes, one that is none.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            # A sum of finite numbers may overflow, so only the users whose sum is suspicious are looked at closely.
            broken = ~np.isfinite(np.sum(self.X, axis=(1, 2)) + np.sum(self.y, axis=1))
        broken[broken] = ~(
            np.isfinite(self.X[broken]).all(axis=(1, 2)) & np.isfinite(self.y[broken]).all(axis=1)
        )
        if not broken.any():
            return self
        X, y = self.X.copy(), self.y.copy()
        X[broken], y[broken] = 0.0, target
        return replace(self, X=X, y=y)

    def exact(self) -> Cohort:
        """The same as contiguous numbers in double precision; nothing is copied where they are so already."""
        X, y = (np.ascontiguousarray(array, dtype=np.float64) for array in (self.X, self.y))
        return replace(self, X=X, y=y)

    def blocks(
        self,
        examples: slice = slice(None),
        users: Ids | None = None,
        bytes_each: int = BYTES,
        exact: bool = True,
    ) -> Iterator[Cohort]:
        """Users (all, or those at the given places) with some of their examples, so many that they fit a processor's cache.

        exact: in double precision, otherwise as they are stored.
        """
        size = users_within(bytes_each, self.X[0].nbytes) if len(self) else 1
        for start in range(0, len(self) if users is None else len(users), size):
            block = self[
                slice(start, start + size) if users is None else users[start : start + size]
            ]
            block = replace(block, X=block.X[:, examples], y=block.y[:, examples])
            yield block.exact() if exact else block


def users_within(total: int, each: int) -> int:
    """How many users of so many bytes each are worked on at a time."""
    return int(np.clip(total // max(1, each), 64, max(4096, total >> 11)))


def spread_evenly(n: int, nodes: int) -> list[range]:
    """The numbers of n users on nodes as evenly as possible."""
    edges = [n * i // nodes for i in range(nodes + 1)]
    return [range(first, last) for first, last in pairwise(edges)]


def groups_of(ids: Ids, n: int, groups: int, seed: int) -> NDArray[np.int64]:
    """The group 0..groups-1 of each user: a random split of n users into disjoint groups whose sizes differ by at most one.

    Users are shuffled within their public blocks and dealt out in turn, so a node finds its users' groups by itself.
    """
    place = np.empty(len(ids), dtype=np.int64)
    blocks = ids // BLOCK
    for block in np.unique(blocks):
        mine = blocks == block
        start = int(block) * BLOCK
        order = generator(seed, "groups", int(block)).permutation(min(BLOCK, n - start))
        place[mine] = start + order[ids[mine] - start]
    return place % groups


def coins(ids: Ids, config: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Whether each user (n,) takes part in a step, with the announced probability and independently of all others.

    In simulations coins are keyed by (seed, step, block of users) and the same everywhere; where noise is secret, so are coins:
    who knew them would know who took part, and the guarantee counts on nobody knowing.
    """
    q = float(config["sampling"])
    if config["secret"]:
        return np.frombuffer(os.urandom(8 * len(ids)), dtype=np.uint64) < np.uint64(q * 2.0**64)
    return draws(int(config["seed"]), ids, 1, "coins", int(config["step"]))[:, 0] < q


def draws(seed: int, ids: Ids, m: int, *purpose: str | int) -> Array:
    """Uniform numbers (B, m), the same for a user however users are spread over nodes."""
    numbers = np.empty((len(ids), m))
    for block in np.unique(ids // BLOCK):
        mine = ids // BLOCK == block
        numbers[mine] = _block_of_draws(seed, m, int(block), purpose)[ids[mine] % BLOCK]
    return numbers


@lru_cache(maxsize=8)
def _block_of_draws(seed: int, m: int, block: int, purpose: tuple[str | int, ...]) -> Array:
    return generator(seed, *purpose, block).random((BLOCK, m))


def is_class(y: Array, classes: int) -> NDArray[np.bool_]:
    """Whether each target is one of the classes 0..classes-1."""
    return (y >= 0) & (y < classes) & (y == np.floor(y))
