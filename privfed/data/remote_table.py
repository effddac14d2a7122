"""Users whose tables stay with them: the server knows their number and declares the schema."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from privfed.data.evaluation_bins import LOGARITHMIC, UNIT
from privfed.data.source import DataSource
from privfed.data.tables.own_table import OwnTable
from privfed.data.tables.ragged_cohort import RaggedCohort, TableRows
from privfed.data.tables.schema import Schema
from privfed.data.tables.table_loading import read_rows_for, read_schema
from privfed.data.tables.table_source import WholeOrAuto
from privfed.foundation.constraints import WHOLE
from privfed.foundation.errors import ConfigError

TYPICAL_ROWS = 20
"""Rows per user that settings are checked for: how many real users have is not known."""


class RemoteTable(DataSource):
    """Registered users whose rows are on other machines.

    Args:
        n: number of registered users.
        schema: file with the declared schema.
        declared: the schema as YAML, instead of its file.
        path: file with the rows of the simulated users; read where these are computed.
        places: public numbers of the simulated users, as pairs [first, last + 1].
        most_rows: largest number of training rows per user.
        k: dimension of the shared representation, or `auto`; algorithms read it.
        seed: seed of the run.

    Raises:
        ConfigError: if the number of users or the schema is missing or cannot be used.
    """

    simulated = False
    real, personal, named = True, True, True
    schema: Schema

    def __init__(
        self,
        n: Annotated[int, WHOLE] | None,
        schema: str | None,
        declared: str | None,
        path: str | None,
        places: Sequence[Sequence[int]],
        most_rows: Annotated[int, WHOLE],
        k: Annotated[int | str, WholeOrAuto()],
        seed: int,
    ) -> None:
        if n is None:
            raise ConfigError(
                "data=remote_table: data stay with their users; start privfed server with a roster"
            )
        if schema is None and declared is None:
            raise ConfigError(
                "data.schema: real users read their own files by a declared schema, as in "
                "data.schema=schema.yaml; data.describe=true shows one to start from"
            )
        if declared is None:
            self.schema = read_schema(str(schema))
            self.declared = Path(str(schema)).expanduser().read_text(encoding="utf-8")
        else:
            self.schema, self.declared = Schema.from_yaml(declared, "the schema"), declared
        if self.schema.missing == "refuse":
            raise ConfigError(
                f"{schema}: missing=refuse: to refuse would tell about a user's data; choose mean, "
                "indicator or drop"
            )
        self.n, self.d, self.m, self.seed = n, self.schema.d, TYPICAL_ROWS, seed
        self.path = None if path is None else str(Path(path).expanduser().absolute())
        self.places = [range(*map(int, pair)) for pair in places]
        self.most_rows = most_rows
        labels = self.schema.classes > 0
        self.error, self.scale = ("risk", UNIT) if labels else ("mse", LOGARITHMIC)
        if self.places and self.path is None:
            raise ConfigError(
                "data.path: simulated users are registered; give the file with their rows, or "
                "register none"
            )

    @cached_property
    def extra(self) -> OwnTable:
        """Rows of the simulated users."""
        frame = read_rows_for(self.schema, str(self.path), users_needed=True)
        registered = sum(map(len, self.places))
        if len(frame.names) != registered:
            raise ConfigError.of(
                "data.path",
                self.path or "",
                f"has {len(frame.names)} user(s), but {registered} simulated ones are registered",
            )
        return OwnTable(self.schema, frame, self.seed, 0.0, self.most_rows)

    def cohort(self, first: int, last: int) -> RaggedCohort:
        """Return simulated users; only a client has the rows of others.

        Raises:
            ConfigError: if one of the users is not simulated.
        """
        before = 0
        for place in self.places:
            if place.start <= first and last <= place.stop:
                a = before + first - place.start
                users = self.extra.cohort(a, a + last - first)
                return RaggedCohort(**vars(users) | {"ids": np.arange(first, last)})
            before += len(place)
        raise ConfigError("data=table: a client needs --data, the file with its users' rows")

    def empty(self) -> RaggedCohort:
        """Return a cohort of no users."""
        p, q = len(self.schema.numbers), len(self.schema.choices)
        nothing = TableRows(np.zeros((0, p)), np.zeros((0, q), dtype=np.int32), np.zeros(0))
        edges = np.zeros(1, dtype=np.int64)
        return RaggedCohort(
            ids=np.arange(0),
            rows=nothing,
            starts=edges,
            held=nothing,
            held_starts=edges,
            width=self.schema.width,
            schema=self.schema,
            named=np.zeros(0, dtype=np.uint64),
        )

    def told(self, settings: dict[str, Any], simulated: bool) -> dict[str, Any]:
        """Return the settings that a node is sent: the schema itself, and no path of real users."""
        own: dict[str, Any] = {"schema": None, "declared": self.declared, "path": self.path}
        return settings | own | ({} if simulated else {"path": None, "places": []})

    @property
    def examples(self) -> str:
        """What each user has, in words."""
        return f"{self.d} columns"
