"""What the users of a node keep to themselves from one round to the next: in memory and, where a folder is given, on disk.

Two states are kept, before and after the last step, so that a step that is asked for again, by a server that was stopped and
resumed, starts from where it started the first time.
"""

from __future__ import annotations

import io
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from privfed.data.cohort import Ids
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError

PRIVATE = "private"
"""Folder of a run in progress where users keep what they remember; it is gone when the run is complete."""
Values = dict[str, NDArray[np.float32]]


def keep_fingerprint(folder: Path, fingerprint: str, resume: bool) -> None:
    """Note in a run's folder whose data it is made on, until it is complete; what is resumed must go on with the same.

    Releases of other rows would be charged as if they were of these, and fit together with nothing.
    """
    path = folder / PRIVATE / "data"
    if resume and path.exists() and path.read_text() != fingerprint:
        raise ConfigError(
            f"--resume {folder}: the table, or its schema, is no longer what it was when the run was stopped; put it back, "
            "or start a new run"
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, fingerprint.encode(), 0o600)


class Memory:
    """start: arrays by name, one row a user, as they are before the first step. ids: the users' public numbers."""

    def __init__(self, ids: Ids, start: Values) -> None:
        self.ids, self.start = ids, start
        self.step = 0
        self.before, self.now = start, _copied(start)
        self.path: Path | None = None

    def keep_in(self, folder: Path, name: str = "node") -> None:
        """Keep everything in a file of this folder as well, and go on from what is there."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        first, last = (int(self.ids[0]), int(self.ids[-1])) if len(self.ids) else (0, -1)
        self.path = folder / f"{name}-{first}-{last}.npz"
        if not self.path.exists():
            return
        try:
            with np.load(self.path) as file:
                found = dict(file)
        except (OSError, ValueError, EOFError, BadZipFile):
            return  # cut off by a full disk, say: users start anew
        shapes = {
            f"{when}_{name}": value.shape
            for when in ("before", "now")
            for name, value in self.start.items()
        }
        if {name: value.shape for name, value in found.items() if name != "step"} == shapes:
            self.step = int(found["step"])
            self.before = {name: found[f"before_{name}"] for name in self.start}
            self.now = {name: found[f"now_{name}"] for name in self.start}

    def begin(self, step: int) -> None:
        """Be where the users were before this step."""
        if step == self.step:
            self.now = _copied(self.before)
        elif step < self.step:  # another run
            self.now = _copied(self.start)
        self.before, self.step = _copied(self.now), step

    def end(self) -> None:
        """The step is over."""
        if self.path is not None:
            content = io.BytesIO()
            states = {"before": self.before, "now": self.now}
            arrays = {
                f"{when}_{name}": value
                for when, state in states.items()
                for name, value in state.items()
            }
            np.savez(content, step=np.int64(self.step), **arrays)  # type: ignore[arg-type]
            write_atomically(self.path, content.getvalue(), mode=0o600)

    def places(self, ids: Ids) -> NDArray[np.intp]:
        """The rows of these users."""
        return np.searchsorted(self.ids, ids)


def _copied(values: Values) -> Values:
    return {name: value.copy() for name, value in values.items()}
