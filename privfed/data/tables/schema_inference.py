"""Inference of a schema from a table: one pass over the file, then a rule and a note per column."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privfed.data.tables.columns import distinct, parse_numbers
from privfed.data.tables.options import Options
from privfed.data.tables.schema import (
    Bounds,
    Categorical,
    Feature,
    Hashed,
    Numeric,
    Schema,
    Target,
    ordered,
)
from privfed.data.tables.table_files import TableReader
from privfed.foundation.errors import ConfigError, nearest

TARGETS = ("target", "y")
"""Names of the target's column if none is given."""
MOST_LABELS = 100
"""Largest number of labels of a target."""
FREE_TEXT = 0.9
"""Fraction of the rows above which different values make a text column free text."""
FEW_ROWS = 20
"""Least number of rows for that rule."""

FEW_VALUES = 16
"""Most different numbers of a column that takes its bounds from them, like categories."""
OFTEN = 10
"""How often each of them has to occur on average: a few measurements are not levels."""

_THINGS = (
    "item|movie|film|product|song|track|artist|album|book|joke|article|category|genre|type|"
    "city|country|region|zip|zipcode|postcode|store|shop|sku|brand|channel|device|page|campaign"
)
_ID = re.compile(rf"(?:.*[_\W])?(?i:id|{_THINGS})|.*[a-z]I[dD]")
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")


@dataclass
class Profile:
    """Contents of a column.

    Attributes:
        most: largest number of different values that are kept.
        rows: number of rows.
        present: number of values that are not missing.
        odd: number of values that are not numbers.
        whole: whether all numbers are whole.
        first_odd: row and text of the first value that is not a number.
        values: the different values; None if there are more than `most`.
        low: smallest number.
        high: largest number.
        counts_rows: whether all numbers so far are the rows' own numbers, from 0 or 1.
    """

    most: int
    rows: int = 0
    present: int = 0
    odd: int = 0
    whole: bool = True
    first_odd: tuple[int, str] | None = None
    values: set[str] | None = field(default_factory=set)
    low: float = math.inf
    high: float = -math.inf
    counts_rows: bool = True

    def add(self, first: int, column: Any, comma: bool) -> None:
        """Take in one batch of a column.

        Args:
            first: number of its first row.
            column: Arrow array.
            comma: whether the comma is the decimal separator.
        """
        parsed, odd = parse_numbers(column, comma)
        finite = parsed[np.isfinite(parsed)]
        strange = int(odd.sum())
        if len(finite):
            self.low = min(self.low, float(finite.min()))
            self.high = max(self.high, float(finite.max()))
        if self.counts_rows:
            start = self.rows + np.arange(len(parsed))
            gaps = parsed - start
            self.counts_rows = bool(np.all(gaps == 0) if self.low == 0 else np.all(gaps == 1))
        self.rows += len(parsed)
        self.present += len(finite) + strange
        self.odd += strange
        self.whole = self.whole and bool((finite == np.floor(finite)).all())
        if strange and self.first_odd is None:
            place = int(odd.argmax())
            self.first_odd = first + place, str(column[place].as_py()).strip()
        if self.values is not None:
            self.values.update(text for text in distinct(column)[0] if text is not None)
            if len(self.values) > self.most:
                self.values = None

    @property
    def is_text(self) -> bool:
        """Whether at least half of the values are not numbers."""
        return 0 < self.present <= 2 * self.odd

    @property
    def bounds(self) -> Bounds | None:
        """Smallest and largest of a few numbers that occur again and again; otherwise None."""
        few = self.values is not None and 1 < len(self.values) <= FEW_VALUES
        few = few and self.present >= OFTEN * len(self.values or ())
        return (self.low, self.high) if few and not self.odd and self.low < self.high else None

    @property
    def is_free_text(self) -> bool:
        """Whether hardly any value occurs twice."""
        return (
            self.present >= FEW_ROWS
            and self.values is not None
            and len(self.values) > FREE_TEXT * self.present
        )


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
    for first, columns in table.batches(list(profiles)):
        for name, column in columns.items():
            profiles[name].add(first, column, table.comma)
    if not profiles[target].rows:
        raise ConfigError(f"{table.path}: has a header and no rows")
    rule = _Rules(table, options, alone=len(features) == 1)
    aim = rule.target(target, profiles[target])
    chosen = [rule.feature(name, profiles[name]) for name in features]
    kept = tuple(feature for feature in chosen if feature is not None)
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
    for key in ("features", "ignore", "categorical", "numeric", "bounds"):
        for name in getattr(options, key) or ():
            require(table, name, f"data.{key}")
    others = {options.user, target, options.time, *options.ignore}
    features = (
        list(options.features)
        if options.features is not None
        else [name for name in header if name not in others]
    )
    features = [name for name in dict.fromkeys(features) if name not in options.ignore]
    for key in ("categorical", "numeric", "bounds"):
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

    def feature(self, name: str, profile: Profile) -> Feature | None:
        """Return the feature that a column becomes; None if it says nothing."""
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
                f" where present, left out (data.categorical=[{name}] keeps it)"
                if gaps
                else ", left out"
            )
            return self._without(name, f"constant{hint}")
        if numeric and not asked and profile.counts_rows and profile.rows >= FEW_ROWS:
            return self._without(
                name, f"counts the rows, left out (data.numeric=[{name}] keeps it)"
            )
        if numeric and reason is None:
            return Numeric(name, bounds or profile.bounds)
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
            return Target(name, None, bounds or profile.bounds)
        if values is None:
            words = f"has more than {MOST_LABELS} different labels"
            hint = "is it the right column (data.target)?"
            raise ConfigError(f"{self.table.path}: column {name!r}: {words}; {hint}")
        return Target(name, tuple(ordered(values)))

    def _whose_numbers_are_names(self, name: str, profile: Profile) -> str | None:
        """Return why whole numbers are understood as names; None if they are numbers."""
        if not profile.whole:
            return None
        hint = f"data.numeric=[{name}] takes it as a number"
        if self.alone and profile.bounds is None:
            return f"the only feature, in whole numbers, so the name of an item ({hint})"
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
        elif profile.is_free_text and not reason and name not in options.categorical:
            hint = f"data.categorical=[{name}] keeps it"
            return self._without(name, f"free text, hardly any value twice, left out ({hint})")
        elif profile.values is None:
            hashed = f"hashed into {most} buckets, which mixes values (data.most_categories)"
            more = f"more than {most} different values, {hashed}"
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
        hint = f"mend it, or set data.categorical=[{name}]"
        return self.table.fault(
            row, name, f"mixed types: {value[:40]!r} is not a number and most values are; {hint}"
        )

    def _without(self, name: str, why: str) -> Feature | None:
        self.notes.append(f"{name}: {why}")
        return None
