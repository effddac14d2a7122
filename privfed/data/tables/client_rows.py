"""Rows of remote users, from a CSV file with a header: numbers only, one of them the target."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from privfed.data.tables.forgiving_text import ForgivingStream
from privfed.foundation.errors import ConfigError, nearest
from privfed.foundation.linalg import Array

USER = "user"
"""Name of the column with the user of each row. Rows of other users are not read."""


def read_own_rows(
    path: Path,
    target: str,
    features: Sequence[str] | None = None,
    user: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, tuple[Array, Array]]:
    """Read the rows of one user, or of all users in the file.

    A row with a value that is no finite number, or with too few or too many values, is left out,
    and `say` is told. Such a row must not keep other users away, and whether a node takes part must
    not depend on what a user's rows say.

    Args:
        path: CSV file.
        target: column of the targets.
        features: columns of the features, in this order; None: all others by name, so that files
            with the same columns in another order give the same features.
        user: name of the user; None: all users in the order of their names.
        say: prints a line for the owner of the file.

    Returns:
        X (m, d) and y (m,) by name of the user; m is 0 if all rows of a user were left out.

    Raises:
        ConfigError: if the file cannot be read, lacks a column or has no rows.
    """
    lines = _records(path)
    _, first = next(lines, (0, None))
    if first is None:
        raise ConfigError(f"{path}: is empty")
    header = [name.strip() for name in first]
    places = {name: place for place, name in enumerate(header)}
    if len(places) < len(header):
        raise ConfigError(f"{path}: a column's name appears twice: {', '.join(header)}")
    wanted = list(features) if features is not None else features_of(header, target)
    for name in (target, *wanted):
        if name not in places:
            raise ConfigError(f"{path}: has no column {name!r}; {nearest(name, header)}")
    if user is None and USER not in places:
        raise ConfigError(
            f"{path}: has no column {USER!r} that says whose row it is; {nearest(USER, header)}"
        )
    table: dict[str, list[list[float]]] = {}
    left_out: list[str] = []
    for number, row in lines:
        if row is None or len(row) != len(header):
            left_out.append(f"line {number} has {len(row or ())} values, the header {len(header)}")
            continue
        whose = row[places[USER]].strip() if USER in places else str(user)
        if user not in (None, whose):
            continue
        mine = table.setdefault(whose, [])
        try:
            mine.append([_number(row[places[name]], number, name) for name in (*wanted, target)])
        except ValueError as error:
            left_out.append(str(error))
    if left_out:
        say(f"{path}: {len(left_out)} row(s) left out, the first because {left_out[0]}")
    if not table and not (left_out and user is not None and USER not in places):
        raise ConfigError(
            f"{path}: has no rows"
            + (f" of user {user!r}" if USER in places and user is not None else "")
        )
    if not table:
        table[str(user)] = []
    width = len(wanted) + 1
    arrays = {whose: np.array(table[whose]).reshape(-1, width) for whose in sorted(table)}
    return {whose: (numbers[:, :-1], numbers[:, -1]) for whose, numbers in arrays.items()}


def _records(path: Path) -> Iterator[tuple[int, list[str] | None]]:
    """Yield the number and the values of each line that is not empty; None if it is no record.

    Raises:
        ConfigError: if the file cannot be read.
    """
    try:
        with ForgivingStream(path.open("rb"), ",") as raw:
            text = io.TextIOWrapper(io.BufferedReader(raw), "utf-8-sig", newline="")
            records = csv.reader(text)
            for number in itertools.count(1):
                try:
                    row: list[str] | None = next(records)
                except StopIteration:
                    return
                except csv.Error:  # for example a value of many thousand letters
                    row = None
                if row is None or row:
                    yield number, row
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error


def features_of(header: Sequence[str], target: str) -> list[str]:
    """Return the columns that are features, sorted by name, where nobody says which are."""
    return sorted(name.strip() for name in header if name.strip() not in (target, USER))


def columns_digest(path: Path, target: str) -> str:
    """Return a hash of the names of a file's features, by which nodes with other ones are noticed.

    Raises:
        ConfigError: if the file cannot be read.
    """
    _, first = next(_records(path), (0, None))
    names = "\0".join(features_of(first or (), target))
    return hashlib.sha256(b"privfed columns\0" + names.encode()).hexdigest()[:32]


def has_users(path: Path) -> bool:
    """Return whether a file has a column with the user of each row.

    Raises:
        ConfigError: if the file cannot be read.
    """
    _, first = next(_records(path), (0, None))
    return USER in [name.strip() for name in first or ()]


def _number(text: str, line: int, column: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"line {line}, column {column!r}: {text[:40]!r} is not a finite number")
    return number
