"""A user's own table: rows grouped by user, some of each user's held out to judge, compact in memory.

Which rows are held out, and which are used where there are too many, depends on the seed, the user's place among the sorted
names and its own rows: the same in every process, whatever rows others have. With a time column the last rows are held out;
otherwise random ones. A user with too few rows to hold any out is trained on, and not judged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privfed.data.cohort import Ids, spread_evenly
from privfed.data.error_bins import LOGARITHMIC, UNIT, Scale
from privfed.data.tables.ragged_cohort import RaggedCohort, TableRows
from privfed.data.tables.reading import EncodedTable, Options, read_table
from privfed.data.tables.schema import Schema
from privfed.foundation.errors import ConfigError, check_flag, check_number, check_whole
from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator

WATCHED = 500
"""Users whose held-out rows show how training goes on, in simulations."""


@dataclass(frozen=True)
class TableTruth:
    """Held-out rows may be told about: this is a simulation."""

    scale: Scale


class Table:
    """n users with the rows of a file. evaluate: hold rows out and tell errors, not private: a simulation."""

    personal = True
    floor = 0.0

    def __init__(
        self, path: str | None, user: str, target: str | None, time: str | None, features: Sequence[str] | None,
        ignore: Sequence[str], categorical: Sequence[str], numeric: Sequence[str], bounds: Mapping[str, Sequence[float]],
        categories: str, buckets: int, most_categories: int, missing: str, task: str, schema: str | None,
        test: float, most_rows: int, evaluate: bool, describe: bool, k: int | str, seed: int,
    ) -> None:  # fmt: skip
        if path is None:
            raise ConfigError("data.path: say which file, as in data.path=ratings.csv")
        check_number("data.test", test, lambda x: 0 <= x < 1, "must be a number from 0 to below 1")
        check_whole("data.most_rows", most_rows)
        self.simulated = check_flag("data.evaluate", evaluate)
        check_flag("data.describe", describe)
        if k != "auto":
            check_whole("data.k", k)
        self.test, self.most_rows, self.seed = (test if evaluate else 0.0), most_rows, seed
        self.options = Options(
            str(Path(str(path)).expanduser().absolute()), user, target, time, features, ignore, categorical, numeric, bounds,
            categories, buckets, most_categories, missing, task, schema,
        )  # fmt: skip
        self.schema, self.frame = cached_table(self.options)

    @property
    def n(self) -> int:
        """Users."""
        return len(self.frame.names)

    @property
    def d(self) -> int:
        """Encoded columns."""
        return self.schema.d

    @property
    def error(self) -> str:
        """Squared error for numbers, share of wrong answers for labels."""
        return "risk" if self.schema.classes else "mse"

    @property
    def scale(self) -> Scale:
        """How errors are counted."""
        return UNIT if self.schema.classes else LOGARITHMIC

    @cached_property
    def fingerprint(self) -> str:
        """Tells these rows, as their schema reads them, from any others. As secret as they are: it is never published."""
        frame, digest = self.frame, hashlib.sha256(self.schema.to_yaml().encode())
        digest.update("\0".join(frame.names).encode())
        for array in (frame.who, frame.numbers, frame.codes, frame.target, frame.time):
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @cached_property
    def _rows(self) -> tuple[TableRows, Ids, TableRows, Ids]:
        """Rows that train and rows that judge, by user, each with where users start."""
        frame = self.frame
        order = np.argsort(frame.who, kind="stable")
        who = frame.who[order].astype(np.int64)
        counts = np.bincount(who, minlength=self.n)
        starts = np.concatenate([[0], np.cumsum(counts)])
        place = np.arange(len(who)) - np.repeat(starts[:-1], counts)
        order = order[
            np.lexsort(
                (lots(self.seed, who, place) if frame.time is None else frame.time[order], who)
            )
        ]
        # The last rows of each user judge; of the others the last (in time) or any are used, up to the cap.
        judged = np.floor(self.test * counts).astype(np.int64)
        trained = counts - judged
        used = np.minimum(trained, self.most_rows)
        whole = TableRows(frame.numbers, frame.codes, frame.target)
        train = order[
            (place < np.repeat(trained, counts)) & (place >= np.repeat(trained - used, counts))
        ]
        held = order[place >= np.repeat(trained, counts)]
        edges = [np.concatenate([[0], np.cumsum(sizes)]) for sizes in (used, judged)]
        return whole[train], edges[0], whole[held], edges[1]

    def cohort(self, first: int, last: int) -> RaggedCohort:
        """Users first..last-1."""
        train, starts, held, held_starts = self._rows
        a, b, c, e = starts[first], starts[last], held_starts[first], held_starts[last]
        told = TableTruth(self.scale) if self.simulated else None
        return RaggedCohort(
            np.arange(first, last), train[a:b], starts[first : last + 1] - a, held[c:e], held_starts[first : last + 1] - c,
            self.schema, told,
        )  # fmt: skip

    def empty(self) -> RaggedCohort:
        """Nobody."""
        return self.cohort(0, 0)

    def validation(self) -> RaggedCohort | None:
        """Some of the users who are judged, spread over all: how training goes on. None where nobody is."""
        judged = np.flatnonzero(np.diff(self._rows[3]))
        if not len(judged):
            return None
        some = judged[
            [part.start for part in spread_evenly(len(judged), min(WATCHED, len(judged)))]
        ]
        return self.cohort(0, self.n).only(some)

    @property
    def m(self) -> int:
        """The median number of rows a user trains with."""
        return int(np.median(np.diff(self._rows[1])))

    @property
    def examples(self) -> str:
        """How many rows users have, in words."""
        sizes = np.diff(self._rows[1])
        return (
            f"{sizes.min()} to {sizes.max():,} rows of {self.d} columns each"
            if self.simulated
            else f"{self.d} columns"
        )

    @property
    def notes(self) -> list[str]:
        """What was done to the rows, for whoever has the table anyway."""
        if not self.simulated:
            return []
        sizes, judged = (np.diff(edges) for edges in (self._rows[1], self._rows[3]))
        notes = list(self.frame.notes)
        if np.any(judged == 0):
            notes.append(
                f"{np.sum(judged == 0):,} of {self.n:,} users have too few rows to hold any out: trained on, not judged."
            )
        capped = int(np.sum(sizes == self.most_rows))
        if capped:
            notes.append(
                f"{capped:,} users have {self.most_rows:,} rows or more; only so many of each are used (data.most_rows)."
            )
        return notes

    def compare(self, model: dict[str, Array]) -> dict[str, float]:
        """Nobody knows the true model."""
        return {}


def lots(seed: int, who: Ids, place: Ids) -> NDArray[np.uint64]:
    """Random numbers (N,), one for each row by its user and its place among that user's rows.

    They must not depend on how many rows others have: one user's rows would then decide which of another's are used, and
    move more than its own contribution.
    """
    key = generator(seed, "table rows").integers(2**64, dtype=np.uint64)
    return _mixed(_mixed(key + who.astype(np.uint64)) + place.astype(np.uint64))


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): numbers one apart come out unrelated."""
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


_READ: dict[tuple[object, ...], tuple[Schema, EncodedTable]] = {}


def cached_table(options: Options) -> tuple[Schema, EncodedTable]:
    """The table, read once in a process as long as its file and schema stay the same; only the last one is kept."""
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
