"""Errors, each with the exit code of the command line."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from typing import Any


class PrivfedError(Exception):
    """Failure with a one-line explanation."""

    exit_code = 1


class ConfigError(PrivfedError):
    """Bad setting or bad data; says which key, what was given and what is allowed."""

    exit_code = 2

    @classmethod
    def of(cls, key: str, given: object, allowed: str) -> ConfigError:
        """Return an error with the usual message: ``key=given: allowed``."""
        return cls(f"{key}={given}: {allowed}")


class NoRowsError(ConfigError):
    """A table has no rows that can be used."""


class TooFewAnswersError(PrivfedError):
    """A step has too few answers; it was not released and may be asked again.

    Attributes:
        patience: seconds for which asking again makes sense.
    """

    def __init__(self, reason: str, patience: float) -> None:
        super().__init__(reason)
        self.patience = patience


class StoppedError(PrivfedError):
    """The run was stopped as asked, between two steps."""

    exit_code = 0


class BudgetError(PrivfedError):
    """A release would exceed the privacy budget; it did not happen."""

    exit_code = 3


class RefutedError(PrivfedError):
    """A privacy claim was tested and does not hold."""

    exit_code = 4


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as ``did you mean 'fedrep'? known: fedrep, oracle``."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{hint}known: {', '.join(known)}"


def check_number(key: str, value: Any, ok: Callable[[float], bool], allowed: str) -> Any:
    """Return `value` if it is a number for which `ok` holds.

    Args:
        key: key of the setting.
        value: given value.
        ok: test.
        allowed: what is allowed, in words.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not ok(value):
        raise ConfigError.of(key, value, allowed)
    return value


def check_positive(key: str, value: Any) -> Any:
    """Return `value` if it is a finite number above 0; raise a ConfigError otherwise."""
    return check_number(key, value, lambda x: 0 < x < math.inf, "must be a positive number")


def check_flag(key: str, value: Any) -> bool:
    """Return `value` if it is true or false; raise a ConfigError otherwise."""
    if not isinstance(value, bool):
        raise ConfigError.of(key, value, "must be true or false")
    return value


def check_whole(key: str, value: Any, least: int = 1) -> Any:
    """Return `value` if it is a whole number of at least `least`; raise a ConfigError otherwise."""
    allowed = f"must be a whole number of at least {least}"
    return check_number(key, value, lambda x: isinstance(x, int) and x >= least, allowed)
