"""The meaning of a table's columns, and the encoding of a row as numbers.

Encoded columns have this order: first all Numeric features as the schema lists them; then, with
missing=indicator, one column per numeric feature that says whether it is missing; then one block
per Categorical or Hashed feature, with zeros and at most one 1.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privfed.data.tables.date_parts import DatePart
from privfed.foundation.linalg import Array

DENSE = 40
"""Most values of a feature whose codes are columns of a dense matrix. Beyond, values are items."""
MISSING_POLICIES = ("mean", "indicator", "drop", "refuse")

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Numeric:
    """A number.

    Attributes:
        name: the column, or what is read of a date.
        bounds: public lowest and highest value; None: its scale is estimated privately.
        date: what of a date is read; None: the column has numbers.
        origin: where its scale is searched, if values are large and differ by little.
        grouped: whether numbers have thousands marks or signs of currency.
    """

    name: str
    bounds: Bounds | None = None
    date: DatePart | None = None
    origin: float = 0.0
    grouped: bool = False

    @property
    def column(self) -> str:
        """Column that is read."""
        return self.name if self.date is None else self.date.column


@dataclass(frozen=True)
class Categorical:
    """One of some values, one-hot in this order; any other value has the code -1 and no 1."""

    name: str
    values: tuple[str, ...]

    @property
    def column(self) -> str:
        """Column that is read."""
        return self.name


@dataclass(frozen=True)
class Hashed:
    """Any text, one-hot by its hash. Values may share a bucket, and no list of values is needed."""

    name: str
    buckets: int

    @property
    def column(self) -> str:
        """Column that is read."""
        return self.name


Feature = Numeric | Categorical | Hashed


@dataclass(frozen=True)
class Target:
    """What is predicted.

    Attributes:
        name: the column.
        labels: the labels, numbered in this order; None: the target is a number.
        bounds: public lowest and highest value of a number; None: its scale is estimated privately.
        origin: where its scale is searched, if values are large and differ by little.
        grouped: whether numbers have thousands marks or signs of currency.
    """

    name: str
    labels: tuple[str, ...] | None = None
    bounds: Bounds | None = None
    origin: float = 0.0
    grouped: bool = False


@dataclass(frozen=True)
class Schema:
    """The columns of a table.

    Attributes:
        user: column of users.
        target: what is predicted.
        features: what is learnt from.
        time: column of times; None: rows have no order.
        missing: what to do with missing values, one of MISSING_POLICIES.
        declared: whether it was read from a schema file and is public; otherwise it was inferred
            from the data.
    """

    user: str
    target: Target
    features: tuple[Feature, ...]
    time: str | None = None
    missing: str = "mean"
    declared: bool = False

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns of the file that features are read from; a column of dates counts once."""
        return tuple(dict.fromkeys(feature.column for feature in self.features))

    @cached_property
    def origins(self) -> Array:
        """Where the scales of the p numeric features, and of the target, are searched: (p + 1,)."""
        return np.array([*(feature.origin for feature in self.numbers), self.target.origin])

    @cached_property
    def numbers(self) -> tuple[Numeric, ...]:
        """The p numeric features."""
        return tuple(f for f in self.features if isinstance(f, Numeric))

    @cached_property
    def choices(self) -> tuple[Categorical | Hashed, ...]:
        """The q features with codes."""
        return tuple(f for f in self.features if not isinstance(f, Numeric))

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of encoded columns (q,) of each feature with codes."""
        return np.array([size_of(f) for f in self.choices], dtype=np.int64)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First encoded column (q,) of each feature with codes."""
        return np.asarray(self.d - np.cumsum(self.sizes[::-1])[::-1], dtype=np.int64)

    @cached_property
    def item_features(self) -> tuple[int, ...]:
        """Places among `choices` of the features whose values are items: more than DENSE."""
        return tuple(int(b) for b in np.flatnonzero(self.sizes > DENSE))

    @cached_property
    def items(self) -> NDArray[np.int64]:
        """Encoded columns (L,) of items, feature after feature."""
        blocks = [np.arange(self.sizes[b]) + self.starts[b] for b in self.item_features]
        return np.concatenate([np.zeros(0, dtype=np.int64), *blocks])

    @cached_property
    def dense(self) -> NDArray[np.int64]:
        """Encoded columns (p,) of everything else."""
        return np.setdiff1d(np.arange(self.d), self.items)

    @cached_property
    def d(self) -> int:
        """Number of encoded columns."""
        return len(self.numbers) * (1 + self.indicates) + int(self.sizes.sum())

    @property
    def indicates(self) -> bool:
        """Whether missing numbers have columns of their own."""
        return self.missing == "indicator"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the d encoded columns, such as "age", "joke=5" and "city#17"."""
        numbers = [f.name for f in self.numbers]
        absent = [f"{name} missing" for name in numbers if self.indicates]
        blocks = [
            f"{f.name}={value}" if isinstance(f, Categorical) else f"{f.name}#{value}"
            for f in self.choices
            for value in (f.values if isinstance(f, Categorical) else range(f.buckets))
        ]
        return (*numbers, *absent, *blocks)

    @property
    def classes(self) -> int:
        """Number of labels; 0 if the target is a number."""
        return len(self.target.labels or ())

    @property
    def outputs(self) -> int:
        """Number of scores per row: one for numbers and for two labels, else one per label."""
        return self.classes if self.classes > 2 else 1

    @property
    def width(self) -> int:
        """Numbers per encoded row in memory: dense columns, one per item feature, outputs."""
        return len(self.dense) + len(self.item_features) + 3 * self.outputs + 1

    def to_yaml(self) -> str:
        """Return the schema as a text that people can read and edit."""
        from privfed.data.tables.schema_file import schema_to_yaml

        return schema_to_yaml(self)

    @classmethod
    def from_yaml(cls, text: str, where: str) -> Schema:
        """Return the declared schema in a text.

        Args:
            text: YAML, as `to_yaml` writes it.
            where: name of the file, for messages.

        Raises:
            ConfigError: if the text is no schema.
        """
        from privfed.data.tables.schema_file import schema_from_yaml

        return schema_from_yaml(text, where)


def size_of(feature: Categorical | Hashed) -> int:
    """Return the number of encoded columns of a feature with codes."""
    return len(feature.values) if isinstance(feature, Categorical) else feature.buckets


_WHOLE = re.compile(r"([+-]?\d+)\.0*")
_TRUTH = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}


def plain_text(text: str) -> str:
    """Return one spelling of values that programs write differently: 3.0 is 3, True is true."""
    text = text.strip()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else _TRUTH.get(text, text)


def bucket(text: str, buckets: int) -> int:
    """Return the bucket of a plain text, which is the same on every machine."""
    return zlib.crc32(text.encode()) % buckets


def ordered(values: Iterable[str]) -> list[str]:
    """Sort values by size if all are numbers, otherwise as text."""
    values = list(values)
    try:
        return sorted(values, key=lambda value: (float(value), value))
    except ValueError:
        return sorted(values)


def expand(
    schema: Schema,
    numbers: Array,
    codes: NDArray[np.int32],
    centre: Array,
    spread: Array,
    limit: float,
) -> Array:
    """Encode rows.

    Numbers become clip((v - centre) / spread, -limit, limit), and 0 where they are missing or their
    spread is 0. Codes become one-hot blocks.

    Args:
        schema: meaning of the columns.
        numbers: values (..., p), NaN where missing.
        codes: codes (..., q), -1 for none.
        centre: centres (p,) of the numeric features.
        spread: spreads (p,) of the numeric features.
        limit: largest absolute value of an encoded number.

    Returns:
        Encoded rows X (..., d).
    """
    shape, p, q = numbers.shape[:-1], len(schema.numbers), len(schema.choices)
    X = np.zeros((math.prod(shape), schema.d))
    if p:
        scale = np.divide(1.0, spread, out=np.zeros(p), where=np.asarray(spread) > 0)
        rows = np.asarray(numbers, dtype=np.float64).reshape(-1, p)
        with np.errstate(invalid="ignore"):  # an infinite number of a column without a spread
            scaled = np.clip((rows - np.asarray(centre, dtype=np.float64)) * scale, -limit, limit)
        X[:, :p] = np.nan_to_num(scaled, nan=0.0)
        if schema.indicates:
            X[:, p : 2 * p] = np.isnan(rows)
    starts = schema.starts
    picks = np.asarray(codes, dtype=np.int32).reshape(len(X), q)
    for b in range(q):
        known = np.flatnonzero((picks[:, b] >= 0) & (picks[:, b] < schema.sizes[b]))
        X[known, starts[b] + picks[known, b]] = 1.0
    return X.reshape(*shape, schema.d)
