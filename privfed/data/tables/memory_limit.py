"""Check that a table fits into memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from privfed.data.tables.table_files import TableReader
from privfed.foundation.errors import ConfigError

MemoryProbe = Callable[[], int | None]
"""Function that returns the available bytes, or None if they are unknown."""

OVERHEAD = 100 << 20
"""Bytes that reading needs besides the table."""


def available_memory() -> int | None:
    """Return the bytes that are available without swapping; None if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None
    )


def check_memory(table: TableReader, columns: int, available: MemoryProbe) -> None:
    """Raise a ConfigError if a table does not fit, before the system kills the process.

    Args:
        table: the table.
        columns: number of features.
        available: returns the available bytes.
    """
    # 4 bytes per feature, and user, target and time; twice, because arrays are joined from pieces.
    need = int(table.rows * (4 * columns + 24) * 2) + OVERHEAD
    have = available()
    if have is not None and need > have:
        size = f"{columns} columns of about {table.rows:,.0f} rows"
        sizes = f"{size} need {need / 2**30:.1f} GB of memory"
        helps = "take fewer columns with data.features=[...]"
        raise ConfigError(
            f"{table.path}: {sizes}, {have / 2**30:.1f} GB are free; {helps}, or fewer rows"
        )
