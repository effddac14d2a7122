"""State that the users of a node keep to themselves from one round to the next.

It is kept in memory and, if a folder is given, on disk. Two states are kept, before and after the
last step. A step that is asked for again, by a server that was stopped and resumed, then starts
from the same state as the first time.
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
"""Folder of a run in progress with what only its owner may read: state of users, registered nodes
and tokens; removed when the run is complete."""
Values = dict[str, NDArray[np.float32]]


def keep_fingerprint(folder: Path, fingerprint: str, resume: bool) -> None:
    """Note in the folder of a run which data it uses, until the run is complete.

    A resumed run must use the same data: releases of other rows would be charged as if they were
    of these.

    Args:
        folder: folder of the run.
        fingerprint: hash of the data and their schema.
        resume: whether the run is resumed.

    Raises:
        ConfigError: if the data of a resumed run have changed.
    """
    path = folder / PRIVATE / "data"
    if resume and path.exists() and path.read_text() != fingerprint:
        raise ConfigError(
            f"--resume {folder}: the table, or its schema, is no longer what it was when the run "
            "was stopped; put it back, or start a new run"
        )
    private_folder(folder)
    write_atomically(path, fingerprint.encode(), 0o600)


def private_folder(folder: Path) -> Path:
    """Return the folder of a run in progress that only its owner can read; make it if needed."""
    private = folder / PRIVATE
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    return private


def keep_run(folder: Path, fresh: str, resume: bool) -> str:
    """Return the number by which nodes know a run, and note it until the run is complete.

    Nodes charge their users per run and step. A resumed run keeps its number, so that a step that
    is asked again is not paid for twice. If the number is lost, nodes count another run.

    Args:
        folder: folder of the run.
        fresh: number of a new run.
        resume: whether the run is resumed.
    """
    path = private_folder(folder) / "run"
    if resume and path.exists():
        return path.read_text(encoding="utf-8")
    write_atomically(path, fresh.encode(), 0o600)
    return fresh


class Memory:
    """State of the users of one node.

    Args:
        ids: public numbers of the users (n,).
        start: arrays by name, one row per user, as they are before the first step.
    """

    def __init__(self, ids: Ids, start: Values) -> None:
        self.ids, self.start = ids, start
        self.step = 0
        self.before, self.now = start, _copied(start)
        self.path: Path | None = None

    def keep_in(self, folder: Path, name: str = "node") -> None:
        """Keep the state in a file as well, and continue from what is there.

        Args:
            folder: folder of the file; made if it does not exist.
            name: beginning of the file's name.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        first, last = (int(self.ids[0]), int(self.ids[-1])) if len(self.ids) else (0, -1)
        self.path = folder / f"{name}-{first}-{last}.npz"
        if not self.path.exists():
            return
        try:
            with np.load(self.path) as file:
                found = dict(file)
        except (OSError, ValueError, EOFError, BadZipFile):
            return  # cut off, for example by a full disk: users start anew
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
        """Go to the state before a step.

        Args:
            step: number of the step.
        """
        if step == self.step:
            self.now = _copied(self.before)
        elif step < self.step:  # another run
            self.now = _copied(self.start)
        self.before, self.step = _copied(self.now), step

    def end(self) -> None:
        """Keep the state after the step."""
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
        """Return the rows of users with the given public numbers."""
        return np.searchsorted(self.ids, ids)


def _copied(values: Values) -> Values:
    return {name: value.copy() for name, value in values.items()}
