"""Store of the users' own predictors on the disk of their node, readable by its owner only."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from privfed.data.cohort import Ids
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array


class HeadStore:
    """A folder with one file per user.

    Args:
        folder: where the files are; made if it does not exist.
        names: names of users by public number; other users are called user-NUMBER.

    Raises:
        ConfigError: if the folder cannot be written to.
    """

    def __init__(self, folder: Path, names: Mapping[int, str] | None = None) -> None:
        self.folder, self.names = folder, names or {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(folder / ".writable", b"", mode=0o600)
            (folder / ".writable").unlink()
        except OSError as error:
            raise ConfigError(f"{folder}: cannot keep heads there ({error.strerror})") from error

    def path(self, user: int) -> Path:
        """Return the file of a user; names are escaped, so that none leads out of the folder."""
        name = self.names.get(user, f"user-{user}")
        return self.folder / f"{quote(name, safe='')}.npz"

    def save(self, users: Ids, W: Array) -> None:
        """Keep the predictors W (B, d) of these users (B,)."""
        for user, w in zip(users.tolist(), W, strict=True):
            self.save_arrays(user, w=w)

    def save_arrays(self, user: int, **arrays: NDArray[Any]) -> None:
        """Keep the arrays that the head of a user consists of."""
        content = io.BytesIO()
        np.savez(content, **arrays)  # type: ignore[arg-type]
        write_atomically(self.path(user), content.getvalue(), mode=0o600)

    def load(self, user: int) -> Array | None:
        """Return the predictor (d,) of a user; None if none was kept."""
        if not self.path(user).exists():
            return None
        with np.load(self.path(user)) as file:
            return np.asarray(file["w"])
