"""Schemas as YAML files, which people read, edit and declare public."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from privfed.data.tables.date_parsing import from_text
from privfed.data.tables.date_parts import FORMS, PARTS, DatePart, as_text, parts_of
from privfed.data.tables.schema import (
    MISSING_POLICIES,
    Bounds,
    Categorical,
    Feature,
    Hashed,
    Numeric,
    Schema,
    Target,
    plain_text,
)
from privfed.foundation.errors import ConfigError, nearest

_HEAD = (
    "# What the columns of a table mean. Edit it, and give it back as data.schema=FILE: "
    "it is then public by declaration.\n"
    "# kinds: numeric (bounds: [lowest, highest], if public; origin: where values lie, if large "
    "and alike;\n"
    "# grouped: true for 1,234 and $5),\n"
    "# categorical (values: [...]), hashed (buckets: number), date (form: iso, dmy, mdy, clock, "
    "or s, ms, us, ns\n"
    "# since 1970; parts: of days, weekday, month, hour; bounds: [first, last], if public)\n"
)
_KEYS = {
    "numeric": ("bounds", "origin", "grouped"),
    "categorical": ("values",),
    "hashed": ("buckets",),
    "date": ("form", "parts", "bounds"),
}
_OPTIONAL = ("bounds", "origin", "grouped")


class _Texts(yaml.BaseLoader):
    """Reads every scalar as text, so that 05, yes and null can be values. Refuses repeated keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep=True)
        if len(mapping) < len(node.value):
            raise yaml.MarkedYAMLError(problem="the same key twice", problem_mark=node.start_mark)
        return mapping


class _Pleasant(yaml.SafeDumper):
    """Escapes texts that are not printable, because PyYAML alone loses some line breaks."""


def _text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
    )


_Pleasant.add_representer(str, _text)


def schema_to_yaml(schema: Schema) -> str:
    """Return the YAML text of a schema."""
    target = schema.target
    aim: dict[str, Any] = {
        "column": target.name,
        "kind": "numeric" if target.labels is None else "categorical",
    }
    aim |= (
        {"values": list(target.labels)}
        if target.labels is not None
        else _bounds_of(target.bounds) | _reading_of(target.origin, target.grouped)
    )
    columns: dict[str, dict[str, Any]] = {}
    for feature in schema.features:
        if isinstance(feature, Numeric) and feature.date is not None:
            _add_date(columns, feature, feature.date)
        elif isinstance(feature, Numeric):
            scale = _bounds_of(feature.bounds) | _reading_of(feature.origin, feature.grouped)
            columns[feature.name] = {"kind": "numeric", **scale}
        elif isinstance(feature, Categorical):
            columns[feature.name] = {"kind": "categorical", "values": list(feature.values)}
        else:
            columns[feature.name] = {"kind": "hashed", "buckets": feature.buckets}
    tree = {
        "user": schema.user,
        "target": aim,
        "time": schema.time,
        "missing": schema.missing,
        "columns": columns,
    }
    tree = {key: value for key, value in tree.items() if value is not None}
    return _HEAD + yaml.dump(
        tree,
        Dumper=_Pleasant,
        sort_keys=False,
        default_flow_style=None,
        allow_unicode=True,
        width=100,
    )


def schema_from_yaml(text: str, where: str) -> Schema:
    """Return the schema in a YAML text.

    Args:
        text: the text.
        where: name of its file, for messages.

    Raises:
        ConfigError: if it is no schema; the message names the key.
    """
    try:
        tree = yaml.load(text, Loader=_Texts)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(
            f"{where}: {place}is not YAML ({getattr(error, 'problem', None) or error})"
        ) from error
    _keys(tree, where, "", ("user", "target", "columns"), ("time", "missing"))
    target = _target(tree["target"], where)
    columns = tree["columns"]
    if not isinstance(columns, Mapping) or not columns:
        raise _bad(where, "columns", columns, "must list at least one column with its kind")
    features = tuple(f for name in columns for f in _features(columns[name], name, where))
    missing = tree.get("missing", "mean")
    if missing not in MISSING_POLICIES:
        raise _bad(where, "missing", missing, nearest(str(missing), MISSING_POLICIES))
    roles = [("user", _name(tree, "user", where)), ("target", target.name)]
    time = _name(tree, "time", where) if "time" in tree else None
    for role, name in roles:
        if name in columns:
            raise ConfigError(
                f"{where}: columns: {name!r} is the {role} column and cannot be a feature"
            )
    if roles[0][1] == target.name:
        raise ConfigError(f"{where}: user and target are the same column, {target.name!r}")
    return Schema(roles[0][1], target, features, time, missing, declared=True)


def _target(tree: Any, where: str) -> Target:
    kind = _kind(tree, where, "target", ("column", "kind"), ("numeric", "categorical"))
    name = _name(tree, "column", where, "target.")
    if kind == "numeric":
        bounds, reading = _bounds(tree, where, "target"), _reading(tree, where, "target")
        return Target(name, None, bounds, *reading)
    labels = _values(tree, where, "target")
    if len(labels) < 2:
        raise _bad(where, "target.values", list(labels), "must be at least two labels")
    return Target(name, labels)


def _features(tree: Any, name: str, where: str) -> tuple[Feature, ...]:
    """Return what a column is read as: one feature, or several parts of a date."""
    at = f"columns.{name}"
    kind = _kind(tree, where, at, ("kind",), tuple(_KEYS))
    if kind == "numeric":
        return (Numeric(name, _bounds(tree, where, at), None, *_reading(tree, where, at)),)
    if kind == "categorical":
        return (Categorical(name, _values(tree, where, at)),)
    if kind == "date":
        return _date(tree, name, where)
    buckets = tree["buckets"]
    if not isinstance(buckets, str) or not buckets.isdecimal() or int(buckets) < 1:
        raise _bad(where, f"{at}.buckets", buckets, "must be a whole number of at least 1")
    return (Hashed(name, int(buckets)),)


def _date(tree: Mapping[str, Any], name: str, where: str) -> tuple[Feature, ...]:
    at = f"columns.{name}"
    if tree["form"] not in FORMS:
        raise _bad(where, f"{at}.form", tree["form"], nearest(str(tree["form"]), FORMS))
    parts = _values(tree, where, at, "parts")
    for part in parts:
        if part not in PARTS:
            raise _bad(where, f"{at}.parts", part, nearest(part, PARTS))
    return date_features(name, tree["form"], parts, _bounds(tree, where, at))


def date_features(
    name: str, form: str, parts: tuple[str, ...], bounds: Bounds | None
) -> tuple[Numeric, ...]:
    """Return the numbers that a column of dates becomes.

    Args:
        name: the column.
        form: one of FORMS.
        parts: some of PARTS.
        bounds: public first and last day since 1970, if any. Cycles have bounds in any case.
    """
    return tuple(
        Numeric(part.name, bounds if part.part == "days" else (-1.0, 1.0), part)
        for part in parts_of(name, form, parts)
    )


def _add_date(columns: dict[str, dict[str, Any]], feature: Numeric, date: DatePart) -> None:
    """Add one part of a date to the entry of its column."""
    entry = columns.setdefault(date.column, {"kind": "date", "form": date.form, "parts": []})
    if date.part not in entry["parts"]:
        entry["parts"].append(date.part)
    if date.part == "days" and feature.bounds is not None:
        entry["bounds"] = [as_text(day) for day in feature.bounds]


def _kind(tree: Any, where: str, at: str, always: tuple[str, ...], kinds: tuple[str, ...]) -> str:
    """Return the kind, after checking that the keys are those that it needs."""
    if not isinstance(tree, Mapping) or "kind" not in tree:
        raise ConfigError(f"{where}: {at}: must have a kind: {', '.join(kinds)}")
    kind = tree["kind"]
    if kind not in kinds:
        raise _bad(where, f"{at}.kind", kind, nearest(str(kind), kinds))
    needed = always + tuple(key for key in _KEYS[kind] if key not in _OPTIONAL)
    _keys(tree, where, f"{at}.", needed, _KEYS[kind])
    return str(kind)


def _keys(tree: Any, where: str, at: str, needed: Iterable[str], optional: Iterable[str]) -> None:
    needed = tuple(needed)
    known = dict.fromkeys((*needed, *optional))
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{where}: must have the keys {', '.join(known)}")
    for key in tree:
        if key not in known:
            raise ConfigError(f"{where}: {at}{key}: is no key here; {nearest(str(key), known)}")
    for key in needed:
        if key not in tree:
            raise ConfigError(f"{where}: {at}{key}: is missing")


def _name(tree: Mapping[str, Any], key: str, where: str, at: str = "") -> str:
    if not isinstance(tree[key], str) or not tree[key]:
        raise _bad(where, at + key, tree[key], "must be the name of a column")
    return str(tree[key])


def _values(tree: Mapping[str, Any], where: str, at: str, key: str = "values") -> tuple[str, ...]:
    values = tree[key]
    if (
        not isinstance(values, list)
        or not values
        or not all(isinstance(value, str) for value in values)
    ):
        such = "[red, green]" if key == "values" else "[days, hour]"
        raise _bad(where, f"{at}.{key}", values, f"must be a list of {key} such as {such}")
    seen: set[str] = set()
    for value in values:
        if plain_text(value) in seen:
            raise ConfigError(f"{where}: {at}.{key}: {value!r} appears twice")
        seen.add(plain_text(value))
    return tuple(values)


def _bounds(tree: Mapping[str, Any], where: str, at: str) -> Bounds | None:
    return check_bounds(tree["bounds"], f"{where}: {at}.bounds") if "bounds" in tree else None


def _reading(tree: Mapping[str, Any], where: str, at: str) -> tuple[float, bool]:
    """Return origin and grouped."""
    try:
        origin = float(tree.get("origin", 0.0))
    except (TypeError, ValueError):
        origin = math.nan
    if not math.isfinite(origin):
        raise _bad(where, f"{at}.origin", tree["origin"], "must be a number")
    grouped = tree.get("grouped", "false")
    if grouped not in ("true", "false"):
        raise _bad(where, f"{at}.grouped", grouped, "must be true or false")
    return origin, grouped == "true"


def check_bounds(bounds: Any, key: str) -> Bounds:
    """Return bounds as two finite numbers, the lower one first.

    Args:
        bounds: what was given: numbers, or ISO dates, which become days since 1970.
        key: name of the setting, for the message.

    Raises:
        ConfigError: if `bounds` is anything else.
    """
    try:
        low, high = map(_bound, bounds if not isinstance(bounds, str) else ())
    except (TypeError, ValueError):
        low = high = math.nan
    if not -math.inf < low < high < math.inf:
        raise ConfigError.of(
            key, bounds, "must be [lowest, highest], two numbers with lowest < highest"
        )
    return low, high


def _bound(given: Any) -> float:
    day = from_text(given) if isinstance(given, str) and "-" in given[1:] else None
    return float(given) if day is None else day


def _reading_of(origin: float, grouped: bool) -> dict[str, Any]:
    where = {"origin": int(origin) if origin.is_integer() else origin} if origin else {}
    return where | ({"grouped": True} if grouped else {})


def _bounds_of(bounds: Bounds | None) -> dict[str, list[float]]:
    whole = [int(b) if float(b).is_integer() and abs(b) < 1e15 else float(b) for b in bounds or ()]
    return {"bounds": whole} if bounds else {}


def _bad(where: str, key: str, given: object, allowed: str) -> ConfigError:
    shown = str(given)
    return ConfigError.of(
        f"{where}: {key}", shown if len(shown) <= 60 else shown[:57] + "...", allowed
    )
