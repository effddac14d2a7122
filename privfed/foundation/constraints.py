"""Constraints on settings, written beside the parameter they constrain and checked in one place.

A constructor says what each of its settings may be with `typing.Annotated`:

    def __init__(self, step: Annotated[float, POSITIVE], eta: Annotated[float, POSITIVE] | None)

`check_settings` compares given values with these constraints when an object is made from the
configuration, and raises a `ConfigError` that names the key, what was given and what is allowed.
None passes where the annotation allows None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Protocol, Union, get_args, get_origin, get_type_hints

from privfed.foundation.errors import (
    ConfigError,
    check_flag,
    check_number,
    check_positive,
    check_whole,
    nearest,
)


class Constraint(Protocol):
    """What a setting may be."""

    def check(self, key: str, value: Any) -> None:
        """Raise a ConfigError that names `key` unless `value` is allowed."""
        ...


@dataclass(frozen=True)
class Number:
    """A number for which `test` holds; `allowed` says so in words."""

    test: Callable[[float], bool]
    allowed: str

    def check(self, key: str, value: Any) -> None:
        """See :class:`Constraint`."""
        check_number(key, value, self.test, self.allowed)


@dataclass(frozen=True)
class Positive:
    """A finite number above 0."""

    def check(self, key: str, value: Any) -> None:
        """See :class:`Constraint`."""
        check_positive(key, value)


@dataclass(frozen=True)
class Whole:
    """A whole number of at least `least`."""

    least: int = 1

    def check(self, key: str, value: Any) -> None:
        """See :class:`Constraint`."""
        check_whole(key, value, self.least)


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def check(self, key: str, value: Any) -> None:
        """See :class:`Constraint`."""
        check_flag(key, value)


@dataclass(frozen=True)
class Choice:
    """One of some names; a name that is close to what was given is suggested."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def check(self, key: str, value: Any) -> None:
        """See :class:`Constraint`."""
        if value not in self.names:
            hint, _, _ = nearest(str(value), self.names).rpartition("known:")
            raise ConfigError.of(key, value, f"{hint}must be one of {', '.join(self.names)}")


@dataclass(frozen=True)
class Key:
    """Full key of a setting whose parameter has another name, such as `rounds` of any group."""

    name: str


POSITIVE = Positive()
WHOLE = Whole()
FLAG = Flag()
AT_LEAST_ZERO = Number(lambda x: 0 <= x < float("inf"), "must be a number of at least 0")
Rounds = Annotated[int, WHOLE, Key("rounds")]
"""The number of communication rounds: a top-level key."""


def check_settings(group: str, made: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    """Check settings against the constraints in a constructor's signature.

    Args:
        group: group of the configuration that the settings come from, such as `algo`; their keys
            are `group.name` unless a `Key` says otherwise.
        made: class or function that takes the settings.
        settings: values by name of the parameter.

    Raises:
        ConfigError: for the first value that is not allowed.
    """
    for name, (constraints, optional) in constraints_of(made).items():
        if name not in settings or (optional and settings[name] is None):
            continue
        key = next((c.name for c in constraints if isinstance(c, Key)), f"{group}.{name}")
        for constraint in constraints:
            if not isinstance(constraint, Key):
                constraint.check(key, settings[name])


@cache
def constraints_of(made: Callable[..., Any]) -> dict[str, tuple[list[Any], bool]]:
    """Return the constraints of each parameter by name, and whether it may be None."""
    found: dict[str, tuple[list[Any], bool]] = {}
    for function in constructors(made):
        for name, hint in get_type_hints(function, include_extras=True).items():
            constraints = list(_constraints(hint))
            if constraints:
                found.setdefault(name, (constraints, _allows_none(hint)))
    return found


def parameters_of(made: Callable[..., Any]) -> list[str]:
    """Return the names of all parameters of a class or function, also those passed on by **."""
    names: dict[str, None] = {}
    for function in constructors(made):
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name != "self" and parameter.kind not in (
                inspect.Parameter.VAR_KEYWORD,
                inspect.Parameter.VAR_POSITIONAL,
            ):
                names[parameter.name] = None
    return list(names)


def constructors(made: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield the constructor of a class and, as long as one passes ** on, those of its bases."""
    if not inspect.isclass(made):
        yield made
        return
    for kind in made.__mro__:
        function = kind.__dict__.get("__init__")
        if function is None or kind is object:
            continue
        yield function
        kinds = {p.kind for p in inspect.signature(function).parameters.values()}
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            return


def _constraints(hint: Any) -> Iterator[Any]:
    if get_origin(hint) is Annotated:
        yield from (c for c in get_args(hint)[1:] if isinstance(c, Key) or hasattr(c, "check"))
    elif get_origin(hint) in (Union, UnionType):
        for part in get_args(hint):
            yield from _constraints(part)


def _allows_none(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        return _allows_none(get_args(hint)[0])
    return get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
