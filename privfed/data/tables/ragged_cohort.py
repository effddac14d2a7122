"""Users with different numbers of rows: kept one after the other without padding, computed in groups of equal size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.data.cohort import Ids
from privfed.foundation.linalg import Array

Numbers = NDArray[np.float32]
Codes = NDArray[np.int32]


@dataclass(frozen=True)
class TableRows:
    """Rows in compact form: numbers (..., p), NaN where missing; codes (..., q), -1 for none; y (...), a number or a class."""

    numbers: Numbers
    codes: Codes
    y: Array

    def __getitem__(self, rows: Any) -> TableRows:
        return TableRows(self.numbers[rows], self.codes[rows], self.y[rows])

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Block:
    """B users with m rows each: rows (B, m). held: rows that only judge; whose (t,): the place of their user in the block."""

    ids: Ids
    rows: TableRows
    held: TableRows | None = None
    whose: NDArray[np.intp] | None = None
    truth: Any = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def m(self) -> int:
        """Rows of each user."""
        return self.rows.y.shape[1]

    @cached_property
    def judging(self) -> NDArray[np.int64]:
        """Held-out rows of each user (B,)."""
        assert self.whose is not None
        return np.bincount(self.whose, minlength=len(self))


@dataclass(frozen=True)
class RaggedCohort:
    """Users with public numbers ids (n,): rows of user i are starts[i]..starts[i+1]-1, held-out ones likewise.

    truth: something where held-out rows may be told about (simulations), None for real users.
    """

    ids: Ids
    rows: TableRows
    starts: Ids
    held: TableRows
    held_starts: Ids
    schema: Any
    """What the columns mean."""
    truth: Any = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sizes(self) -> Ids:
        """Rows of each user (n,)."""
        return np.diff(self.starts)

    def only(self, places: Ids) -> RaggedCohort:
        """The users at the given places."""

        def some(rows: TableRows, starts: Ids) -> tuple[TableRows, Ids]:
            counts = starts[places + 1] - starts[places]
            edges = np.concatenate([[0], np.cumsum(counts)])
            within = np.arange(edges[-1]) - np.repeat(edges[:-1], counts)
            return rows[np.repeat(starts[places], counts) + within], edges

        train, held = some(self.rows, self.starts), some(self.held, self.held_starts)
        return RaggedCohort(self.ids[places], *train, *held, self.schema, self.truth)

    def without_broken_users(self, target: float = 0.0) -> RaggedCohort:
        """The same with zeros for targets that are not finite; missing numbers are part of a table, and handled there."""
        y = self.rows.y
        if np.isfinite(y).all():
            return self
        return replace(self, rows=replace(self.rows, y=np.where(np.isfinite(y), y, target)))

    def blocks(
        self, width: int, users: Ids | None = None, bytes_each: int = 1 << 21
    ) -> Iterator[Block]:
        """Users of equal size together, so many that their rows of `width` numbers fit a processor's cache.

        There are never more sizes than the square root of twice the number of rows, so groups are few. Who has no rows is in
        none. Where nobody has any there is one block of nobody: sums of zeros, as silence would tell.
        """
        places = np.arange(len(self)) if users is None else users
        places = places[self.sizes[places] > 0]
        if not len(places):
            yield self._block(places, 1)
            return
        order = places[np.lexsort((places, self.sizes[places]))]
        ordered = self.sizes[order]
        edges = np.flatnonzero(np.diff(ordered)) + 1
        for first, last in zip([0, *edges], [*edges, len(order)], strict=True):
            m = int(ordered[first])
            step = int(np.clip(bytes_each // max(1, 8 * m * width), 1, 4096))
            for start in range(first, last, step):
                yield self._block(order[start : min(start + step, last)], m)

    def _block(self, users: Ids, m: int) -> Block:
        rows = self.rows[self.starts[users][:, None] + np.arange(m)]
        if self.truth is None:
            return Block(self.ids[users], rows)
        some = self.only(users)
        whose = np.repeat(np.arange(len(users)), np.diff(some.held_starts))
        return Block(self.ids[users], rows, some.held, whose, self.truth)
