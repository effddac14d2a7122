"""What can go wrong, each with the exit code the command line answers with."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable
from typing import Any


class PrivfedError(Exception):
    """A failure with a one-line explanation for a person."""

    exit_code = 1


class ConfigError(PrivfedError):
    """A bad setting or bad data: says which key, what was given and what is allowed."""

    exit_code = 2

    @classmethod
    def of(cls, key: str, given: object, allowed: str) -> ConfigError:
        """The usual form of the message: ``key=given: allowed``."""
        return cls(f"{key}={given}: {allowed}")


class BudgetError(PrivfedError):
    """A release would exceed the privacy budget; it did not happen."""

    exit_code = 3


class RefutedError(PrivfedError):
    """A privacy claim was put to the test and does not hold."""

    exit_code = 4


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``did you mean 'fedrep'? known: fedrep, oracle``."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{hint}known: {', '.join(known)}"


def check_number(key: str, value: Any, ok: Callable[[float], bool], allowed: str) -> Any:
    """The value if it is a number that is ok, otherwise a clear error."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not ok(value):
        raise ConfigError.of(key, value, allowed)
    return value


def check_positive(key: str, value: Any) -> Any:
    """A finite number above 0."""
    return check_number(key, value, lambda x: 0 < x < math.inf, "must be a positive number")


def check_flag(key: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ConfigError.of(key, value, "must be true or false")
    return value


def check_whole(key: str, value: Any, least: int = 1) -> Any:
    """A whole number of at least `least`."""
    allowed = f"must be a whole number of at least {least}"
    return check_number(key, value, lambda x: isinstance(x, int) and x >= least, allowed)
