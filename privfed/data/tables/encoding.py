"""Encoding of a table's rows as compact arrays, by a schema."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.data.tables.columns import Mask, distinct, parse_numbers, parse_times
from privfed.data.tables.date_parsing import EXAMPLES, parse_dates
from privfed.data.tables.date_parts import DatePart
from privfed.data.tables.forgiving_text import DAMAGED
from privfed.data.tables.schema import (
    Categorical,
    Hashed,
    Numeric,
    Schema,
    bucket,
    ordered,
    plain_text,
)
from privfed.data.tables.table_files import Columns, TableReader
from privfed.foundation.errors import ConfigError, NoRowsError
from privfed.foundation.linalg import Array

LARGEST = float(np.finfo(np.float32).max)
"""Larger numbers count as infinite."""

FARTHEST = 1e7
"""Days from 1970 beyond which nothing is a date."""

_INSTEAD = {"indicator": "taken as the mean, with a column that says so", "drop": "rows left out"}
_SAID = {
    "odd": "{name}: {count:,} values are not numbers; they count as missing",
    "no date": "{name}: {count:,} values are not dates; they count as missing",
    "infinite": "{name}: {count:,} values are infinite; they count as missing",
    "unknown": "{name}: {count:,} values are none of those the schema lists",
    "missing": "{name}: {count:,} of {rows:,} values missing; {instead}",
    "no user": "{count:,} rows without a user left out",
    "no target": "{count:,} rows without a target left out",
    "no time": "{count:,} rows without a time, which count as the latest",
}


@dataclass(frozen=True)
class EncodedTable:
    """Rows of N cells per column, in the file's order.

    Attributes:
        who: user (N,) of each row, as a place in `names`.
        names: sorted names of the users, by size if all are numbers. Users whose rows were all
            left out keep their name and have no rows.
        numbers: values (N, p) of the numeric features, NaN where missing.
        codes: codes (N, q) of the categorical features, -1 for none.
        target: targets (N,): a number, or the number of a label; NaN where unknown.
        time: times (N,) in seconds; None without a time column.
        notes: what was done to the data, in words.
        path: the file.
    """

    who: NDArray[np.int32]
    names: tuple[str, ...]
    numbers: Array
    codes: NDArray[np.int32]
    target: Array
    time: Array | None
    notes: tuple[str, ...]
    path: str = ""

    def __len__(self) -> int:
        return len(self.who)


class Encoder:
    """Encodes a table batch by batch.

    Args:
        table: where the rows come from, for messages.
        schema: meaning of the columns.
        need_target: whether rows without a target are left out.
        strict: whether a cell that does not fit the schema is an error; otherwise it counts as
            missing.
    """

    def __init__(self, table: TableReader, schema: Schema, need_target: bool, strict: bool):
        self.table, self.schema, self.need_target, self.strict = table, schema, need_target, strict
        self.rows = 0
        self.people: dict[str, int] = {}
        self.pieces: list[tuple[Any, ...]] = []
        self.counts: dict[tuple[str, str], int] = {}
        self.fraction: tuple[int, str] | None = None
        self.floats = False
        self.places = {
            f.name: {plain_text(v): i for i, v in enumerate(f.values)}
            for f in schema.choices
            if isinstance(f, Categorical)
        }
        self.labels = (
            None
            if schema.target.labels is None
            else {plain_text(v): i for i, v in enumerate(schema.target.labels)}
        )

    def add(self, first: int, columns: Columns) -> None:
        """Encode one batch.

        Args:
            first: number of its first row.
            columns: Arrow arrays by name of the column.

        Raises:
            ConfigError: in strict mode, for the first cell that does not fit the schema.
        """
        size = len(next(iter(columns.values())))
        self.rows += size
        keep = np.ones(size, dtype=np.bool_)
        who = self._users(first, columns.get(self.schema.user), keep)
        numbers = np.empty((size, len(self.schema.numbers)))
        dates: dict[str, Array] = {}
        for j, feature in enumerate(self.schema.numbers):
            if feature.date is None:
                numbers[:, j] = self._numbers(first, feature, columns[feature.name], keep)
                continue
            name = feature.date.column
            if name not in dates:
                dates[name] = self._dates(first, feature.date, columns[name], keep)
            numbers[:, j] = feature.date.of(dates[name])
        codes = np.empty((size, len(self.schema.choices)), dtype=np.int32)
        for j, choice in enumerate(self.schema.choices):
            codes[:, j] = self._codes(first, choice, columns[choice.name], keep)
        time = (
            self._time(first, columns[self.schema.time])
            if self.schema.time and self.schema.time in columns
            else None
        )
        target = self._target(first, columns.get(self.schema.target.name), keep, size)
        arrays = (who, numbers, codes, target, time)
        self.pieces.append(
            arrays if keep.all() else tuple(None if a is None else a[keep] for a in arrays)
        )

    def finish(self) -> EncodedTable:
        """Return all rows that were kept.

        Raises:
            ConfigError: if there are none, or in strict mode if users' names are fractions.
        """
        if not self.rows:
            raise NoRowsError(f"{self.table.path}: has a header and no rows")
        if (
            self.strict
            and self.fraction
            and all(_fraction(name) is not None for name in self.people)
        ):
            row, text = self.fraction
            raise self.table.fault(
                row,
                self.schema.user,
                f"{text!r} is not a user's number or name; is it the right column?",
            )
        columns = [list(pieces) for pieces in zip(*self.pieces, strict=True)]
        self.pieces.clear()
        who, numbers, codes, target, time = (_joined(pieces) for pieces in columns)
        if not len(who):
            raise NoRowsError(f"{self.table.path}: no rows are left; " + "; ".join(self._notes(0)))
        names = ordered(self.people)
        rank = np.empty(len(names), dtype=np.int32)
        rank[[self.people[name] for name in names]] = np.arange(len(names))
        who = rank[who]
        empty = int((np.bincount(who, minlength=len(names)) == 0).sum())
        return EncodedTable(
            who,
            tuple(names),
            numbers,
            codes,
            target,
            time,
            self._notes(empty),
            str(self.table.path),
        )

    def _users(self, first: int, column: Any, keep: Mask) -> NDArray[np.int32]:
        if column is None:
            return np.full(len(keep), self.people.setdefault("", 0), dtype=np.int32)
        texts, places = distinct(column)
        known = len(self.people)
        if not self.strict:  # a damaged name is nobody's
            texts = [None if text is None or DAMAGED in text else text for text in texts]
        numbers = [
            -1 if text is None else self.people.setdefault(text, len(self.people)) for text in texts
        ]
        who = np.array(numbers, dtype=np.int32)[places]
        lost = who < 0
        if lost.any():
            if self.strict:
                raise self._fault(
                    first, self.schema.user, column, lost, "is no user's name; whose row is it?"
                )
            keep &= ~lost
            self._count(self.schema.user, "no user", lost)
        fresh = (place for place, number in enumerate(numbers) if number >= known)
        if self.fraction is None and (
            bad := [place for place in fresh if _fraction(str(texts[place]))]
        ):
            row = int(np.isin(places, bad).argmax())
            self.fraction = first + row, str(column[row].as_py())
        if not self.pieces:
            # Programs write whole numbers as 3.0 in all rows or in none: one row is enough.
            self.floats = "." in str(column[0].as_py()) and "." not in str(texts[places[0]])
        return who

    def _numbers(self, first: int, feature: Numeric, column: Any, keep: Mask) -> Array:
        values, odd = parse_numbers(column, self.table.comma, feature.grouped)
        if odd.any():
            if self.strict:
                raise self._fault(first, feature.name, column, odd, "is not a number")
            self._count(feature.name, "odd", odd)
        infinite = np.abs(values) > LARGEST
        if infinite.any():
            self._count(feature.name, "infinite", infinite)
            values = np.where(infinite, math.nan, values)
        self._missing(first, feature.name, np.isnan(values), keep)
        return values

    def _dates(self, first: int, date: DatePart, column: Any, keep: Mask) -> Array:
        """Return days since 1970 (b,), NaN where missing."""
        days, odd = parse_dates(column, date.form)
        if odd.any():
            if self.strict:
                raise self._fault(
                    first, date.column, column, odd, f"is not a date ({EXAMPLES[date.form]})"
                )
            self._count(date.column, "no date", odd)
        days = np.where(np.abs(days) < FARTHEST, days, math.nan)
        self._missing(first, date.column, np.isnan(days), keep)
        return days

    def _codes(
        self, first: int, feature: Categorical | Hashed, column: Any, keep: Mask
    ) -> NDArray[np.int32]:
        texts, places = distinct(column)
        if isinstance(feature, Hashed):
            codes = [-1 if text is None else bucket(text, feature.buckets) for text in texts]
        else:
            known = self.places[feature.name]
            codes = [-1 if text is None else known.get(text, -1) for text in texts]
        found = np.array(codes, dtype=np.int32)
        absent = np.array([text is None for text in texts], dtype=np.bool_)
        if not absent.all() and (found[~absent] < 0).any():
            self._count(feature.name, "unknown", ((found < 0) & ~absent)[places])
        if absent.any():
            self._missing(first, feature.name, absent[places], keep)
        return found[places]

    def _target(self, first: int, column: Any, keep: Mask, size: int) -> Array:
        name = self.schema.target.name
        if column is None:
            return np.full(size, math.nan)
        if self.labels is None:
            values, odd = parse_numbers(column, self.table.comma, self.schema.target.grouped)
            values = np.where(np.isinf(values), math.nan, values)
            words = "is not a number"
        else:
            texts, places = distinct(column)
            codes = np.array(
                [math.nan if t is None else self.labels.get(t, math.nan) for t in texts],
                dtype=np.float64,
            )
            values = codes[places]
            odd = np.array([t is not None and t not in self.labels for t in texts], dtype=np.bool_)[
                places
            ]
            words = f"is none of the labels {', '.join(list(self.labels)[:8])}"
        if odd.any() and self.strict:
            raise self._fault(first, name, column, odd, words)
        if self.need_target and (lost := np.isnan(values)).any():
            keep &= ~lost
            self._count(name, "no target", lost)
        return values

    def _time(self, first: int, column: Any) -> Array:
        values, odd = parse_times(column)
        name, lost = str(self.schema.time), odd | ~np.isfinite(values)
        if lost.any():
            if self.strict:
                raise self._fault(
                    first,
                    name,
                    column,
                    lost,
                    "is neither a number nor a date such as 2024-03-31T12:00:00",
                )
            self._count(name, "no time", lost)
            values = np.where(lost, math.nan, values)
        return values

    def _missing(self, first: int, name: str, absent: Mask, keep: Mask) -> None:
        if not absent.any():
            return
        self._count(name, "missing", absent)
        if self.schema.missing == "refuse" and self.strict:
            raise self.table.fault(
                first + int(absent.argmax()), name, "is missing, and data.missing=refuse"
            )
        if self.schema.missing == "drop":
            keep &= ~absent

    def _fault(self, first: int, name: str, column: Any, bad: Mask, words: str) -> ConfigError:
        row = int(bad.argmax())
        value = column[row].as_py()
        return self.table.fault(
            first + row, name, f"{'' if value is None else str(value)[:40]!r} {words}"
        )

    def _count(self, name: str, what: str, where: Mask) -> None:
        self.counts[name, what] = self.counts.get((name, what), 0) + int(where.sum())

    def _notes(self, empty: int) -> tuple[str, ...]:
        notes = (
            [f"{self.schema.user}: whole numbers written with a point are taken without, 3.0 as 3"]
            if self.floats
            else []
        )
        numeric = {feature.column for feature in self.schema.numbers}
        for (name, what), count in self.counts.items():
            taken = "taken as the mean" if name in numeric else "taken as none of its values"
            instead = (
                _INSTEAD.get(self.schema.missing, taken)
                if name in numeric or self.schema.missing == "drop"
                else taken
            )
            notes.append(
                _SAID[what].format(name=name, count=count, rows=self.rows, instead=instead)
            )
        return (*notes, *([f"{empty:,} users have no rows left"] if empty else ()))


def _joined(pieces: list[Any]) -> Any:
    """Join pieces and empty the list: they must not be in memory while others are joined."""
    whole = None if pieces[0] is None else np.concatenate(pieces)
    pieces.clear()
    return whole


def _fraction(text: str) -> bool | None:
    """Return whether a text is a number with a fraction; None if it is no number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number != math.floor(number) if math.isfinite(number) else None
