"""Rows of a node's own file, read by a schema that the server has published.

The reader, the order of rows, what is held out and what is used are those of `data=table`: the same
rows give the same numbers in one process and on other machines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from privfed.data.evaluation_bins import LOGARITHMIC, UNIT
from privfed.data.tables.encoding import EncodedTable
from privfed.data.tables.ragged_cohort import RaggedCohort
from privfed.data.tables.schema import Schema
from privfed.data.tables.table_loading import read_rows_for
from privfed.data.tables.table_opening import open_table
from privfed.data.tables.table_source import Table, TableTruth
from privfed.foundation.errors import ConfigError, NoRowsError


class OwnTable(Table):
    """Users with rows that were read before.

    Args:
        schema: meaning of the columns.
        frame: the rows.
        seed: seed of the run.
        test: fraction of each user's rows that only judges.
        most_rows: largest number of training rows per user.
    """

    def __init__(
        self, schema: Schema, frame: EncodedTable, seed: int, test: float, most_rows: int
    ) -> None:
        self.schema, self.frame, self.seed = schema, frame, seed
        self.simulated, self.test, self.most_rows = False, test, most_rows
        self.n, self.d = len(frame.names), schema.d
        labels = schema.classes > 0
        self.error, self.scale = ("risk", UNIT) if labels else ("mse", LOGARITHMIC)

    def numbered(self, users: range) -> RaggedCohort:
        """Return all users under public numbers; those who have no rows come last.

        Args:
            users: public numbers; at least as many as there are users.
        """
        cohort, absent = self.cohort(0, self.n), len(users) - self.n
        ids = np.arange(users.start, users.stop)
        # Users without rows take part in nothing; their names are not known here.
        named = np.concatenate([cohort.identities, np.zeros(absent, dtype=np.uint64)])
        starts, held = (
            np.concatenate([edges, np.full(absent, edges[-1])])
            for edges in (cohort.starts, cohort.held_starts)
        )
        return replace(cohort, ids=ids, named=named, starts=starts, held_starts=held)

    def judged(self, cohort: RaggedCohort) -> RaggedCohort:
        """Return a cohort whose held-out rows are judged, for the owner of the rows alone."""
        return replace(cohort, truth=TableTruth(self.scale))


def read_own_table(
    path: Path,
    schema: Schema,
    name: str,
    users: int | None,
    say: Callable[[str], None] = lambda text: None,
) -> EncodedTable:
    """Read the rows of one user, or of all users in the file.

    No cell is an error: what does not fit the schema counts as missing, and `say` is told.

    Args:
        path: CSV or Parquet file.
        schema: meaning of the columns.
        name: name of the node, and of its user if it has only one.
        users: number of registered users; None: any number, those of the file.
        say: prints a line for the owner of the file.

    Raises:
        ConfigError: if the file cannot be read, lacks a column or has rows of too many users.
    """
    header = open_table(path, forgiving=True).header
    if users is not None and users > 1 and schema.user not in header:
        raise ConfigError(
            f"{path}: has no column {schema.user!r} that says whose row it is, and {users} users "
            f"are registered for {name}"
        )
    try:
        frame = read_rows_for(schema, path, strict=False)
    except NoRowsError as error:
        say(f"{error}; nothing is contributed")
        return _empty(schema, name)
    for note in frame.notes:
        say(f"{path}: {note}")
    if schema.user not in header:
        return replace(frame, names=(name,))
    if users == 1:
        if name not in frame.names:
            raise ConfigError(f"{path}: has no rows of user {name!r}")
        return _only(frame, name, frame.names.index(name))
    if users is not None and len(frame.names) > users:
        raise ConfigError(
            f"{path}: has rows of {len(frame.names)} user(s), but {users} are registered for {name}"
        )
    if users is not None and len(frame.names) < users:
        missing = f"{users - len(frame.names)} of {users} registered user(s)"
        say(f"{path}: {missing} have no rows and contribute nothing")
    return frame


def _empty(schema: Schema, name: str) -> EncodedTable:
    """Return the table of one user without rows."""
    return EncodedTable(
        who=np.zeros(0, dtype=np.int32),
        names=(name,),
        numbers=np.zeros((0, len(schema.numbers))),
        codes=np.zeros((0, len(schema.choices)), dtype=np.int32),
        target=np.zeros(0),
        time=None,
        notes=(),
    )


def _only(frame: EncodedTable, name: str, place: int) -> EncodedTable:
    """Return the rows of the user at one place, under a name."""
    mine = np.flatnonzero(frame.who == place)
    return replace(
        frame,
        who=np.zeros(len(mine), dtype=frame.who.dtype),
        names=(name,),
        numbers=frame.numbers[mine],
        codes=frame.codes[mine],
        target=frame.target[mine],
        time=None if frame.time is None else frame.time[mine],
    )
