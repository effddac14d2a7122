"""What all sections of the benchmark share: rows, and how they are shown and compared.

A section measures and returns rows, which are dicts of names and numbers only. Its columns say how
a row is shown, in the terminal and in Markdown, and which of its numbers are quantities to watch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

Row = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """How much to measure: `quick` takes small sizes once, `long` adds what takes minutes."""

    quick: bool = False
    long: bool = False

    @property
    def repetitions(self) -> int:
        """Repetitions of work that takes a second or less."""
        return 1 if self.quick else 5

    @property
    def few(self) -> int:
        """Repetitions of work that takes longer."""
        return 1 if self.quick else 3

    @property
    def size(self) -> str:
        """Name of the sizes; numbers of different sizes are never compared."""
        return "quick" if self.quick else "full"


@dataclass(frozen=True)
class Column:
    """One number or name of a row.

    Attributes:
        heading: heading of the column.
        key: key of the row.
        form: format of a number, such as ",.1f".
        scale: factor by which the number is multiplied to be shown.
        unit: unit of the number.
        better: "higher" or "lower" makes it a quantity that is compared from run to run, "near" a
            quantity that only has a bound.
        relative: whether it is a ratio to a reference of the same run, which a busy machine changes
            less.
    """

    heading: str
    key: str
    form: str = ""
    scale: float = 1
    unit: str = ""
    better: str = ""
    relative: bool = False

    def cell(self, row: Row) -> str:
        """Return the row's entry as text, or a dash if there is none."""
        value = row.get(self.key)
        if value is None:
            return "-"
        return format(self.scale * value, self.form) if self.form else str(value)


@dataclass(frozen=True)
class Measurement:
    """One quantity under a name that stays the same from run to run."""

    name: str
    value: float
    unit: str
    better: str
    relative: bool


@dataclass(frozen=True)
class Section:
    """A part of the benchmark.

    Attributes:
        name: name on the command line.
        heading: heading on the page.
        title: title of the table; a format that the first row fills in, as are the headings.
        about: what is measured, and against what; printed above the table on the page.
        work: measures and returns rows.
        columns: columns of the table.
        label: keys that distinguish rows.
    """

    name: str
    heading: str
    title: str
    about: str
    work: Callable[[Effort], list[Row]]
    columns: Sequence[Column]
    label: Sequence[str] = field(default=())

    def titled(self, rows: Sequence[Row]) -> str:
        """Return the title of the table."""
        return filled(self.title, rows[0])

    def headings(self, rows: Sequence[Row]) -> list[str]:
        """Return the headings of the columns."""
        return [filled(column.heading, rows[0]) for column in self.columns]

    def cells(self, rows: Sequence[Row]) -> list[list[str]]:
        """Return the text of all cells."""
        return [[column.cell(row) for column in self.columns] for row in rows]

    def table(self, rows: Sequence[Row]) -> Table:
        """Return the table for the terminal."""
        table = Table(title=self.titled(rows), title_justify="left")
        for heading, column in zip(self.headings(rows), self.columns, strict=True):
            table.add_column(heading, justify="right" if column.form else "left")
        for line in self.cells(rows):
            table.add_row(*line)
        return table

    def markdown(self, rows: Sequence[Row]) -> str:
        """Return the table for the page."""
        rule = ["--:" if column.form else "---" for column in self.columns]
        return markdown_table([self.headings(rows), rule, *self.cells(rows)])

    def measurements(self, rows: Sequence[Row]) -> list[Measurement]:
        """Return the quantities to compare."""
        return [
            Measurement(
                "/".join([self.name, *(str(row.get(key)) for key in self.label), column.key]),
                float(row[column.key]),
                column.unit,
                column.better,
                column.relative,
            )
            for row in rows
            for column in self.columns
            if column.better and row.get(column.key) is not None
        ]


def filled(text: str, row: Row) -> str:
    """Return the text filled in with a row's entries.

    The text stays as it is if the row has other entries, as rows of an older benchmark may have.
    """
    try:
        return text.format(**row)
    except (KeyError, ValueError, TypeError):
        return text


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; lines: heading, rule and rows."""
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines
    )


def seconds(work: Callable[[], Any], repetitions: int) -> float:
    """Return the median seconds of one call."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
