"""Tables in workbooks (.xlsx) and in JSON lines: rows of values, handed on as text like CSV."""

from __future__ import annotations

import gzip
import itertools
import json
import zipfile
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from privfed.data.tables.forgiving_text import DAMAGED
from privfed.data.tables.hints import column_list
from privfed.data.tables.table_files import MISSING, Columns, TableReader, arrow
from privfed.foundation.errors import ConfigError

ROWS = 1 << 16
"""Rows that are handed on at a time."""
KEYS = 1_000
"""Objects at the beginning of a file of JSON lines that have to name all columns."""
SHEET = "xl/workbook.xml"
"""What a zip archive holds if it is a workbook."""


def is_workbook(path: Path) -> bool:
    """Return whether a zip archive is a workbook."""
    try:
        with zipfile.ZipFile(path) as archive:
            return SHEET in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


class WorkbookTable(TableReader):
    """First sheet of an Excel workbook, its first row the header.

    Args:
        path: the file.

    Raises:
        ConfigError: if openpyxl is not installed, or the workbook cannot be read or is empty.
    """

    def __init__(self, path: Path):
        self.path = path
        first = next(self._records(), None)
        if first is None or not any(value is not None for value in first):
            raise ConfigError(f"{path}: the first sheet is empty")
        self.header = tuple("" if value is None else text_of(value) or "" for value in first)
        self.rows = float(self.sheet_rows)

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, Columns]]:  # noqa: D102
        places = [self.header.index(name) for name in names]
        records = (row for row in itertools.islice(self._records(), 1, None) if any_value(row))
        for first, rows in _chunks(records):
            columns = [[row[p] if p < len(row) else None for row in rows] for p in places]
            yield first, {name: _texts(c) for name, c in zip(names, columns, strict=True)}

    def _records(self) -> Iterator[tuple[Any, ...]]:
        try:
            from openpyxl import load_workbook
        except ImportError as error:
            raise ConfigError(
                f"{self.path}: is an Excel workbook, which needs openpyxl: "
                "pip install 'privfed[excel]', or save the sheet as CSV"
            ) from error
        try:
            book = load_workbook(self.path, read_only=True, data_only=True)
            sheet = book.worksheets[0]
            self.sheet_rows = sheet.max_row or 1
            yield from sheet.iter_rows(values_only=True)
            book.close()
        except (OSError, KeyError, ValueError, IndexError, zipfile.BadZipFile) as error:
            raise ConfigError(
                f"{self.path}: the workbook cannot be read ({' '.join(str(error).split())[:120]})"
            ) from error


class JsonLinesTable(TableReader):
    """One JSON object per line, its keys the columns.

    Args:
        path: the file.
        zipped: whether it is compressed by gzip.
        forgiving: whether a line that is no object is left out, rather than being an error.

    Raises:
        ConfigError: if it cannot be read.
    """

    def __init__(self, path: Path, zipped: bool, forgiving: bool = False):
        self.path, self.zipped, self.forgiving = path, zipped, forgiving
        keys = (key for row in itertools.islice(self._records(), KEYS) for key in row)
        self.header = tuple(dict.fromkeys(keys))
        if not self.header:
            raise ConfigError(f"{path}: the first {KEYS:,} lines have no JSON object with keys")
        self.rows = float(path.stat().st_size * (5 if zipped else 1)) / (12 * len(self.header))

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, Columns]]:  # noqa: D102
        for first, rows in _chunks(self._records()):
            columns = {name: [row.get(name) for row in rows] for name in names}
            for name, values in columns.items():
                self._check(name, first, values)
            yield first, {name: _texts(values) for name, values in columns.items()}

    def _check(self, name: str, first: int, values: list[Any]) -> None:
        """Replace nested values where lines are forgiven; otherwise raise a ConfigError."""
        for place, value in enumerate(values):
            if not isinstance(value, list | dict):
                continue
            if not self.forgiving:
                hint = f"leave it out with {column_list('ignore', [name])}"
                raise self.fault(first + place, name, f"is no single value; {hint}")
            values[place] = None

    def _records(self) -> Iterator[dict[str, Any]]:
        with gzip.open(self.path) if self.zipped else self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError):
                    row = None
                if isinstance(row, dict):
                    yield row
                elif not self.forgiving:
                    whole = number == 1 and line.lstrip()[:1] == b"["
                    hint = " (one object per line, not a list of all)" if whole else ""
                    raise ConfigError(f"{self.path}: line {number} is no JSON object{hint}")


def text_of(value: Any) -> str | None:
    """Return a cell as text, as a CSV file would have it; None for a missing one."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    text = str(value).strip().replace("\0", DAMAGED)
    return None if text in MISSING else text


def any_value(row: Sequence[Any]) -> bool:
    """Return whether a row has a value: workbooks end in empty rows."""
    return any(value is not None for value in row)


def _texts(values: list[Any]) -> Any:
    pa = arrow()
    texts = [text_of(value) for value in values]
    return pa.array(
        [None if t is None else t.encode("utf-8", "replace").decode() for t in texts], pa.string()
    )


def _chunks(records: Iterator[Any]) -> Iterator[tuple[int, list[Any]]]:
    """Yield records in lists of at most ROWS, each with the number of its first."""
    first = 0
    while rows := list(itertools.islice(records, ROWS)):
        yield first, rows
        first += len(rows)
