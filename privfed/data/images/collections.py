"""Images of public collections, dealt to simulated users: every user has few of them, of few classes.

The official training set is cut in two: one part is dealt to the n users, the rest, put aside, to fresh users who never take
part. The official test set is dealt to the n users in proportion to their training images of each class; no image goes to two
users. The deal depends on settings and seed only. Each process reads the images of its own users.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from privfed.data.cohort import Cohort, Ids
from privfed.data.error_bins import UNIT, Scale
from privfed.data.images import partition
from privfed.data.images.archives import (
    ARCHIVES,
    ArchiveLabels,
    data_root,
    locate,
    read_labels,
    read_pixels,
)
from privfed.data.images.assignment import SPLITS, Split, SplitRule
from privfed.data.images.file_formats import Pixel, times
from privfed.foundation.errors import (
    ConfigError,
    check_number,
    check_positive,
    check_whole,
    nearest,
)
from privfed.foundation.linalg import Array


@dataclass(frozen=True)
class HeldOut:
    """Each user's test images X (B, t, d), bytes, with classes y (B, t); -1 where a user has fewer than t. Nobody has none."""

    scale: ClassVar[Scale] = UNIT

    X: Pixel
    y: Array

    def wrong(self, predicted: Any) -> Array:
        """The part of each user's test images that is wrong: classes predicted (B, t) -> (B,)."""
        there = self.y >= 0
        return np.asarray(np.sum((predicted != self.y) & there, axis=1) / np.sum(there, axis=1))

    def __getitem__(self, users: slice | Ids) -> HeldOut:
        """Some of the users."""
        return HeldOut(self.X[users], self.y[users])


class ImageUsers:
    """What all users with images have in common. shape: (C, H, W); an image is a row of d = C H W bytes, channel by channel."""

    simulated = True
    personal = True
    error, scale, floor = "risk", HeldOut.scale, 0.0

    def __init__(self, shape: Sequence[int], classes: int, seed: int) -> None:
        if isinstance(shape, str) or not isinstance(shape, Sequence) or len(shape) != 3:
            raise ConfigError.of(
                "data.shape", shape, "must be [channels, rows, columns], as [3,32,32]"
            )
        for size in shape:
            check_whole("data.shape", size)
        check_whole("data.classes", classes, least=2)
        self.shape, self.classes, self.seed = tuple(shape), classes, seed
        self.d = math.prod(shape)

    def check_S(self, S: int) -> int:
        """The number of classes a user."""
        allowed = f"must be a whole number between 1 and the number of classes, {self.classes}"
        return int(
            check_number(
                "data.S", S, lambda x: isinstance(x, int) and 1 <= x <= self.classes, allowed
            )
        )

    def compare(self, model: dict[str, Array]) -> dict[str, float]:
        """Nothing: nobody knows the true model."""
        return {}


class Images(ImageUsers):
    """n users with images of a collection. path: the folder with its files; None: `name` below $PRIVFED_DATA or data/.

    split: classes (S a user, equal shares), dirichlet (classes of a user by Dirichlet(alpha)), quantity (numbers of images by
    Dirichlet(alpha)), iid, or natural (a writer a user). m: images a user at most; for equal shares exactly. validation: part
    of the training images, or of the writers, that is put aside for fresh users.
    """

    def __init__(
        self, name: str, path: str | None, n: int | None, m: int | None, split: str, S: int, alpha: float, validation: float,
        shape: Sequence[int], classes: int, seed: int,
    ) -> None:  # fmt: skip
        if name not in ARCHIVES:
            raise ConfigError.of("data.name", name, nearest(str(name), ARCHIVES))
        if split not in SPLITS:
            raise ConfigError.of("data.split", split, nearest(str(split), SPLITS))
        super().__init__(shape, classes, seed)
        self.name, self.archive = name, ARCHIVES[name]
        if split == "natural" and not self.archive.users:
            raise ConfigError.of(
                "data.split", split, f"{name} does not say whose an image is; choose another split"
            )
        for key, value, optional in (("data.n", n, split == "natural"), ("data.m", m, True)):
            if value is not None or not optional:
                check_whole(key, value)
        S = self.check_S(S) if split == "classes" else check_whole("data.S", S)
        check_positive("data.alpha", alpha)
        check_number(
            "data.validation",
            validation,
            lambda x: 0.01 <= x <= 0.5,
            "must lie between 0.01 and 0.5",
        )
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

    @property
    def n(self) -> int:
        """Users."""
        return self.rule.n or len(self._split.train)

    @property
    def m(self) -> int:
        """The largest number of training images of a user."""
        return self._split.train.shape[1]

    def cohort(self, first: int, last: int) -> Cohort:
        """Users first..last-1: X (B, m, d) bytes, y (B, m) classes, -1 where a user has fewer than m images."""
        return self._users(self._split.train, self._split.test, first, last)

    def validation(self) -> Cohort:
        """Fresh users who never take part."""
        return self._users(self._split.fresh, self._split.fresh_test, 0, len(self._split.fresh))

    def describe_split(self) -> Ids:
        """Training images of each user and class (n, classes)."""
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
        _ = self._labels  # files that do not fit the settings are refused first
        return _split_of(self.name, self.folder, self.rule)

    def _users(self, train: Ids, test: Ids, first: int, last: int) -> Cohort:
        pixels, y = read_pixels(self.name, self.folder), self._labels.y

        def part(deal: Ids) -> tuple[Any, Array]:
            mine = deal[first:last]
            X = pixels.take(mine.ravel()).reshape(*mine.shape, self.d)
            return X, np.where(mine >= 0, y[mine], -1).astype(np.float64)

        X, classes = part(train)
        return Cohort(np.arange(first, last), X, classes, HeldOut(*part(test)))  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def _split_of(name: str, folder: Path, rule: SplitRule) -> Split:
    """Once a process, however many nodes it serves."""
    return rule.apply(read_labels(name, folder))
