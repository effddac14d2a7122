"""Opening of a table in a file, whose format is recognised by its first bytes."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from pathlib import Path

from privfed.data.tables.object_files import JsonLinesTable, WorkbookTable, is_workbook
from privfed.data.tables.table_files import CsvTable, ParquetTable, TableReader, arrow
from privfed.foundation.errors import ConfigError


def open_table(given: str | Path, forgiving: bool = False) -> TableReader:
    """Open the table in a file. Its name does not matter.

    Args:
        given: path of the file.
        forgiving: whether a damaged line of text harms nothing but itself.

    Raises:
        ConfigError: if it cannot be read, is no table, or repeats a column's name.
    """
    arrow()
    path = Path(given).expanduser()
    if path.is_dir():
        raise ConfigError(
            f"{path}: is a folder; data.path must be one CSV, Parquet, Excel or JSON lines file"
        )
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file (data.path)")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if magic.startswith(b"PK") and not is_workbook(path):
        raise ConfigError(
            f"{path}: is a zip archive and no workbook; unpack it, and give the table inside"
        )
    if magic.startswith(b"\xd0\xcf\x11\xe0"):
        raise ConfigError(f"{path}: is an old Excel workbook (.xls); save it as .xlsx or CSV")
    if magic.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{path}: is UTF-16 text; save the table as UTF-8")
    zipped = magic.startswith(b"\x1f\x8b")
    table: TableReader
    if magic == b"PAR1":
        table = ParquetTable(path, forgiving)
    elif magic.startswith(b"PK"):
        table = WorkbookTable(path)
    elif _first_letter(path, zipped) in (b"{", b"["):
        table = JsonLinesTable(path, zipped, forgiving)
    else:
        table = CsvTable(path, zipped, forgiving)
    twice = [name for name, count in Counter(table.header).items() if count > 1 and name]
    if twice:
        raise ConfigError(f"{path}: two columns are called {twice[0]!r}")
    return table


def _first_letter(path: Path, zipped: bool) -> bytes:
    """Return the first byte of a text that is no space or mark of its encoding."""
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    except (OSError, EOFError, zlib.error):  # the reader says what is wrong
        return b""
