"""Users with their examples: the contract of a cohort, cohorts in memory, and draws per user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from privfed.data.evaluation_bins import Scale
from privfed.data.user_identity import Identities
from privfed.foundation.linalg import Array
from privfed.kernels.user_draws import user_draws

BYTES = 1 << 21
"""Bytes of examples that are processed at a time: they fit into a processor's cache."""

Ids = NDArray[np.int64]


class UserBlock(Protocol):
    """Users of one cohort who are processed together."""

    @property
    def ids(self) -> Ids:
        """Public numbers (B,) of the users: their places in arrays and on nodes."""
        ...

    @property
    def identities(self) -> Identities:
        """Identities (B,) of the users, which all randomness about them follows from."""
        ...

    @property
    def truth(self) -> Any:
        """What a simulation knows about these users; None for real users."""
        ...

    @property
    def m(self) -> int:
        """Number of examples of each user."""
        ...

    @property
    def judging(self) -> Ids | None:
        """Number of rows (B,) that judge each user; None: every user counts once."""
        ...

    def __len__(self) -> int: ...


class UserCohort(Protocol):
    """Users of one node. All kinds of cohorts have this signature."""

    @property
    def ids(self) -> Ids:
        """Public numbers (n,) of the users: their places in arrays and on nodes."""
        ...

    @property
    def identities(self) -> Identities:
        """Identities (n,) of the users, which all randomness about them follows from."""
        ...

    @property
    def truth(self) -> Any:
        """What a simulation knows about the users; None for real users."""
        ...

    @property
    def m(self) -> int | None:
        """Number of examples of each user; None where users differ."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, users: slice | Ids) -> UserCohort:
        """Return the users at some places, with everything as it is stored."""
        ...

    def without_broken_users(self, target: float = 0.0) -> UserCohort:
        """Replace data that are not finite, so that they contribute nothing.

        Args:
            target: value that stands for the affected targets. Where targets are classes, it must
                not be a class.
        """
        ...

    def blocks(
        self,
        users: Ids | None = None,
        *,
        examples: slice = slice(None),
        bytes_each: int = BYTES,
        exact: bool = True,
    ) -> Iterator[UserBlock]:
        """Yield the users in portions.

        Args:
            users: places of the users to yield, in increasing order; None: all users.
            examples: which of each user's examples to include.
            bytes_each: approximate bytes of examples per portion.
            exact: whether to convert numbers to double precision instead of yielding them as they
                are stored.
        """
        ...


class Truth(Protocol):
    """What a simulation knows about the users of a cohort; real data never have it."""

    scale: ClassVar[Scale]
    """Bins in which errors are counted for the chart of users' gains."""

    @property
    def U_star(self) -> Array:
        """Representation (d, k) that all true predictors share."""
        ...

    def errors(self, W: Array) -> Array:
        """Return the error (B,) of each user's predictor W (B, d)."""
        ...

    def __getitem__(self, users: slice | Ids) -> Truth:
        """Return the same for some of the users."""
        ...


@dataclass(frozen=True)
class Cohort:
    """Users in memory with m examples each.

    Attributes:
        ids: public numbers (n,) of the users.
        X: examples (n, m, d).
        y: targets (n, m).
        truth: what a simulation knows about the users. None for real users, whose errors cannot be
            disclosed without spending privacy.
        named: identities (n,) of users who are registered by name; None for simulated users, whose
            number is their identity.
    """

    ids: Ids
    X: Array
    y: Array
    truth: Truth | None = None
    named: Identities | None = None

    judging: ClassVar[None] = None
    """Every user counts once."""

    @classmethod
    def empty(cls, m: int, d: int) -> Cohort:
        """Return a cohort of no users, with m examples of d features each."""
        return cls(np.arange(0), np.empty((0, m, d)), np.empty((0, m)))

    def __len__(self) -> int:
        return len(self.X)

    @property
    def identities(self) -> Identities:
        """See :class:`UserCohort`."""
        return self.ids.astype(np.uint64) if self.named is None else self.named

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, m, d)."""
        return self.X.shape

    @property
    def m(self) -> int:
        """Number of examples of each user."""
        return self.X.shape[1]

    def __getitem__(self, users: slice | Ids) -> Cohort:
        """Return some of the users, with everything as it is stored."""
        truth = None if self.truth is None else self.truth[users]
        named = None if self.named is None else self.named[users]
        return Cohort(self.ids[users], self.X[users], self.y[users], truth, named)

    def without_broken_users(self, target: float = 0.0) -> Cohort:
        """Replace the data of users who have a number that is not finite.

        Their examples become 0 and their targets `target`. They keep their place and contribute
        nothing.

        Args:
            target: value for their targets. Where targets are classes, it must not be a class.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            # A sum of finite numbers may overflow. Only users whose sum is not finite are examined
            # number by number.
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
        """Return the same users with contiguous numbers in double precision.

        Arrays that are so already are not copied.
        """
        X, y = (np.ascontiguousarray(array, dtype=np.float64) for array in (self.X, self.y))
        return replace(self, X=X, y=y)

    def blocks(
        self,
        users: Ids | None = None,
        *,
        examples: slice = slice(None),
        bytes_each: int = BYTES,
        exact: bool = True,
    ) -> Iterator[Cohort]:
        """See :class:`UserCohort`."""
        size = users_within(bytes_each, self.X[0].nbytes) if len(self) else 1
        for start in range(0, len(self) if users is None else len(users), size):
            block = self[
                slice(start, start + size) if users is None else users[start : start + size]
            ]
            block = replace(block, X=block.X[:, examples], y=block.y[:, examples])
            yield block.exact() if exact else block


def users_within(total: int, each: int) -> int:
    """Return how many users to process at a time.

    Args:
        total: bytes to process at a time.
        each: bytes per user.
    """
    return int(np.clip(total // max(1, each), 64, max(4096, total >> 11)))


def spread_evenly(n: int, nodes: int) -> list[range]:
    """Distribute n users over nodes; numbers of users differ by at most one.

    Returns:
        The consecutive public numbers of each node's users.
    """
    edges = [n * i // nodes for i in range(nodes + 1)]
    return [range(first, last) for first, last in pairwise(edges)]


def groups_of(identities: Identities, groups: int, seed: int) -> NDArray[np.int64]:
    """Return the group of each user in a random split of users into disjoint groups.

    The group of a user follows from its own identity, so that nobody moves to another group if
    somebody else is replaced. Sizes of groups are therefore random; a group has n / groups users on
    average.

    Args:
        identities: identities (B,) of the users.
        groups: number of groups.
        seed: seed of the split.

    Returns:
        Groups (B,) in 0..groups-1.
    """
    return (groups * draws(seed, identities, 1, "groups")[:, 0]).astype(np.int64)


def coins(
    identities: Identities, probability: float, seed: int, step: int, secret: bool
) -> NDArray[np.bool_]:
    """Return whether each user takes part in a step, independently of all others.

    In simulations coins follow from (seed, step, identity) and are the same everywhere. Where
    noise is secret, so are coins: whoever knew them would know who took part, and the guarantee
    counts on nobody knowing.

    Args:
        identities: identities (n,) of the users.
        probability: probability with which each user takes part.
        seed: seed of the run.
        step: number of the step.
        secret: whether coins come from the operating system's cryptographic generator.
    """
    if secret:
        words = np.frombuffer(os.urandom(8 * len(identities)), dtype=np.uint64)
        return words < np.uint64(probability * 2.0**64)
    return draws(seed, identities, 1, "coins", step)[:, 0] < probability


def draws(seed: int, identities: Identities, m: int, *purpose: str | int) -> Array:
    """Draw m uniform numbers per user, which depend on no other user and on no order of users.

    Args:
        seed: seed of the run.
        identities: identities (B,) of the users.
        m: numbers per user.
        purpose: what the numbers are for; other purposes give independent numbers.

    Returns:
        Numbers (B, m) in [0, 1).
    """
    return user_draws(seed, identities, m, *purpose)


def draw_orders(seed: int, round: int, identities: Identities, m: int) -> NDArray[np.intp]:
    """Return a random order of m examples per user, which depends on no other user.

    Args:
        seed: seed of the run.
        round: round that the order is drawn for.
        identities: identities (B,) of the users.
        m: number of examples per user.

    Returns:
        Places of the examples, (B, m).
    """
    return np.argsort(draws(seed, identities, m, "batches", round), axis=1)


def is_class(y: Array, classes: int) -> NDArray[np.bool_]:
    """Return whether each target is one of the classes 0..classes-1."""
    return (y >= 0) & (y < classes) & (y == np.floor(y))
