"""Dates and times as numbers: days since 1970, and where in the week, year and day they lie.

A column of dates becomes one number for the trend and, for each cycle, the sine and the cosine of
its phase: the last day of a week is then as near to the first as any two days are. Numbers of a
cycle lie in [-1, 1] whatever the data, so they need no release of their own.

    part      numbers           tells
    days      1                 days since 1970, fractions included
    weekday   sine and cosine   day of the week
    month     sine and cosine   month of the year
    hour      sine and cosine   time of the day
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from privfed.foundation.linalg import Array

TEXTS = ("iso", "dmy", "mdy", "clock")
"""Forms of dates as text; `clock` is a time of the day without a date."""
UNITS = {"s": 86400.0, "ms": 86400e3, "us": 86400e6, "ns": 86400e9}
"""Forms of dates as numbers since 1970, and their number per day."""
FORMS = (*TEXTS, *UNITS)

CYCLES = ("weekday", "month", "hour")
PARTS = ("days", *CYCLES)

USUAL_YEARS = (7305.0, 29220.0)
"""Days since 1970 of the years 1990 to 2049, in which numbers may be taken for dates."""


@dataclass(frozen=True)
class DatePart:
    """One number of a date.

    Attributes:
        column: column of the dates.
        form: one of FORMS.
        part: one of PARTS.
        sine: whether it is the sine of a cycle; otherwise the cosine.
    """

    column: str
    form: str
    part: str = "days"
    sine: bool = False

    @property
    def name(self) -> str:
        """Name of the encoded column."""
        if self.part == "days":
            return self.column
        return f"{self.column} {self.part} {'sin' if self.sine else 'cos'}"

    def of(self, days: Array) -> Array:
        """Return the number that days (b,) since 1970 become."""
        if self.part == "days":
            return days
        phase = 2 * np.pi * phases(days, self.part)
        return np.sin(phase) if self.sine else np.cos(phase)


def parts_of(column: str, form: str, parts: tuple[str, ...]) -> tuple[DatePart, ...]:
    """Return the numbers that a column of dates becomes."""
    return tuple(
        DatePart(column, form, part, sine)
        for part in parts
        for sine in ((False,) if part == "days" else (True, False))
    )


def phases(days: Array, cycle: str) -> Array:
    """Return where in a cycle days (b,) since 1970 lie, from 0 to below 1; NaN stays NaN."""
    if cycle == "hour":
        return days - np.floor(days)
    if cycle == "weekday":  # 1970-01-01 was a Thursday; weeks begin on Monday
        return ((np.floor(days) + 3) % 7) / 7
    there = np.isfinite(days) & (np.abs(days) < 1e8)
    months = np.floor(np.where(there, days, 0.0)).astype("datetime64[D]").astype("datetime64[M]")
    return np.where(there, (months.astype(np.int64) % 12) / 12, math.nan)


def as_text(days: float) -> str:
    """Return days since 1970 as an ISO date, with a time unless it is midnight."""
    moment = np.datetime64(round(days * 86400), "s")
    text = str(moment)
    return text.removesuffix("T00:00:00")


_STEPS = (365.25, 30.4375, 1.0, 1 / 24, 1 / 1440)
_ROUND = ("Y", "M", "D", "h", "m")


def round_bounds(low: float, high: float) -> tuple[float, float]:
    """Return bounds of dates at round moments outside: whole years, months, days, hours, minutes.

    The unit is the largest of which the dates span at least four.

    Args:
        low: first date, in days since 1970.
        high: last one.
    """
    units = (unit for unit, step in zip(_ROUND, _STEPS, strict=True) if high - low >= 4 * step)
    unit = next(units, _ROUND[-1])
    edges = [np.datetime64(int(np.floor(day * 86400)), "s") for day in (low, high)]
    first, last = (edge.astype(f"datetime64[{unit}]") for edge in edges)
    seconds = [moment.astype("datetime64[s]").astype(np.int64) for moment in (first, last + 1)]
    return float(seconds[0]) / 86400, float(seconds[1]) / 86400


def parts_worth(bounds: tuple[float, float] | None, timed: bool, form: str) -> tuple[str, ...]:
    """Return the parts that can tell something, by the bounds of the dates alone.

    Args:
        bounds: first and last day since 1970; None: unknown.
        timed: whether there are times of the day.
        form: see :func:`parse_dates`.
    """
    if form == "clock":
        return ("hour",)
    span = math.inf if bounds is None else bounds[1] - bounds[0]
    cycles = {"weekday": span >= 14, "month": span >= 300, "hour": timed}
    return ("days", *(cycle for cycle in CYCLES if cycles[cycle]))


def sense_unit(low: float, high: float, named: bool) -> str | None:
    """Return the unit in which whole numbers would be usual dates; None if they are none.

    Args:
        low: smallest number.
        high: largest number.
        named: whether the column's name speaks of time. All units but nanoseconds need that,
            because other numbers of their size are common.
    """
    first, last = USUAL_YEARS
    for unit, each in UNITS.items():
        if first * each <= low <= high <= last * each and (named or unit == "ns"):
            return unit
    return None
