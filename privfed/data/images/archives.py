"""Image collections in their official file formats: idx (also .gz), CIFAR's records, FEMNIST's npz.

The images of an archive are numbered from 0: first the official training set, file by file, then
the official test set. Files that are not compressed are mapped into memory. Processes on one
machine therefore share them and read only what they use.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from privfed.data.cohort import Ids
from privfed.data.images.file_formats import (
    Pixel,
    damaged,
    read_idx,
    read_npz,
    read_records,
    times,
    verify,
)
from privfed.foundation.errors import ConfigError

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Archive:
    """Names and format of an archive's files.

    Attributes:
        folder: name of the archive's folder.
        kind: `idx` (labels are in files of their own), `records` (header bytes, the last of
            which is the label, then pixels) or `npz`.
        train: files of the official training set.
        test: files of the official test set.
        classes: number of classes; None: the files decide.
        shape: (C, H, W); None: the files decide.
        header: header bytes of a record.
        lowest: number of the first class in the files.
        transposed: whether pixels are stored column by column.
    """

    folder: str
    kind: str
    train: tuple[str, ...]
    test: tuple[str, ...] = ()
    classes: int | None = None
    shape: Shape | None = None
    header: int = 1
    lowest: int = 0
    transposed: bool = False

    @property
    def users(self) -> bool:
        """Whether the archive says to which user an image belongs."""
        return self.kind == "npz"

    @property
    def record(self) -> int:
        """Bytes per record."""
        return self.header + math.prod(self.shape or ())

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files, without the .gz that an idx file may have."""
        names = self.train + self.test
        return (
            tuple(n for image in names for n in (image, label_file_of(image)))
            if self.kind == "idx"
            else names
        )


def label_file_of(images: str) -> str:
    """Return the name of the label file that belongs to an idx file of images."""
    return images.replace("images-idx3", "labels-idx1")


def _idx(
    folder: str,
    classes: int,
    prefix: str = "",
    test: str = "t10k",
    lowest: int = 0,
    transposed: bool = False,
) -> Archive:
    train, held_out = (f"{prefix}{part}-images-idx3-ubyte" for part in ("train", test))
    return Archive(
        folder,
        "idx",
        (train,),
        (held_out,),
        classes,
        (1, 28, 28),
        lowest=lowest,
        transposed=transposed,
    )


_EMNIST = {"balanced": 47, "byclass": 62, "bymerge": 47, "digits": 10, "letters": 26, "mnist": 10}
_BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))

ARCHIVES = {
    "cifar10": Archive("cifar10", "records", _BATCHES, ("test_batch.bin",), 10, (3, 32, 32)),
    "cifar100": Archive(
        "cifar100", "records", ("train.bin",), ("test.bin",), 100, (3, 32, 32), header=2
    ),
    "mnist": _idx("mnist", 10),
    "fashion_mnist": _idx("fashion_mnist", 10),
    "femnist": Archive("femnist", "npz", ("femnist.npz",)),
    **{
        f"emnist-{part}": _idx(
            "emnist", k, f"emnist-{part}-", "test", lowest=int(part == "letters"), transposed=True
        )
        for part, k in _EMNIST.items()
    },
}


@dataclass(frozen=True)
class ArchiveLabels:
    """Everything but the pixels.

    Attributes:
        y: classes (N,) of the images.
        train: number of images of the training set, which come first.
        shape: (C, H, W).
        user: number (N,) of each image's user; None where the archive does not say.
    """

    y: Ids
    train: int
    shape: Shape
    user: Ids | None = None


@dataclass(frozen=True)
class Pixels:
    """Images (N_i, C H W) of several files, one file after the other."""

    parts: tuple[Pixel, ...]
    shape: Shape
    transposed: bool = False

    def take(self, places: Ids) -> Pixel:
        """Return images as bytes.

        Args:
            places: numbers (B,) of the images; -1 for no image.

        Returns:
            Images (B, C H W); zeros for no image.
        """
        taken = np.zeros((len(places), math.prod(self.shape)), dtype=np.uint8)
        first = 0
        for part in self.parts:
            mine = (places >= first) & (places < first + len(part))
            taken[mine] = part[places[mine] - first]
            first += len(part)
        if self.transposed:
            taken = taken.reshape(-1, *self.shape).swapaxes(2, 3).reshape(len(taken), -1)
        return taken


def data_root() -> Path:
    """Return the folder that contains the archives' folders: $PRIVFED_DATA, or data/ by default."""
    return Path(os.environ.get("PRIVFED_DATA") or "data")


def locate(name: str, folder: Path) -> dict[str, Path]:
    """Find the files of an archive.

    Args:
        name: name of the archive, a key of ARCHIVES.
        folder: folder with its files.

    Returns:
        Path of each file by its name.

    Raises:
        ConfigError: for the first file that is missing.
    """
    archive = ARCHIVES[name]
    found = {}
    for file in archive.files:
        choices = [folder / file, folder / f"{file}.gz"][: 2 if archive.kind == "idx" else 1]
        there = [path for path in choices if path.is_file()]
        if not there:
            command = f"python scripts/fetch_data.py {archive.folder}"
            raise ConfigError.of("data.path", folder, f"{file} is missing; get it with {command}")
        found[file] = there[0]
    return found


@lru_cache(maxsize=8)
def read_labels(name: str, folder: Path) -> ArchiveLabels:
    """Read labels, sizes and users. Of the pixels only the number of bytes is examined.

    Args:
        name: name of the archive, a key of ARCHIVES.
        folder: folder with its files.

    Raises:
        ConfigError: if a file is missing or damaged.
    """
    archive, paths = ARCHIVES[name], locate(name, folder)
    if archive.kind == "npz":
        return npz_labels(paths[archive.train[0]])
    parts: list[Any] = []
    for image in archive.train + archive.test:
        if archive.kind == "records":
            parts.append(read_records(paths[image], archive.record)[:, archive.header - 1])
        else:
            labels, images = read_idx(paths[label_file_of(image)], 1), read_idx(paths[image], 3)
            expected = (len(labels), *(archive.shape or ())[1:])
            if images.shape != expected:
                raise damaged(paths[image], f"{times(expected)} pixels", times(images.shape))
            parts.append(labels)
        high = archive.lowest + (archive.classes or 256)
        if len(parts[-1]) and not archive.lowest <= parts[-1].min() <= parts[-1].max() < high:
            range_found = f"{parts[-1].min()} to {parts[-1].max()}"
            raise damaged(
                paths[label_file_of(image)],
                f"labels from {archive.lowest} to {high - 1}",
                range_found,
            )
    y = np.concatenate(parts).astype(np.int64) - archive.lowest
    assert archive.shape is not None
    return ArchiveLabels(y, sum(map(len, parts[: len(archive.train)])), archive.shape)


@lru_cache(maxsize=4)
def read_pixels(name: str, folder: Path) -> Pixels:
    """Map the images into memory, after the folder's checksums have been compared.

    Args:
        name: name of the archive, a key of ARCHIVES.
        folder: folder with its files.

    Raises:
        ConfigError: if a file is missing or damaged.
    """
    archive, paths = ARCHIVES[name], locate(name, folder)
    verify(folder, [path.name for path in paths.values()])
    shape = read_labels(name, folder).shape
    images = [paths[file] for file in archive.train + archive.test]
    if archive.kind == "npz":
        parts = [read_npz(images[0], "x")[0]]
    elif archive.kind == "records":
        parts = [read_records(path, archive.record)[:, archive.header :] for path in images]
    else:
        parts = [read_idx(path, 3) for path in images]
    return Pixels(tuple(part.reshape(len(part), -1) for part in parts), shape, archive.transposed)


def npz_labels(path: Path) -> ArchiveLabels:
    """Read labels and users of an npz file with the arrays x, y and user.

    Raises:
        ConfigError: if the file is damaged, or the arrays do not fit together.
    """
    x, y, user = read_npz(path, "x", "y", "user")
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise damaged(
            path,
            "x of bytes, images x rows x columns or images x channels x rows x columns",
            f"{x.dtype} {x.shape}",
        )
    if (
        not np.issubdtype(y.dtype, np.integer)
        or y.shape != x.shape[:1]
        or user.shape != x.shape[:1]
        or (y < 0).any()
    ):
        raise damaged(
            path,
            f"{len(x)} labels from 0 on and {len(x)} users",
            f"y {y.dtype} {y.shape}, user {user.shape}",
        )
    shape = (1, *x.shape[1:]) if x.ndim == 3 else x.shape[1:]
    return ArchiveLabels(
        y.astype(np.int64), len(y), shape, np.unique(user, return_inverse=True)[1].astype(np.int64)
    )
