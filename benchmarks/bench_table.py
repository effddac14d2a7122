"""What all sections of the benchmark share: rows of plain numbers, and one description of how they are shown and compared.

A section measures and returns rows: dicts of names, numbers and nothing else. Its columns say how a row is shown, in the
terminal and in Markdown, and which of its numbers are quantities to watch.
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
    """How much to measure: quick takes small sizes once, long adds what takes minutes."""

    quick: bool = False
    long: bool = False

    @property
    def repetitions(self) -> int:
        """Of what takes a second or less."""
        return 1 if self.quick else 5

    @property
    def few(self) -> int:
        """Of what takes longer."""
        return 1 if self.quick else 3

    @property
    def size(self) -> str:
        """Numbers of different sizes are never compared."""
        return "quick" if self.quick else "full"


@dataclass(frozen=True)
class Column:
    """One number or name of a row. form: a format such as ",.1f"; scale: what the number is multiplied by to be shown.

    better: "higher" or "lower" makes it a quantity that is compared from run to run; "near", that has a bound only.
    relative: it is a ratio to a reference that was measured in the same run, so that a busy machine changes it less.
    """

    heading: str
    key: str
    form: str = ""
    scale: float = 1
    unit: str = ""
    better: str = ""
    relative: bool = False

    def cell(self, row: Row) -> str:
        """The row's entry as text; a dash where there is none."""
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
    """A part of the benchmark. title and the columns' headings are formats that the first row fills in.

    label: the keys that tell rows apart. about: what is measured, against what; it stands above the table on the page.
    """

    name: str
    heading: str
    title: str
    about: str
    work: Callable[[Effort], list[Row]]
    columns: Sequence[Column]
    label: Sequence[str] = field(default=())

    def titled(self, rows: Sequence[Row]) -> str:
        """The table's title."""
        return filled(self.title, rows[0])

    def headings(self, rows: Sequence[Row]) -> list[str]:
        """Of the columns."""
        return [filled(column.heading, rows[0]) for column in self.columns]

    def cells(self, rows: Sequence[Row]) -> list[list[str]]:
        """The table's text."""
        return [[column.cell(row) for column in self.columns] for row in rows]

    def table(self, rows: Sequence[Row]) -> Table:
        """For the terminal."""
        table = Table(title=self.titled(rows), title_justify="left")
        for heading, column in zip(self.headings(rows), self.columns, strict=True):
            table.add_column(heading, justify="right" if column.form else "left")
        for line in self.cells(rows):
            table.add_row(*line)
        return table

    def markdown(self, rows: Sequence[Row]) -> str:
        """For the page."""
        rule = ["--:" if column.form else "---" for column in self.columns]
        return markdown_table([self.headings(rows), rule, *self.cells(rows)])

    def measurements(self, rows: Sequence[Row]) -> list[Measurement]:
        """The quantities to compare, by names."""
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
    """The text with a row's entries; as it is where the row, of an older benchmark perhaps, has other entries."""
    try:
        return text.format(**row)
    except (KeyError, ValueError, TypeError):
        return text


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Heading, rule and rows."""
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines
    )


def seconds(work: Callable[[], Any], repetitions: int) -> float:
    """Median time of one call."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
