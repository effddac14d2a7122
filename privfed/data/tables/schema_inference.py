"""Inference of a schema from a table: one pass over the file, then a rule and a note per column."""

from __future__ import annotations

import re

import numpy as np

from privfed.data.tables.column_profile import FEW_ROWS, Profile
from privfed.data.tables.date_parts import TEXTS, UNITS, as_text, parts_worth
from privfed.data.tables.hints import column_list
from privfed.data.tables.options import Options
from privfed.data.tables.schema import (
    Categorical,
    Feature,
    Hashed,
    Numeric,
    Schema,
    Target,
    ordered,
)
from privfed.data.tables.schema_file import date_features
from privfed.data.tables.table_files import TableReader
from privfed.foundation.errors import ConfigError, nearest

TARGETS = ("target", "y")
"""Names of the target's column if none is given."""
MOST_LABELS = 100
"""Largest number of labels of a target."""

_THINGS = (
    "item|movie|film|product|song|track|artist|album|book|joke|article|category|genre|type|"
    "city|country|region|zip|zipcode|postcode|store|shop|sku|brand|channel|device|page|campaign"
)
_ID = re.compile(rf"(?:.*[_\W])?(?i:id|{_THINGS})|.*[a-z]I[dD]")
_TIME = re.compile(
    r"(?i)(?:.*[_\W])?(?:time|timestamp|date|datetime|day|ts|stamp|epoch|when|since|created|updated)"
    r"(?:[_\W].*)?|.*(?:Time|Date|_at|_on)"
)
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")


def infer(table: TableReader, options: Options) -> tuple[Schema, tuple[str, ...]]:
    """Infer the schema of a table.

    Args:
        table: the table.
        options: what a person says about its columns.

    Returns:
        The schema, and notes on what was decided and why.

    Raises:
        ConfigError: if columns are missing, contradict their role or have mixed types.
    """
    target, features, notes = _roles(table, options)
    profiles = {name: Profile(options.most_categories) for name in features}
    profiles[target] = Profile(MOST_LABELS)
    for first, columns in table.batches([*profiles, options.user]):
        for name, profile in profiles.items():
            users = columns[options.user] if name != target else None
            profile.add(first, columns[name], table.comma, users)
    if not profiles[target].rows:
        raise ConfigError(f"{table.path}: has a header and no rows")
    rule = _Rules(table, options, alone=len(features) == 1)
    aim = rule.target(target, profiles[target])
    kept = tuple(f for name in features for f in rule.features(name, profiles[name]))
    if not kept:
        raise ConfigError(
            f"{table.path}: no feature column is left; " + "; ".join([*notes, *rule.notes])
        )
    return Schema(options.user, aim, kept, options.time, options.missing), (*notes, *rule.notes)


def _roles(table: TableReader, options: Options) -> tuple[str, list[str], list[str]]:
    """Return the target's name, possible features, and notes on columns that are neither."""
    header = [name for name in table.header if not _INDEX.fullmatch(name)]
    strange = [name for name in table.header if name not in header and options.features is None]
    notes = [
        f"{name or 'a column without a name'}: taken for a row index, left out" for name in strange
    ]
    require(table, options.user, "data.user")
    if options.target is None and not any(name in header for name in TARGETS):
        words = "say which column is to be predicted with data.target"
        raise ConfigError(f"{table.path}: {words}; columns: {', '.join(header)}")
    target = options.target or next(name for name in TARGETS if name in header)
    if target in (options.user, options.time) or target in (options.features or ()):
        raise ConfigError(
            f"{table.path}: column {target!r} cannot be the target and something else (data.target)"
        )
    require(table, target, "data.target")
    if options.time is not None:
        require(table, options.time, "data.time")
    for key in ("features", "ignore", "categorical", "numeric", "dates", "bounds"):
        for name in getattr(options, key) or ():
            require(table, name, f"data.{key}")
    others = {options.user, target, options.time, *options.ignore}
    features = (
        list(options.features)
        if options.features is not None
        else [name for name in header if name not in others]
    )
    features = [name for name in dict.fromkeys(features) if name not in options.ignore]
    for key in ("categorical", "numeric", "dates", "bounds"):
        for name in getattr(options, key):
            if name not in features and name != target:
                raise ConfigError(
                    f"data.{key}: column {name!r} is not a feature; {nearest(name, features)}"
                )
    if not features:
        raise ConfigError(
            f"{table.path}: has no feature column besides {options.user!r} and {target!r}"
        )
    return target, features, notes


def require(table: TableReader, name: str, key: str) -> None:
    """Raise a ConfigError if a table lacks a column.

    Args:
        table: the table.
        name: name of the column.
        key: setting or role that needs it, for the message.
    """
    if name not in table.header:
        hint = nearest(name, filter(None, table.header))
        raise ConfigError(f"{table.path}: has no column {name!r} ({key}); {hint}")


_FORMS = {
    "iso": "2024-03-31",
    "dmy": "day before month",
    "mdy": "month before day",
    "clock": "times of the day",
    **{unit: f"{unit} since 1970" for unit in UNITS},
}


class _Rules:
    """Rules by which a column gets its meaning.

    Args:
        table: the table, for messages.
        options: what a person says about its columns.
        alone: whether there is only one feature, so that users rate items.
    """

    def __init__(self, table: TableReader, options: Options, alone: bool):
        self.table, self.options, self.alone = table, options, alone
        self.notes: list[str] = []

    def features(self, name: str, profile: Profile) -> tuple[Feature, ...]:
        """Return the features that a column becomes; none if it says nothing."""
        options = self.options
        form = None
        if name not in options.categorical and name not in options.numeric and profile.present:
            form = profile.date_form(name in options.dates or _TIME.fullmatch(name) is not None)
            if form in UNITS and name not in options.dates and _ID.fullmatch(name):
                form = None
        if form is None and name in options.dates:
            raise self._no_date(name, profile)
        if form is not None and profile.values is not None and len(profile.values) == 1:
            form = None
        if form is not None:
            return self._date(name, profile, form)
        feature = self.feature(name, profile)
        return () if feature is None else (feature,)

    def _date(self, name: str, profile: Profile, form: str) -> tuple[Feature, ...]:
        """Return the numbers that a column of dates becomes."""
        days = np.concatenate(profile.days[form] if form in TEXTS else profile.numbers) / UNITS.get(
            form, 1.0
        )
        timed = profile.timed or bool(form in UNITS and np.any(days != np.floor(days)))
        bounds = self.options.bounds.get(name) or profile.date_bounds(days)
        parts = parts_worth(bounds, timed, form)
        also = ", ".join(parts[1:]) if parts[0] == "days" else ""
        read = "days since 1970" + (f", {also}" if also else "") if parts[0] == "days" else "hours"
        within = f" within {as_text(bounds[0])} and {as_text(bounds[1])}" if bounds else ""
        words = f"dates ({_FORMS[form]}), read as {read}{within if 'days' in parts else ''}"
        if profile.forms == ("dmy", "mdy"):
            words += "; day before month is a guess"
        keep = f"{column_list('categorical', [name])} takes them as names"
        self.notes.append(f"{name}: {words} ({keep})")
        return date_features(name, form, parts, bounds)

    def _no_date(self, name: str, profile: Profile) -> ConfigError:
        row, value = profile.first_odd or (0, "")
        return self.table.fault(
            row,
            name,
            f"{value[:40]!r} is no date of one form (2024-03-31, 31.03.2024, 03/31/2024, 23:59, or "
            "numbers since 1970), as data.dates says",
        )

    def feature(self, name: str, profile: Profile) -> Feature | None:
        """Return the feature that a column without dates becomes; None if it says nothing."""
        listed, bounds = name in self.options.categorical, self.options.bounds.get(name)
        asked = name in self.options.numeric or bounds is not None
        if not profile.present:
            return self._without(name, "has no values, left out")
        if profile.first_odd is not None and not listed and (asked or not profile.is_text):
            raise self._mixed(name, profile)
        numeric = not listed and not profile.is_text
        reason = None if asked else self._whose_numbers_are_names(name, profile) if numeric else ""
        one = profile.values is not None and len(profile.values) == 1
        gaps = profile.present < profile.rows
        if one and (
            not gaps or (numeric and reason is None and self.options.missing != "indicator")
        ):
            hint = (
                f" where present, left out ({column_list('categorical', [name])} keeps it)"
                if gaps
                else ", left out"
            )
            return self._without(name, f"constant{hint}")
        if numeric and not asked and profile.counts_rows and profile.rows >= FEW_ROWS:
            return self._without(
                name, f"counts the rows, left out ({column_list('numeric', [name])} keeps it)"
            )
        if numeric and reason is None:
            bounds = bounds or profile.bounds
            return Numeric(name, bounds, None, *self._reading(name, profile, bounds))
        return self._choice(name, profile, reason or "")

    def target(self, name: str, profile: Profile) -> Target:
        """Return the target.

        Texts and two different numbers are labels unless the task is given. Other targets are
        numbers.
        """
        task, values, bounds = self.options.task, profile.values, self.options.bounds.get(name)
        if not profile.present:
            raise ConfigError(f"{self.table.path}: column {name!r}: no row has a target")
        asked = task == "regression" or bounds is not None or name in self.options.numeric
        labels = not asked and (task == "classification" or name in self.options.categorical)
        if profile.first_odd is not None and not labels and (asked or not profile.is_text):
            row, value = profile.first_odd
            raise self.table.fault(
                row,
                name,
                f"{value[:40]!r} is not a number; for labels set data.task=classification",
            )
        if values is not None and len(values) == 1:
            words = f"all targets are {min(values)!r}; there is nothing to learn"
            raise ConfigError(f"{self.table.path}: column {name!r}: {words}")
        if asked or not (labels or profile.is_text or (values is not None and len(values) == 2)):
            bounds = bounds or profile.bounds
            return Target(name, None, bounds, *self._reading(name, profile, bounds))
        if values is None:
            words = f"has more than {MOST_LABELS} different labels"
            hint = "is it the right column (data.target)?"
            raise ConfigError(f"{self.table.path}: column {name!r}: {words}; {hint}")
        return Target(name, tuple(ordered(values)))

    def _reading(self, name: str, profile: Profile, bounds: object) -> tuple[float, bool]:
        """Return where a number's scale is searched, and whether it is grouped, with notes."""
        origin = 0.0 if bounds is not None else profile.origin
        if origin:
            self.notes.append(
                f"{name}: large numbers that differ by little; their scale is searched around "
                f"{origin:.12g} (origin in schema.yaml)"
            )
        if profile.grouped:
            such = "1.234,50 is 1234.5" if self.table.comma else "$1,234.50 is 1234.5"
            self.notes.append(
                f"{name}: thousands marks and signs of currency are read over: {such}"
            )
        return origin, profile.grouped

    def _whose_numbers_are_names(self, name: str, profile: Profile) -> str | None:
        """Return why whole numbers are understood as names; None if they are numbers."""
        if not profile.whole:
            return None
        hint = f"{column_list('numeric', [name])} takes it as a number"
        if self.alone and profile.bounds is None:
            return f"the only feature, in whole numbers, so the name of an item ({hint})"
        if profile.padded:
            return f"whole numbers with leading zeros, so names ({hint})"
        return (
            f"whole numbers that are names, by the column's name ({hint})"
            if _ID.fullmatch(name)
            else None
        )

    def _choice(self, name: str, profile: Profile, reason: str) -> Feature | None:
        options, most = self.options, self.options.most_categories
        feature: Feature
        if options.categories == "hash":
            feature = Hashed(name, options.buckets)
        elif profile.is_free_text and name not in options.categorical and not self.alone:
            what = "names" if reason else "free text"
            hint = f"{column_list('categorical', [name])} keeps it"
            return self._without(name, f"{what}, hardly any value twice, left out ({hint})")
        elif profile.personal and name not in options.categorical:
            what = "one value per user, which few others have: it says who and not what"
            hint = f"{column_list('categorical', [name])} keeps it"
            return self._without(name, f"{what}, left out ({hint})")
        elif profile.values is None:
            more = (
                f"more than {most} different values, hashed into {most} buckets: values in one "
                "bucket cannot be told apart (a larger data.most_categories keeps them apart)"
            )
            reason = f"{reason}; {more}" if reason else more
            feature = Hashed(name, most)
        else:
            feature = Categorical(name, tuple(ordered(profile.values)))
        if reason:
            self.notes.append(f"{name}: {reason}")
        return feature

    def _mixed(self, name: str, profile: Profile) -> ConfigError:
        row, value = profile.first_odd or (0, "")
        if profile.is_text:
            hint = "the column is text, so take it out of data.numeric and data.bounds"
            return self.table.fault(row, name, f"{value[:40]!r} is not a number; {hint}")
        hint = f"mend it, or set {column_list('categorical', [name])}"
        return self.table.fault(
            row, name, f"mixed types: {value[:40]!r} is not a number and most values are; {hint}"
        )

    def _without(self, name: str, why: str) -> Feature | None:
        self.notes.append(f"{name}: {why}")
        return None
