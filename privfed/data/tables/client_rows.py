"""Rows of remote users, from a CSV file with a header: numbers only, one of them the target."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from privfed.foundation.errors import ConfigError, nearest
from privfed.foundation.linalg import Array

USER = "user"
"""Name of the column with the user of each row. Rows of other users are not read."""


def read_own_rows(
    path: Path, target: str, features: Sequence[str] | None = None, user: str | None = None
) -> dict[str, tuple[Array, Array]]:
    """Read the rows of one user, or of all users in the file.

    Args:
        path: CSV file.
        target: column of the targets.
        features: columns of the features, in this order; None: all others in the file's order.
        user: name of the user; None: all users in the order of their names.

    Returns:
        X (m, d) and y (m,) by name of the user.

    Raises:
        ConfigError: if the file cannot be read, lacks a column or has a value that is not a finite
            number.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = [(number, row) for number, row in enumerate(csv.reader(file), start=1) if row]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error
    if not lines:
        raise ConfigError(f"{path}: is empty")
    header = [name.strip() for name in lines[0][1]]
    places = {name: place for place, name in enumerate(header)}
    if len(places) < len(header):
        raise ConfigError(f"{path}: a column's name appears twice: {', '.join(header)}")
    wanted = (
        list(features)
        if features is not None
        else [name for name in header if name not in (target, USER)]
    )
    for name in (target, *wanted):
        if name not in places:
            raise ConfigError(f"{path}: has no column {name!r}; {nearest(name, header)}")
    if user is None and USER not in places:
        raise ConfigError(
            f"{path}: has no column {USER!r} that says whose row it is; {nearest(USER, header)}"
        )
    table: dict[str, list[list[float]]] = {}
    for number, row in lines[1:]:
        if len(row) != len(header):
            raise ConfigError(
                f"{path}: line {number} has {len(row)} values, the header {len(header)}"
            )
        whose = row[places[USER]].strip() if USER in places else str(user)
        if user in (None, whose):
            numbers = [_number(row[places[name]], path, number, name) for name in (*wanted, target)]
            table.setdefault(whose, []).append(numbers)
    if not table:
        raise ConfigError(
            f"{path}: has no rows"
            + (f" of user {user!r}" if USER in places and user is not None else "")
        )
    arrays = {whose: np.array(table[whose]) for whose in sorted(table)}
    return {whose: (numbers[:, :-1], numbers[:, -1]) for whose, numbers in arrays.items()}


def has_users(path: Path) -> bool:
    """Return whether a file has a column with the user of each row.

    Raises:
        ConfigError: if the file cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return USER in [name.strip() for name in next(csv.reader(file), [])]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error


def _number(text: str, path: Path, line: int, column: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"{path}: line {line}, column {column!r}: {text[:40]!r} is not a finite number"
        )
    return number
