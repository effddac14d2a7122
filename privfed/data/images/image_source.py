"""Images of public collections, assigned to simulated users: few images of few classes per user.

The official training set is cut in two. One part is assigned to the n users. The other part is put
aside for fresh users who never take part in training. The official test set is assigned to the n
users in proportion to their training images of each class. No image goes to two users. The
assignment depends only on settings and seed, and each process reads only the images of its users.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from privfed.data.cohort import Cohort, Ids
from privfed.data.evaluation_bins import UNIT, Scale
from privfed.data.images import partition
from privfed.data.images.archives import (
    ARCHIVES,
    ArchiveLabels,
    data_root,
    locate,
    read_labels,
    read_pixels,
)
from privfed.data.images.file_formats import Pixel, times
from privfed.data.images.train_test_split import SPLITS, Split, SplitRule
from privfed.data.source import DataSource
from privfed.foundation.constraints import POSITIVE, WHOLE, Choice, Number, Whole
from privfed.foundation.errors import ConfigError, check_number, check_whole
from privfed.foundation.linalg import Array


@dataclass(frozen=True)
class ShapeOfImages:
    """Three whole numbers: channels, rows and columns."""

    def check(self, key: str, value: Any) -> None:
        """See :class:`Constraint`."""
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 3:
            raise ConfigError.of(key, value, "must be [channels, rows, columns], as [3,32,32]")
        for size in value:
            check_whole(key, size)


ImageShape = Annotated[Sequence[int], ShapeOfImages()]
Classes = Annotated[int, Whole(2)]
PART = Number(lambda x: 0.01 <= x <= 0.5, "must lie between 0.01 and 0.5")


@dataclass(frozen=True)
class HeldOut:
    """Test images of users, of which every user has at least one.

    Attributes:
        X: images (B, t, d) as bytes.
        y: classes (B, t); -1 where a user has fewer than t images.
    """

    scale: ClassVar[Scale] = UNIT

    X: Pixel
    y: Array

    def wrong(self, predicted: Any) -> Array:
        """Return the fraction (B,) of each user's test images that is predicted wrongly.

        Args:
            predicted: classes (B, t).
        """
        there = self.y >= 0
        return np.asarray(np.sum((predicted != self.y) & there, axis=1) / np.sum(there, axis=1))

    def __getitem__(self, users: slice | Ids) -> HeldOut:
        """Return the same for some of the users."""
        return HeldOut(self.X[users], self.y[users])


class ImageUsers(DataSource):
    """What all sources of images share.

    Args:
        shape: (C, H, W); an image is stored as a row of d = C H W bytes, channel by channel.
        classes: number of classes.
        seed: seed of everything.
    """

    simulated = True
    personal = True
    error, scale = "risk", HeldOut.scale
    classes: int

    def __init__(self, shape: ImageShape, classes: Classes, seed: int) -> None:
        self.shape, self.classes, self.seed = tuple(shape), classes, seed
        self.d = math.prod(shape)

    def check_S(self, S: int) -> int:
        """Return S, the number of classes per user.

        Raises:
            ConfigError: unless it is a whole number between 1 and the number of classes.
        """
        allowed = f"must be a whole number between 1 and the number of classes, {self.classes}"
        return int(
            check_number(
                "data.S", S, lambda x: isinstance(x, int) and 1 <= x <= self.classes, allowed
            )
        )


class Images(ImageUsers):
    """Users with images of a public collection.

    Args:
        name: name of the collection, one of ARCHIVES.
        path: folder with its files; None: the collection's folder below $PRIVFED_DATA or data/.
        n: number of users; None, with a natural split: all writers who are not put aside.
        m: largest number of training images per user; None: all. Where shares are equal, every user
            has exactly m.
        split: `classes` (equal shares of S classes per user), `dirichlet` (users' classes by
            Dirichlet(alpha)), `quantity` (numbers of images by Dirichlet(alpha)), `iid`, or
            `natural` (one writer per user).
        S: classes per user, with split=classes.
        alpha: concentration of the Dirichlet distribution.
        validation: fraction of the training images, or of the writers, put aside for fresh users.
        shape: (C, H, W) of the images.
        classes: number of classes.
        seed: seed of the assignment.

    Raises:
        ConfigError: if settings disagree with each other or with the collection, or files are
            missing.
    """

    def __init__(
        self,
        name: Annotated[str, Choice(*ARCHIVES)],
        path: str | None,
        n: Annotated[int, WHOLE] | None,
        m: Annotated[int, WHOLE] | None,
        split: Annotated[str, Choice(*SPLITS)],
        S: int,
        alpha: Annotated[float, POSITIVE],
        validation: Annotated[float, PART],
        shape: ImageShape,
        classes: Classes,
        seed: int,
    ) -> None:
        super().__init__(shape, classes, seed)
        self.name, self.archive = name, ARCHIVES[name]
        if split == "natural" and not self.archive.users:
            raise ConfigError.of(
                "data.split", split, f"{name} does not say whose an image is; choose another split"
            )
        if split != "natural":
            check_whole("data.n", n)
        S = self.check_S(S) if split == "classes" else check_whole("data.S", S)
        if self.archive.shape not in (None, self.shape):
            raise ConfigError.of(
                "data.shape", list(self.shape), f"images of {name} are {times(self.archive.shape)}"
            )
        if self.archive.classes not in (None, classes):
            raise ConfigError.of("data.classes", classes, f"{name} has {self.archive.classes}")
        self.rule = SplitRule(split, n, m, S, float(alpha), float(validation), seed)
        self.folder = (
            data_root() / self.archive.folder if path is None else Path(str(path))
        ).absolute()
        locate(name, self.folder)

    @cached_property
    def n(self) -> int:  # type: ignore[override]
        """Number of users."""
        return self.rule.n or len(self._split.train)

    @cached_property
    def m(self) -> int:  # type: ignore[override]
        """Largest number of training images per user."""
        return self._split.train.shape[1]

    def cohort(self, first: int, last: int) -> Cohort:
        """Return the users first..last-1.

        X (B, m, d) are bytes. y (B, m) are classes, -1 where a user has fewer than m images.
        """
        return self._users(self._split.train, self._split.test, first, last)

    def validation(self) -> Cohort:
        """Return fresh users who never take part in training."""
        return self._users(self._split.fresh, self._split.fresh_test, 0, len(self._split.fresh))

    def describe_split(self) -> Ids:
        """Count the training images of each user and class (n, classes)."""
        return partition.counts_of(self._split.train, self._labels.y, self.classes)

    @cached_property
    def _labels(self) -> ArchiveLabels:
        labels = read_labels(self.name, self.folder)
        if labels.shape != self.shape:
            raise ConfigError.of(
                "data.shape", list(self.shape), f"images in {self.folder} are {times(labels.shape)}"
            )
        if labels.y.max(initial=0) >= self.classes:
            raise ConfigError.of(
                "data.classes", self.classes, f"{self.folder} has labels up to {labels.y.max()}"
            )
        return labels

    @property
    def _split(self) -> Split:
        _ = self._labels  # refuses files that do not fit the settings
        return _split_of(self.name, self.folder, self.rule)

    def _users(self, train: Ids, test: Ids, first: int, last: int) -> Cohort:
        pixels, y = read_pixels(self.name, self.folder), self._labels.y

        def part(deal: Ids) -> tuple[Any, Array]:
            mine = deal[first:last]
            X = pixels.take(mine.ravel()).reshape(*mine.shape, self.d)
            return X, np.where(mine >= 0, y[mine], -1).astype(np.float64)

        held_out = HeldOut(*part(test))
        return Cohort(np.arange(first, last), *part(train), held_out)  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def _split_of(name: str, folder: Path, rule: SplitRule) -> Split:
    """Assign images once per process, which may serve many nodes."""
    return rule.apply(read_labels(name, folder))
