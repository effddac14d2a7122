"""Contents of a column, gathered in one pass over the file, from which its meaning is inferred."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privfed.data.tables.columns import clean_texts, distinct, parse_numbers
from privfed.data.tables.date_parsing import parse_dates
from privfed.data.tables.date_parts import TEXTS, round_bounds, sense_unit
from privfed.data.tables.schema import DENSE, Bounds
from privfed.data.tables.table_files import arrow
from privfed.foundation.linalg import Array

FREE_TEXT = 0.9
"""Fraction of the rows above which different values make a text column free text."""
FEW_ROWS = 20
"""Least number of rows for that rule."""
FEW_VALUES = 16
"""Most different numbers of a column that takes its bounds from them, like categories."""
OFTEN = 10
"""How often each of them has to occur on average: a few measurements are not levels."""
SAMPLE, SAMPLES = 2_000, 200_000
"""Values of a batch, and of a column, that quantiles are taken from."""
FAR = 1_000.0
"""Distance from 0, in units of their spread, beyond which numbers get an origin."""
EXTREMES = (0.005, 0.995)
"""Quantiles between which dates lie; beyond are mistakes such as 1900-01-01 and 9999-12-31."""


@dataclass
class Profile:
    """Contents of a column.

    Attributes:
        most: largest number of different values that are kept.
        rows: number of rows.
        present: number of values that are not missing.
        odd: number of values that are not numbers.
        whole: whether all numbers are whole.
        padded: whether a whole number is written with leading zeros, such as 01234.
        grouped: whether numbers have thousands marks or signs of currency.
        first_odd: row and text of the first value that is not a number.
        values: the different values; None if there are more than `most`.
        different: number of different values per batch, added up.
        low: smallest number.
        high: largest number.
        counts_rows: whether all numbers so far are the rows' own numbers, from 0 or 1.
        personal: whether, in every batch, each user has one value that few others have.
        forms: forms of dates as text that all values so far have; None before the first.
        timed: whether a date has a time of the day.
        numbers: some of the numbers, by batch.
        days: some of the dates in days since 1970, by form and batch.
    """

    most: int
    rows: int = 0
    present: int = 0
    odd: int = 0
    whole: bool = True
    padded: bool = False
    grouped: bool = False
    first_odd: tuple[int, str] | None = None
    values: set[str] | None = field(default_factory=set)
    different: int = 0
    low: float = math.inf
    high: float = -math.inf
    counts_rows: bool = True
    personal: bool = True
    forms: tuple[str, ...] | None = None
    timed: bool = False
    numbers: list[Array] = field(default_factory=list)
    days: dict[str, list[Array]] = field(default_factory=dict)

    def add(self, first: int, column: Any, comma: bool, users: Any = None) -> None:
        """Take in one batch of a column.

        Args:
            first: number of its first row.
            column: Arrow array.
            comma: whether the comma is the decimal separator.
            users: Arrow array of the rows' users; None: not known.
        """
        pa = arrow()
        parsed, odd = parse_numbers(column, comma, self.grouped)
        if odd.any() and not self.grouped:
            again = parse_numbers(column, comma, grouped=True)
            if not again[1].any():
                (parsed, odd), self.grouped = again, True
        finite = parsed[np.isfinite(parsed)]
        strange = int(odd.sum())
        if len(finite):
            self.low = min(self.low, float(finite.min()))
            self.high = max(self.high, float(finite.max()))
            self._keep(self.numbers, finite)
        if self.counts_rows:
            start = self.rows + np.arange(len(parsed))
            gaps = parsed - start
            self.counts_rows = bool(np.all(gaps == 0) if self.low == 0 else np.all(gaps == 1))
        self.rows += len(parsed)
        self.present += len(finite) + strange
        self.odd += strange
        self.whole = self.whole and bool((finite == np.floor(finite)).all())
        if strange and self.first_odd is None:
            place = int(odd.argmax())
            self.first_odd = first + place, str(column[place].as_py()).strip()
        if self.whole and not self.padded and pa.types.is_string(column.type):
            zeros = pa.compute.match_substring_regex(column, r"^\s*0\d+\s*$")
            self.padded = bool(pa.compute.any(zeros).as_py())
        if self.forms != () and (strange or pa.types.is_temporal(column.type)):
            self._add_dates(column)
        self._count_values(column, users)

    def _count_values(self, column: Any, users: Any) -> None:
        """Keep different values, or only count them where there are too many."""
        pa = arrow()
        if self.values is None:
            found = int(pa.compute.count_distinct(column).as_py())
        else:
            texts = {text for text in distinct(column)[0] if text is not None}
            found = len(texts)
            self.values.update(texts)
            if len(self.values) > self.most:
                self.values = None
        self.different += found
        if self.personal:
            self.personal = users is not None and found > DENSE and _one_each(column, users, found)

    def _add_dates(self, column: Any) -> None:
        """Take in a batch of dates; keep the forms that all values have."""
        texts = arrow().types.is_temporal(column.type)
        tried: Sequence[str] = self.forms or (("iso",) if texts else TEXTS)
        if self.forms is None and not texts:  # a look at some values, for most text is no date
            some = clean_texts(column.drop_null()[:SAMPLE])
            tried = [form for form in tried if not parse_dates(some, form)[1].any()]
        kept = []
        for form in tried:
            days, odd = parse_dates(column, form)
            found = days[np.isfinite(days)]
            if odd.any() or not len(found):
                continue
            kept.append(form)
            self.timed = self.timed or bool(np.any(found != np.floor(found)))
            self._keep(self.days.setdefault(form, []), found)
        self.forms = tuple(kept)

    def _keep(self, kept: list[Array], values: Array) -> None:
        if len(kept) * SAMPLE < SAMPLES:
            kept.append(values[:: max(1, len(values) // SAMPLE)].copy())

    @property
    def is_text(self) -> bool:
        """Whether at least half of the values are not numbers."""
        return 0 < self.present <= 2 * self.odd

    @property
    def bounds(self) -> Bounds | None:
        """Smallest and largest of a few numbers that occur again and again; otherwise None."""
        few = self.values is not None and 1 < len(self.values) <= FEW_VALUES
        few = few and self.present >= OFTEN * len(self.values or ())
        return (self.low, self.high) if few and not self.odd and self.low < self.high else None

    @property
    def origin(self) -> float:
        """A round number near which values lie that are large and differ by little; else 0."""
        if not self.numbers:
            return 0.0
        q = np.quantile(np.concatenate(self.numbers), (0.05, 0.25, 0.5, 0.75, 0.95))
        spread = float(q[3] - q[1]) or float(q[4] - q[0])
        if not 0 < FAR * spread < abs(q[2]) < 1e300:
            return 0.0
        step = 10.0 ** math.ceil(math.log10(spread))
        return float(round(float(q[2]) / step) * step)

    def date_form(self, named: bool) -> str | None:
        """Return the form of dates that the values have; None if they are no dates.

        Args:
            named: whether the column's name speaks of time.
        """
        if self.forms:
            return self.forms[0]
        if self.odd or not self.whole or not self.numbers:
            return None
        low, high = np.quantile(np.concatenate(self.numbers), EXTREMES)
        return sense_unit(float(low), float(high), named)

    def date_bounds(self, days: Array) -> Bounds | None:
        """Return round bounds of dates; None if all are the same."""
        low, high = (float(q) for q in np.quantile(days, EXTREMES))
        return round_bounds(low, high) if low < high and abs(low) + abs(high) < 1e7 else None

    @property
    def is_free_text(self) -> bool:
        """Whether hardly any value occurs twice."""
        return self.present >= FEW_ROWS and self.different > FREE_TEXT * self.present


def _one_each(column: Any, users: Any, found: int) -> bool:
    """Return whether each user has one value, which it shares with few others.

    Args:
        column: Arrow array.
        users: Arrow array of the rows' users.
        found: number of different values.
    """
    pa = arrow()
    table = pa.table({"user": users, "value": column}).group_by("user")
    each = table.aggregate([("value", "count_distinct")])["value_count_distinct"]
    return bool(
        2 * found > len(each) and pa.compute.max(each).as_py() <= 1 and len(each) < len(column)
    )
