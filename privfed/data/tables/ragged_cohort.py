"""Users with different numbers of rows, stored without padding, computed in equal blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.data.cohort import BYTES, Ids
from privfed.data.tables.schema import Schema
from privfed.data.user_identity import Identities
from privfed.foundation.linalg import Array

Numbers = NDArray[np.float64]
Codes = NDArray[np.int32]


@dataclass(frozen=True)
class TableRows:
    """Rows of a table in compact form.

    Attributes:
        numbers: values (..., p) of the numeric features, NaN where missing.
        codes: codes (..., q) of the categorical features, -1 for none of their values.
        y: targets (...), numbers or classes.
    """

    numbers: Numbers
    codes: Codes
    y: Array

    def __getitem__(self, rows: Any) -> TableRows:
        return TableRows(self.numbers[rows], self.codes[rows], self.y[rows])

    def __len__(self) -> int:
        return len(self.y)

    def reshaped(self, *shape: int) -> TableRows:
        """Return the same rows in another shape."""
        return TableRows(
            self.numbers.reshape(*shape, self.numbers.shape[-1]),
            self.codes.reshape(*shape, self.codes.shape[-1]),
            self.y.reshape(shape),
        )


@dataclass(frozen=True)
class Block:
    """B users with m rows each.

    Attributes:
        ids: public numbers (B,) of the users.
        identities: identities (B,) of the users.
        rows: training rows (B, m).
        held: rows (t,) that only judge; None for real users.
        whose: place (t,) in the block of the user of each row in `held`.
        truth: see :class:`RaggedCohort`.
    """

    ids: Ids
    identities: Identities
    rows: TableRows
    held: TableRows | None = None
    whose: NDArray[np.intp] | None = None
    truth: Any = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def m(self) -> int:
        """Number of training rows of each user."""
        return self.rows.y.shape[1]

    @cached_property
    def judging(self) -> Ids | None:
        """Number of held-out rows (B,) of each user; None for real users."""
        return None if self.whose is None else np.bincount(self.whose, minlength=len(self))


@dataclass(frozen=True)
class RaggedCohort:
    """Users whose numbers of rows differ.

    Attributes:
        ids: public numbers (n,) of the users.
        rows: training rows of all users, one user after the other.
        starts: edges (n + 1,): rows starts[i]..starts[i+1]-1 belong to user i.
        held: rows that only judge, likewise.
        held_starts: their edges (n + 1,).
        width: numbers per encoded row, targets included; it decides how many users fit a block.
        schema: meaning of the columns; None if no algorithm needs it.
        truth: not None where held-out rows may be used to disclose errors, in simulations only.
        named: identities (n,) of users who are registered by name; None: their numbers.
    """

    ids: Ids
    rows: TableRows
    starts: Ids
    held: TableRows
    held_starts: Ids
    width: int
    schema: Schema | None = None
    truth: Any = None
    named: Identities | None = None

    m = None
    """Users differ."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def identities(self) -> Identities:
        """Identities (n,) of the users, which all randomness about them follows from."""
        return self.ids.astype(np.uint64) if self.named is None else self.named

    @property
    def sizes(self) -> Ids:
        """Number of training rows (n,) of each user."""
        return np.diff(self.starts)

    def __getitem__(self, users: slice | Ids) -> RaggedCohort:
        """Return the users at some places."""
        places = np.arange(len(self))[users]

        def some(rows: TableRows, starts: Ids) -> tuple[TableRows, Ids]:
            counts = starts[places + 1] - starts[places]
            edges = np.concatenate([[0], np.cumsum(counts)])
            within = np.arange(edges[-1]) - np.repeat(edges[:-1], counts)
            return rows[np.repeat(starts[places], counts) + within], edges

        rows, starts = some(self.rows, self.starts)
        held, held_starts = some(self.held, self.held_starts)
        return replace(
            self,
            ids=self.ids[places],
            named=self.identities[places],
            rows=rows,
            starts=starts,
            held=held,
            held_starts=held_starts,
        )

    def without_broken_users(self, target: float = 0.0) -> RaggedCohort:
        """Replace training targets that are not finite by `target`.

        Missing numbers are part of a table: the encoding of rows handles them.
        """
        y = self.rows.y
        if np.isfinite(y).all():
            return self
        return replace(self, rows=replace(self.rows, y=np.where(np.isfinite(y), y, target)))

    def blocks(
        self,
        users: Ids | None = None,
        *,
        examples: slice = slice(None),
        bytes_each: int = BYTES,
        exact: bool = True,
    ) -> Iterator[Block]:
        """Yield users with equal numbers of rows together. See :class:`UserCohort`.

        There are never more sizes than the square root of twice the number of rows, so blocks are
        few. Users without rows are in no block. If no user has rows, one block of no users is
        yielded: its sums are zeros, whereas silence would tell that nobody has rows.

        `exact` has no effect: rows are stored in compact form, and encoding them yields double
        precision.
        """
        places = np.arange(len(self)) if users is None else users
        places = places[self.sizes[places] > 0]
        if not len(places):
            yield self._block(places, np.arange(1)[examples])
            return
        order = places[np.lexsort((places, self.sizes[places]))]
        ordered = self.sizes[order]
        edges = np.flatnonzero(np.diff(ordered)) + 1
        for first, last in zip([0, *edges], [*edges, len(order)], strict=True):
            m = int(ordered[first])
            step = int(np.clip(bytes_each // max(1, 8 * m * self.width), 1, 4096))
            for start in range(first, last, step):
                yield self._block(order[start : min(start + step, last)], np.arange(m)[examples])

    def _block(self, users: Ids, examples: Ids) -> Block:
        rows = self.rows[self.starts[users][:, None] + examples]
        if self.truth is None:
            return Block(self.ids[users], self.identities[users], rows)
        some = self[users]
        whose = np.repeat(np.arange(len(users)), np.diff(some.held_starts))
        return Block(self.ids[users], self.identities[users], rows, some.held, whose, self.truth)
