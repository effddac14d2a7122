"""Users of a table: rows grouped by user, some of each user's rows held out, compact in memory.

Which rows are held out, and which are used where there are too many, depends on the seed, the
user's own name and the user's own rows. It is the same in every process, for any order of the file,
and whoever the other users are. With a time column the last rows are held out; otherwise random
ones. Of two rows or more at least one is held out; users with one row are trained on and not
judged.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from privfed.data.cohort import Ids, spread_evenly
from privfed.data.evaluation_bins import LOGARITHMIC, UNIT, Scale
from privfed.data.row_order import row_order
from privfed.data.source import DataSource
from privfed.data.tables.ragged_cohort import RaggedCohort, TableRows
from privfed.data.tables.schema import Schema
from privfed.data.tables.table_loading import EncodedTable, Options, read_table
from privfed.data.user_identity import Identities, identities_of
from privfed.foundation.constraints import FLAG, WHOLE, Number, Whole
from privfed.foundation.errors import ConfigError
from privfed.privacy.account_place import set_of

WATCHED = 500
"""Users whose held-out rows show the progress of training, in simulations."""

HELD_OUT_PART = Number(lambda x: 0 <= x < 1, "must be a number from 0 to below 1")


@dataclass(frozen=True)
class WholeOrAuto(Whole):
    """A whole number of at least `least`, or `auto`."""

    def check(self, key: str, value: Any) -> None:
        """See :class:`Constraint`."""
        if value != "auto":
            super().check(key, value)


@dataclass(frozen=True)
class TableTruth:
    """Mark of a simulation, in which errors on held-out rows may be disclosed."""

    scale: Scale


class Table(DataSource):
    """Users with the rows of a file.

    Args:
        test: fraction of each user's rows that is held out to judge.
        most_rows: largest number of training rows per user.
        evaluate: whether this is a simulation, which holds rows out and discloses errors. False:
            real users, of whom nothing is held out or disclosed.
        describe: whether the command only describes the table; nothing here depends on it.
        save: whether a simulation writes its split, predictions and heads, which are not private.
        k: dimension of the shared representation, or `auto`; algorithms read it.
        seed: seed of the choice of rows.
        reading: how the file is read, see :class:`Options`.

    Raises:
        ConfigError: if the settings or the file cannot be used.
    """

    personal, named, real, held_out = True, True, True, True
    schema: Schema

    def __init__(
        self,
        test: Annotated[float, HELD_OUT_PART],
        most_rows: Annotated[int, WHOLE],
        evaluate: Annotated[bool, FLAG],
        describe: Annotated[bool, FLAG],
        save: Annotated[bool, FLAG],
        k: Annotated[int | str, WholeOrAuto()],
        seed: int,
        **reading: Any,
    ) -> None:
        if reading.get("path") is None:
            raise ConfigError("data.path: say which file, as in data.path=ratings.csv")
        if save and not evaluate:
            raise ConfigError(
                "data.save: with data.evaluate=false nothing is held out, and heads stay with users"
            )
        path = str(Path(str(reading["path"])).expanduser().absolute())
        self.options = Options.of(reading | {"path": path})
        self.save = save
        self.simulated, self.test = evaluate, test if evaluate else 0.0
        self.most_rows, self.seed = most_rows, seed
        self.schema, self.frame = cached_table(self.options)
        self.n, self.d = len(self.frame.names), self.schema.d
        labels = self.schema.classes > 0
        self.error, self.scale = ("risk", UNIT) if labels else ("mse", LOGARITHMIC)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of these rows as their schema reads them.

        It is as secret as the rows and never published.
        """
        frame, digest = self.frame, hashlib.sha256(self.schema.to_yaml().encode())
        digest.update("\0".join(frame.names).encode())
        for array in (frame.who, frame.numbers, frame.codes, frame.target, frame.time):
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def identity(self) -> list[str]:
        """Return the path of the file, and the set of its users; see :class:`DataSource`.

        Rows may be added and corrected, users may join, and the file may move: as long as one of
        the two stays, the data are recognised.
        """
        users = set_of(self.frame.names)
        return [
            f"file {os.path.realpath(str(self.options.path))}",
            f"users of column {self.schema.user}: {users}",
        ]

    @cached_property
    def _identities(self) -> Identities:
        return identities_of(self.frame.names)

    @cached_property
    def _places(self) -> tuple[Ids, Ids, Ids, Ids]:
        """Places of training and held-out rows by user, each with the edges (n + 1,) of users."""
        frame = self.frame
        contents = (frame.numbers, frame.codes, frame.target)
        order = row_order(self.seed, self._identities, frame.who, contents, frame.time)
        counts = np.bincount(frame.who, minlength=self.n)
        place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        # The last rows of each user are held out. Of the others the last ones are used, up to
        # most_rows: the latest with a time column, otherwise random ones.
        judged = np.floor(self.test * counts).astype(np.int64)
        if self.test:  # users with few rows are judged, too
            judged = np.maximum(judged, (counts > 1).astype(np.int64))
        trained = counts - judged
        used = np.minimum(trained, self.most_rows)
        train = order[
            (place < np.repeat(trained, counts)) & (place >= np.repeat(trained - used, counts))
        ]
        held = order[place >= np.repeat(trained, counts)]
        edges = [np.concatenate([[0], np.cumsum(sizes)]) for sizes in (used, judged)]
        return train, edges[0], held, edges[1]

    @cached_property
    def _rows(self) -> tuple[TableRows, Ids, TableRows, Ids]:
        """Training rows and held-out rows by user, each with the edges (n + 1,) between users."""
        train, starts, held, held_starts = self._places
        whole = TableRows(self.frame.numbers, self.frame.codes, self.frame.target)
        return whole[train], starts, whole[held], held_starts

    def held_places(self, user: NDArray[np.int64]) -> Ids:
        """Return the places in the frame of held-out rows (t,), given their users in runs.

        Args:
            user: user (t,) of each row; rows of a user follow each other in the order of
                `cohort`.
        """
        _, _, held, starts = self._places
        first = np.concatenate([[0], np.flatnonzero(np.diff(user)) + 1])
        sizes = np.diff(np.concatenate([first, [len(user)]]))
        return held[starts[user] + np.arange(len(user)) - np.repeat(first, sizes)]

    def cohort(self, first: int, last: int) -> RaggedCohort:
        """Return the users first..last-1."""
        train, starts, held, held_starts = self._rows
        a, b, c, e = starts[first], starts[last], held_starts[first], held_starts[last]
        return RaggedCohort(
            ids=np.arange(first, last),
            rows=train[a:b],
            starts=starts[first : last + 1] - a,
            held=held[c:e],
            held_starts=held_starts[first : last + 1] - c,
            width=self.schema.width,
            schema=self.schema,
            truth=TableTruth(self.scale) if self.simulated else None,
            named=self._identities[first:last],
        )

    def empty(self) -> RaggedCohort:
        """Return a cohort of no users."""
        return self.cohort(0, 0)

    def validation(self) -> RaggedCohort | None:
        """Return at most WATCHED of the users who have held-out rows; None if no user has any."""
        judged = np.flatnonzero(np.diff(self._rows[3]))
        if not len(judged):
            return None
        parts = spread_evenly(len(judged), min(WATCHED, len(judged)))
        return self.cohort(0, self.n)[judged[[part.start for part in parts]]]

    @cached_property
    def m(self) -> int:  # type: ignore[override]
        """Median number of training rows per user."""
        return int(np.median(np.diff(self._rows[1])))

    @property
    def examples(self) -> str:
        """Numbers of training rows, in words."""
        sizes = np.diff(self._rows[1])
        return (
            f"{sizes.min()} to {sizes.max():,} rows of {self.d} columns each"
            if self.simulated
            else f"{self.d} columns"
        )

    @property
    def notes(self) -> list[str]:
        """What was done to the rows. Only simulations say it, as it depends on users' data."""
        if not self.simulated:
            return []
        sizes, judged = (np.diff(edges) for edges in (self._rows[1], self._rows[3]))
        notes = list(self.frame.notes)
        if np.any(judged == 0):
            few = f"{np.sum(judged == 0):,} of {self.n:,} users have no row to hold out"
            notes.append(f"{few}: trained on, not judged.")
        capped = int(np.sum(sizes == self.most_rows))
        if capped:
            many = f"{capped:,} users have {self.most_rows:,} rows or more"
            notes.append(f"{many}; only so many of each are used (data.most_rows).")
        return notes


_READ: dict[tuple[object, ...], tuple[Schema, EncodedTable]] = {}


def cached_table(options: Options) -> tuple[Schema, EncodedTable]:
    """Read a table, or return the last one read if its settings, file and schema are the same."""
    files = [
        Path(str(path)).expanduser() for path in (options.path, options.schema) if path is not None
    ]
    stamps = [path.stat() for path in files if path.exists()]
    key = (
        repr(options),
        *((stamp.st_ino, stamp.st_size, stamp.st_mtime_ns, stamp.st_ctime_ns) for stamp in stamps),
    )
    if key not in _READ:
        _READ.clear()
        _READ[key] = read_table(options)
    return _READ[key]
