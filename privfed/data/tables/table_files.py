"""Tables in files, read in batches: CSV (also .gz) and Parquet, recognised by their first bytes."""

from __future__ import annotations

import csv
import gzip
import io
import shlex
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from privfed.data.tables.forgiving_text import ForgivingStream
from privfed.data.tables.hints import column_list
from privfed.foundation.errors import ConfigError

MISSING = ("", "NA", "N/A", "n/a", "<NA>", "NaN", "nan", "null", "NULL", "None", "?", "-")
"""Texts that stand for a missing value."""

BLOCK = 1 << 23
"""Bytes of a CSV file that are parsed at a time; no line may be longer."""
ROWS = 1 << 16
"""Rows of a Parquet file that are read at a time."""
HEAD = 1 << 20
"""Bytes at the beginning of a file from which its format and number of rows are estimated."""

Columns = Mapping[str, Any]
"""Arrow arrays of one length, by name of their column."""


def arrow() -> Any:
    """Return the pyarrow module, an optional dependency that is imported when a table is read.

    Raises:
        ConfigError: if it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError("reading a table needs pyarrow: pip install 'privfed[tables]'") from error
    return pyarrow


class TableReader:
    """A table with named columns.

    Attributes:
        path: the file.
        header: names of the columns in the file's order.
        rows: approximate number of rows.
    """

    path: Path
    header: tuple[str, ...]
    rows: float
    comma = False
    """Whether the comma is the decimal separator."""

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, Columns]]:
        """Yield rows in batches.

        Args:
            names: columns to read.

        Yields:
            The number of the batch's first row, counted from 0, and its columns by name.

        Raises:
            ConfigError: if the file is damaged.
        """
        raise TypeError(f"{type(self).__name__} does not say how it is read")

    def place(self, row: int) -> str:
        """Return where a person finds a row, given its number."""
        return f"row {row + 1}"

    def fault(self, row: int, column: str, words: str) -> ConfigError:
        """Return the error that one cell is wrong.

        Args:
            row: number of the row.
            column: name of the column.
            words: what is wrong.
        """
        return ConfigError(f"{self.path}: {self.place(row)}, column {column!r}: {words}")


class CsvTable(TableReader):
    """Text with a header. The separator is the mark that is most frequent in the header.

    Separators are comma, semicolon, tab and the upright bar.

    Args:
        path: the file.
        zipped: whether it is compressed by gzip.
        forgiving: whether a damaged line harms nothing but itself
            (see :mod:`privfed.data.tables.forgiving_text`), rather than being an error.

    Raises:
        ConfigError: if it is empty or no text.
    """

    def __init__(self, path: Path, zipped: bool, forgiving: bool = False):
        self.path, self.zipped, self.forgiving = path, zipped, forgiving
        with self._guard(), self._open() as file:
            raw = file.read(HEAD)
        if not raw.strip():
            raise ConfigError(f"{path}: is empty")
        if b"\0" in (raw.partition(b"\n")[0] if forgiving else raw):
            raise ConfigError(f"{path}: is neither CSV in UTF-8 nor Parquet (it has zero bytes)")
        head = raw.decode("utf-8-sig", errors="replace").lstrip("\r\n")
        found = Counter(_unquoted(head.splitlines()[0]))
        self.separator = max(",;\t|", key=lambda mark: found[mark])
        self.comma = self.separator == ";"
        self.raw = next(csv.reader(io.StringIO(head, newline=""), delimiter=self.separator))
        self.header = tuple(name.strip() for name in self.raw)
        lines = max(1, raw.count(b"\n"))
        self.rows = lines if len(raw) < HEAD else _text_size(path, zipped) / (len(raw) / lines)

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, Columns]]:  # noqa: D102
        pa = arrow()
        # Without types, Arrow would guess them from the first block and fail on a later one.
        raw = {name: self.raw[self.header.index(name)] for name in names}
        convert = pa.csv.ConvertOptions(
            column_types=dict.fromkeys(raw.values(), pa.string()),
            include_columns=list(raw.values()),
            null_values=list(MISSING),
            strings_can_be_null=True,
        )
        parse = pa.csv.ParseOptions(
            delimiter=self.separator,
            newlines_in_values=not self.forgiving,
            invalid_row_handler=(lambda row: "skip") if self.forgiving else None,
        )
        options = {
            "parse_options": parse,
            "convert_options": convert,
            "read_options": pa.csv.ReadOptions(block_size=BLOCK),
        }
        first, last = 0, None
        with self._guard(), self._stream() as stream:
            for batch in pa.csv.open_csv(stream, **options):
                if len(batch):
                    yield first, {name: batch.column(raw[name]) for name in names}
                    first, last = first + len(batch), batch.slice(len(batch) - 1)
        if self.forgiving or last is None:
            return
        if any("\n" in str(value) for value in last.to_pylist()[0].values()):
            self._inspect()

    def place(self, row: int) -> str:  # noqa: D102
        return next(
            (
                f"line {line}"
                for number, (line, _) in enumerate(self._records(), -1)
                if number == row
            ),
            "line ?",
        )

    def _records(self, strict: bool = False) -> Iterator[tuple[int, list[str]]]:
        """Yield the first line and the fields of each record, the header first.

        Slow: for messages only.
        """
        with self._open() as file:
            text = io.TextIOWrapper(
                file, "utf-8-sig", errors="strict" if strict else "replace", newline=""
            )
            reader = csv.reader(text, delimiter=self.separator, strict=strict)
            line = 1
            for fields in reader:
                if fields:
                    yield line, fields
                line = reader.line_num + 1

    def _inspect(self) -> None:
        """Raise a ConfigError for the first line that is wrong, if there is one."""
        line = 1
        try:
            for line, fields in self._records(strict=True):
                if len(fields) != len(self.header):
                    many = "value" if len(fields) == 1 else "values"
                    counts = f"{len(fields)} {many}, the header {len(self.header)}"
                    raise ConfigError(f"{self.path}: line {line} has {counts}")
        except UnicodeDecodeError as error:
            with self._open() as file:
                line = next((i for i, text in enumerate(file, 1) if not _is_utf8(text)), line)
            raise ConfigError(
                f"{self.path}: line {line} is not UTF-8 text; save the table as UTF-8, as in "
                f"iconv -f CP1252 -t UTF-8 {shlex.quote(self.path.name)} > utf8.csv"
            ) from error
        except csv.Error as error:
            raise ConfigError(
                f"{self.path}: after line {line}: {error} (a quote that is never closed?)"
            ) from error

    def _stream(self) -> Any:
        """Return what Arrow reads."""
        if self.forgiving:
            return arrow().PythonFile(ForgivingStream(self._open(), self.separator), mode="r")
        return arrow().input_stream(str(self.path), compression="gzip" if self.zipped else None)

    def _open(self) -> Any:
        return gzip.open(self.path) if self.zipped else self.path.open("rb")

    def _guard(self) -> _Guard:
        return _Guard(self.path, self._inspect if hasattr(self, "header") else None)


class ParquetTable(TableReader):
    """Columns with types of their own.

    Args:
        path: the file.
        forgiving: whether text that is not UTF-8 harms nothing but its cell.
    """

    def __init__(self, path: Path, forgiving: bool = False):
        self.path, self.forgiving = path, forgiving
        with _Guard(path), arrow().parquet.ParquetFile(path) as file:
            self.header = tuple(file.schema_arrow.names)
            self.types = dict(zip(self.header, file.schema_arrow.types, strict=True))
            self.rows = file.metadata.num_rows
        if not self.header:
            raise ConfigError(f"{path}: is empty")

    def batches(self, names: Sequence[str]) -> Iterator[tuple[int, Columns]]:  # noqa: D102
        pa = arrow()
        for name in names:
            if pa.types.is_nested(self.types[name]):
                hint = f"leave it out with {column_list('ignore', [name])}"
                words = f"holds {self.types[name]} and not single values"
                raise ConfigError(f"{self.path}: column {name!r} {words}; {hint}")
        first = 0
        with _Guard(self.path), pa.parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=ROWS, columns=list(names)):
                if len(batch):
                    columns = {name: batch.column(name) for name in names}
                    if self.forgiving:
                        columns = {name: _readable(column) for name, column in columns.items()}
                    yield first, columns
                    first += len(batch)


class _Guard:
    """Turns libraries' errors on damaged files into one line; `inspect` may raise a better one."""

    def __init__(self, path: Path, inspect: Callable[[], None] | None = None):
        self.path, self.inspect = path, inspect

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        pa = arrow()
        if isinstance(error, EOFError | OSError | zlib.error):
            words = " ".join(
                str(
                    error.strerror if isinstance(error, OSError) and error.strerror else error
                ).split()
            )
            raise ConfigError(
                f"{self.path}: cannot be read, cut off or damaged ({words[:120]})"
            ) from error
        if isinstance(error, pa.ArrowException):
            if "straddling" in str(error):
                words = f"has a line of more than {BLOCK >> 20} MB"
                hint = "is it a table, and is every quote closed?"
                raise ConfigError(f"{self.path}: {words}; {hint}") from error
            if self.inspect is not None:
                self.inspect()
            raise ConfigError(
                f"{self.path}: cannot be read ({str(error).splitlines()[0][:120]})"
            ) from error


def _readable(column: Any) -> Any:
    """Return an Arrow column in which text that is not UTF-8 is replaced."""
    pa = arrow()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        values = column.cast(pa.large_binary()).to_pylist()
        texts = [None if value is None else value.decode(errors="replace") for value in values]
        return pa.array(texts, pa.string())
    return column


def _text_size(path: Path, zipped: bool) -> int:
    """Return the bytes of text in a file.

    For a .gz file this is an estimate: its end states the size modulo 2^32 of its last part only.
    """
    size = path.stat().st_size
    if not zipped:
        return size
    with path.open("rb") as file:
        file.seek(-4, io.SEEK_END)
        return max(int.from_bytes(file.read(4), "little"), 4 * size)


def _unquoted(line: str) -> str:
    return "".join(part for place, part in enumerate(line.split('"')) if place % 2 == 0)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
