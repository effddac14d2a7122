"""Assignment of a collection's images to users who take part and to fresh users who never do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privfed.data.cohort import Ids
from privfed.data.images import partition
from privfed.data.images.archives import ArchiveLabels
from privfed.foundation.errors import ConfigError
from privfed.foundation.seeding import generator

SPLITS = ("classes", "dirichlet", "iid", "natural", "quantity")
HELD_OUT = 0.2
"""Fraction of the images that is held out if a collection has no test set, and of each writer's."""


@dataclass(frozen=True)
class Split:
    """Assignments of training and test images, to users who take part and to fresh users.

    An assignment is a matrix of image numbers with one row per user, see `partition`.
    """

    train: Ids
    test: Ids
    fresh: Ids
    fresh_test: Ids


@dataclass(frozen=True)
class SplitRule:
    """How images are assigned. See :class:`privfed.data.images.image_source.Images`."""

    split: str
    n: int | None
    m: int | None
    S: int
    alpha: float
    validation: float
    seed: int

    def deal(
        self, y: Ids, n: int, rng: np.random.Generator, m: int | None, least: int = partition.LEAST
    ) -> Ids:
        """Assign images to users.

        Args:
            y: classes (N,) of the images.
            n: number of users.
            rng: source of randomness.
            m: largest number of images per user; None: all.
            least: least number of images per user, where shares differ.

        Returns:
            The assignment (n, m), see `partition`.

        Raises:
            ConfigError: if there are too few images.
        """
        if self.split == "classes":
            return partition.by_classes(y, n, self.S, rng, m)
        if self.split == "iid":
            return partition.iid(y, n, rng, m)
        return (partition.dirichlet if self.split == "dirichlet" else partition.quantity)(
            y, n, self.alpha, rng, m, least
        )

    def apply(self, labels: ArchiveLabels) -> Split:
        """Assign all images of a collection.

        Raises:
            ConfigError: if there are too few images for users who take part or for a fresh user.
        """
        if self.split == "natural":
            return self._natural(labels)
        assert self.n is not None

        def stream(purpose: str) -> np.random.Generator:
            return generator(self.seed, "images", purpose)

        y = labels.y
        train, test = np.arange(labels.train), np.arange(labels.train, len(y))
        if not len(test):
            train, test = partition.put_aside(y, HELD_OUT, stream("test"))
        kept, aside = (
            train[part] for part in partition.put_aside(y[train], self.validation, stream("aside"))
        )
        users = self.deal(y[kept], self.n, stream("deal"), self.m)
        if self.split == "iid":
            held_out = partition.iid(y[test], self.n, stream("held-out"))
        else:
            counts = partition.counts_of(users, y[kept], int(y.max()) + 1)
            held_out = partition.alike(y[test], counts, stream("held-out"))
        fresh = self._fresh(y[aside], users, held_out, stream("fresh"))
        return Split(
            *(
                _back(*pair)
                for pair in ((users, kept), (held_out, test), *((part, aside) for part in fresh))
            )
        )

    def _fresh(
        self, y: Ids, users: Ids, held_out: Ids, rng: np.random.Generator
    ) -> tuple[Ids, Ids]:
        """Assign training and test images to as many fresh users as possible, by the same rule."""
        m = users.shape[1]
        mine, tests = (np.count_nonzero(deal >= 0) / len(deal) for deal in (users, held_out))
        t = (
            max(1, round(tests / self.S)) * self.S
            if self.split == "classes"
            else max(1, round(tests))
        )
        each = round(mine) + t
        v = len(y) // each
        if self.split == "classes":
            sizes, shard = np.bincount(y), each // self.S
            while v and np.minimum(sizes // shard, v).sum() < v * self.S:
                v -= 1
        if not v:
            classes = f" of {self.S} classes" if self.split == "classes" else ""
            need = f"a fresh user with {round(mine)} training and {t} test images{classes}"
            hint = "put more aside, or give users fewer with data.m"
            allowed = f"{len(y)} images are too few for {need}; {hint}"
            raise ConfigError.of("data.validation", self.validation, allowed)
        if self.split in ("dirichlet", "quantity"):
            shares = [row[row >= 0] for row in self.deal(y, v, rng, None, partition.LEAST + 1)]
            return _cut(shares, t / each, m)
        deal = self.deal(y, v, rng, each)
        if self.split == "iid":
            return deal[:, :m], deal[:, m:]
        shards = np.take_along_axis(
            deal, np.argsort(y[deal], axis=1, kind="stable"), axis=1
        ).reshape(v, self.S, -1)
        train, test = (part.reshape(v, -1) for part in np.split(shards, [m // self.S], axis=2))
        return rng.permuted(train, axis=1), rng.permuted(test, axis=1)

    def _natural(self, labels: ArchiveLabels) -> Split:
        """Make one user per writer; in random order, the first writers are put aside."""
        assert labels.user is not None
        rng = generator(self.seed, "images", "writers")
        shuffled = rng.permutation(len(labels.y))
        shuffled = shuffled[np.argsort(labels.user[shuffled], kind="stable")]
        writers = np.split(shuffled, np.cumsum(np.bincount(labels.user))[:-1])
        writers = [places for places in writers if len(places) > partition.LEAST]
        writers = [writers[i] for i in rng.permutation(len(writers))]
        v = max(1, round(self.validation * len(writers)))
        rest = len(writers) - v
        n = rest if self.n is None else self.n
        if not 1 <= n <= rest:
            raise ConfigError.of(
                "data.n", self.n, f"there are {rest} writers besides the {v} put aside"
            )
        train, test = _cut(writers[v : v + n], HELD_OUT, None)
        train = train[:, : self.m]
        return Split(train, test, *_cut(writers[:v], HELD_OUT, train.shape[1]))


def _back(deal: Ids, places: Ids) -> Ids:
    """Turn an assignment of places i into one of places[i]; -1 stays."""
    return np.where(deal >= 0, places[deal], -1)


def _cut(users: list[Ids], part: float, m: int | None) -> tuple[Ids, Ids]:
    """Cut each user's images into training and test images.

    Args:
        users: places of each user's images.
        part: approximate fraction of test images; each user has at least one.
        m: length of the rows of training images, of which the first m are taken; None: the longest.

    Returns:
        Assignments of training and of test images.
    """
    tests = [
        min(max(1, round(part * len(places))), len(places) - partition.LEAST) for places in users
    ]
    both = list(zip(users, tests, strict=True))
    train = partition.padded([places[k:] for places, k in both], m)
    return train, partition.padded([places[:k] for places, k in both])
