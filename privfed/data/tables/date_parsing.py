"""Reading of dates and times: text of several forms, typed columns, numbers since 1970."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np

from privfed.data.tables.columns import Mask, clean_texts, parse_numbers
from privfed.data.tables.date_parts import UNITS
from privfed.data.tables.table_files import arrow
from privfed.foundation.linalg import Array

_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:\.\d+)?))?"
_ZONE = r"\s*(?:Z|UTC|(?P<sign>[+-])(?P<off>\d{2}):?(?P<min>\d{2})?)?"
_LATER = rf"(?:[T ]\s*{_CLOCK}{_ZONE})?"
_PATTERNS = {
    "iso": rf"^(?P<year>\d{{4}})[-/.](?P<month>\d{{1,2}})[-/.](?P<day>\d{{1,2}}){_LATER}$",
    "dmy": rf"^(?P<day>\d{{1,2}})[-/.](?P<month>\d{{1,2}})[-/.](?P<year>\d{{4}}){_LATER}$",
    "mdy": rf"^(?P<month>\d{{1,2}})[-/.](?P<day>\d{{1,2}})[-/.](?P<year>\d{{4}}){_LATER}$",
    "clock": rf"^{_CLOCK}$",
}
EXAMPLES = {
    "iso": "such as 2024-03-31T12:00",
    "dmy": "day.month.year, such as 31.03.2024",
    "mdy": "month/day/year, such as 03/31/2024",
    "clock": "a time such as 23:59",
    **dict.fromkeys(UNITS, "a number since 1970"),
}
"""A date of each form, in words."""


def parse_dates(column: Any, form: str) -> tuple[Array, Mask]:
    """Convert a column to days since 1970; times without a zone are in UTC.

    Args:
        column: Arrow array of b values.
        form: one of FORMS. Columns that have a type of dates need none.

    Returns:
        Days (b,), NaN where missing or no date, and which values (b,) are no dates.
    """
    pa = arrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        ticks = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False)
        days = ticks.cast(pa.int64()).cast(pa.float64(), safe=False) if len(ticks) else ticks
        values = np.asarray(days.to_numpy(zero_copy_only=False), dtype=np.float64) / UNITS["us"]
        return values, np.zeros(len(column), dtype=np.bool_)
    if form in UNITS:
        numbers, odd = parse_numbers(column)
        return numbers / UNITS[form], odd
    return text_days(clean_texts(column), form)


def text_days(texts: Any, form: str) -> tuple[Array, Mask]:
    """Return days since 1970 (b,) of an Arrow array of texts, and which are no dates."""
    pa = arrow()
    absent = texts.is_null().to_numpy(zero_copy_only=False)
    found = pa.compute.extract_regex(texts, _PATTERNS[form])
    there = ~found.is_null().to_numpy(zero_copy_only=False)

    def field(name: str, otherwise: float) -> Array:
        places = [found.type.field(i).name for i in range(found.type.num_fields)]
        if name not in places:
            return np.full(len(texts), otherwise)
        # A part that a text does not have is empty.
        words = pa.compute.struct_field(found, name)
        words = pa.compute.if_else(pa.compute.equal(words, ""), None, words)
        numbers = words.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return np.where(np.isnan(numbers), otherwise, numbers)

    hours = field("hour", 0.0) + field("minute", 0.0) / 60 + field("second", 0.0) / 3600
    good = there & (hours < 24.0001)
    days = hours / 24
    if form != "clock":
        year, month, day = (field(name, 1.0) for name in ("year", "month", "day"))
        good &= (month >= 1) & (month <= 12) & (day >= 1) & (year >= 1)
        months = np.where(good, (year - 1970) * 12 + month - 1, 0).astype(np.int64)
        starts = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        ends = (months + 1).astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
        good &= day <= ends - starts
        signs = pa.compute.struct_field(found, "sign").fill_null("")
        sign = np.where(signs.to_numpy(zero_copy_only=False) == "-", -1.0, 1.0)
        days = days + starts + day - 1 - sign * (field("off", 0.0) + field("min", 0.0) / 60) / 24
    return np.where(good, days, math.nan), ~good & ~absent


def from_text(text: str) -> float | None:
    """Return days since 1970 of an ISO date; None if it is none."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / 86400
