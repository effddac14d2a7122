"""Readers of binary files whose format states their exact length, and checksums.

Nothing is ever unpickled.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zipfile
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.errors import ConfigError

Pixel = NDArray[np.uint8]
SUMS = "SHA256SUMS"
"""List of checksums, in the format of `sha256sum -c`.

If it is in the folder of the data, its checksums are compared before pixels are used.
"""


def verify(folder: Path, names: Iterable[str], sums: dict[str, str] | None = None) -> None:
    """Compare files with their checksums. Files that are not listed are not compared.

    Args:
        folder: folder with the files.
        names: names of the files.
        sums: checksums by name; None: those of the folder's own list, if it has one.

    Raises:
        ConfigError: if a file differs.
    """
    listed = checksums(folder) if sums is None else sums
    for name in names:
        if name in listed:
            found = sha256(folder / name)
            if found != listed[name]:
                raise damaged(folder / name, f"sha256 {listed[name]}", found)


def sha256(path: Path) -> str:
    """Return the checksum of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(folder: Path) -> dict[str, str]:
    """Read the folder's list of checksums.

    Returns:
        Checksum by file name; empty if there is no list.

    Raises:
        ConfigError: if the list is damaged.
    """
    path = folder / SUMS
    if not path.is_file():
        return {}
    lines = [line.split() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    if any(len(line) != 2 or len(line[0]) != 64 for line in lines):
        raise damaged(path, "a sha256 and a file name a line", "something else")
    return {name.lstrip("*"): value for value, name in lines}


def damaged(path: Path, expected: str, found: object) -> ConfigError:
    """Return the error that a file differs from what its format or its checksum says."""
    return ConfigError(
        f"{path}: damaged, or not the official file: expected {expected}, found {found}"
    )


@lru_cache(maxsize=8)
def read_idx(path: Path, dimensions: int) -> Pixel:
    """Read an idx file of bytes.

    The format: two zeros, the type 8, the number of dimensions, sizes as big-endian 32-bit numbers,
    then the bytes.

    Args:
        path: the file, which may be compressed (.gz).
        dimensions: expected number of dimensions.

    Returns:
        An array with the sizes that the file states.

    Raises:
        ConfigError: if the file is damaged.
    """
    start = 4 + 4 * dimensions
    if path.suffix == ".gz":
        try:
            raw: Pixel = np.frombuffer(gzip.decompress(path.read_bytes()), dtype=np.uint8)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(path, "gzip", error) from error
    else:
        raw = (
            np.memmap(path, dtype=np.uint8, mode="r")
            if path.stat().st_size
            else np.empty(0, dtype=np.uint8)
        )
    magic = bytes(raw[:4])
    if len(raw) < start or magic != bytes([0, 0, 8, dimensions]):
        raise damaged(
            path,
            f"an idx file that starts with 0 0 8 {dimensions}",
            " ".join(map(str, magic)) or "nothing",
        )
    sizes = tuple(int(size) for size in np.frombuffer(bytes(raw[4:start]), dtype=">u4"))
    if len(raw) != start + math.prod(sizes):
        raise damaged(path, f"{start + math.prod(sizes)} bytes for {times(sizes)}", len(raw))
    return raw[start:].reshape(sizes)


def read_records(path: Path, record: int) -> Pixel:
    """Read records of `record` bytes each: (N, record).

    Raises:
        ConfigError: if the file's size is no multiple of `record`.
    """
    size = path.stat().st_size
    if not size or size % record:
        raise damaged(path, f"a multiple of {record} bytes", size)
    return np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, record)


def read_npz(path: Path, *keys: str) -> list[Any]:
    """Read arrays of an npz file by their names. Nothing is unpickled.

    Raises:
        ConfigError: if the file is damaged, or an array is missing.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return [file[key] for key in keys]
    except KeyError as error:
        raise damaged(
            path, f"arrays x, y and user, {' and '.join(keys)} among them", f"{error.args[0]}"
        ) from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise damaged(path, "an npz file", " ".join(str(error).split())) from error


def times(sizes: Iterable[int]) -> str:
    """Write sizes as in 3 x 32 x 32."""
    return " x ".join(map(str, sizes))
