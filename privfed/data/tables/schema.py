"""What the columns of a table mean, and how a row becomes numbers.

Encoded columns come in this order: all Numeric features as the schema lists them, with missing=indicator a column for each that
says where it is missing, then a block of zeros and at most one 1 for each Categorical or Hashed feature.
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

from privfed.foundation.linalg import Array

MISSING_POLICIES = ("mean", "indicator", "drop", "refuse")

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Numeric:
    """A number. bounds: public lowest and highest value; None: its scale has to be learnt privately."""

    name: str
    bounds: Bounds | None = None


@dataclass(frozen=True)
class Categorical:
    """One of some values, one-hot in this order; any other value is none of them (code -1)."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Hashed:
    """Any text, one-hot of its hash: two values may share a bucket, and no list of values has to be known."""

    name: str
    buckets: int


Feature = Numeric | Categorical | Hashed


@dataclass(frozen=True)
class Target:
    """What is predicted: one of some labels, numbered in this order, or with labels=None a number."""

    name: str
    labels: tuple[str, ...] | None = None
    bounds: Bounds | None = None


@dataclass(frozen=True)
class Schema:
    """The columns of a table. declared: read from a schema file, so public, as opposed to inferred from the data."""

    user: str
    target: Target
    features: tuple[Feature, ...]
    time: str | None = None
    missing: str = "mean"
    declared: bool = False

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
        """How many encoded columns each choice takes, (q,)."""
        return np.array([size_of(f) for f in self.choices], dtype=np.int64)

    @cached_property
    def d(self) -> int:
        """The number of encoded columns."""
        return len(self.numbers) * (1 + self.indicates) + int(self.sizes.sum())

    @property
    def indicates(self) -> bool:
        """Whether missing numbers have columns of their own."""
        return self.missing == "indicator"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the d encoded columns, such as "age", "joke=5" and "city#17"."""
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
        """The number of labels, 0 where the target is a number."""
        return len(self.target.labels or ())

    def to_yaml(self) -> str:
        """The schema as a text to read and to edit."""
        from privfed.data.tables.schema_file import dump

        return dump(self)

    @classmethod
    def from_yaml(cls, text: str, where: str) -> Schema:
        """A declared schema. where: the file's name, for messages."""
        from privfed.data.tables.schema_file import load

        return load(text, where)


def size_of(feature: Categorical | Hashed) -> int:
    """The length of a one-hot block."""
    return len(feature.values) if isinstance(feature, Categorical) else feature.buckets


_WHOLE = re.compile(r"([+-]?\d+)\.0*")
_TRUTH = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}


def plain(text: str) -> str:
    """One spelling for what different programs write differently: 3.0 is 3, True is true."""
    text = text.strip()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else _TRUTH.get(text, text)


def bucket(text: str, buckets: int) -> int:
    """The place of a plain text among the buckets, the same on every machine."""
    return zlib.crc32(text.encode()) % buckets


def ordered(values: Iterable[str]) -> list[str]:
    """Values by size where all are numbers, otherwise by text."""
    values = list(values)
    try:
        return sorted(values, key=lambda value: (float(value), value))
    except ValueError:
        return sorted(values)


def expand(
    schema: Schema,
    numbers: NDArray[np.float32],
    codes: NDArray[np.int32],
    centre: Array,
    spread: Array,
    limit: float,
) -> Array:
    """Encode rows: numbers as clip((v - centre) / spread, -limit, limit), choices one-hot.

    Args:
        schema: what the columns mean.
        numbers: (..., p), NaN where missing; such entries become 0.
        codes: (..., q), -1 where none of the known values was chosen.
        centre: (p,).
        spread: (p,); a column without a spread becomes 0.
        limit: bound on scaled numbers.

    Returns:
        X (..., d).
    """
    shape, p, q = numbers.shape[:-1], len(schema.numbers), len(schema.choices)
    X = np.zeros((math.prod(shape), schema.d))
    if p:
        scale = np.divide(1.0, spread, out=np.zeros(p), where=np.asarray(spread) > 0)
        rows = np.asarray(numbers, dtype=np.float32).reshape(-1, p)
        with np.errstate(invalid="ignore"):  # an infinite number of a column without a spread
            scaled = np.clip((rows - np.asarray(centre, dtype=np.float64)) * scale, -limit, limit)
        X[:, :p] = np.nan_to_num(scaled, nan=0.0)
        if schema.indicates:
            X[:, p : 2 * p] = np.isnan(rows)
    starts = schema.d - np.cumsum(schema.sizes[::-1])[::-1]
    picks = np.asarray(codes, dtype=np.int32).reshape(len(X), q)
    for b in range(q):
        known = np.flatnonzero((picks[:, b] >= 0) & (picks[:, b] < schema.sizes[b]))
        X[known, starts[b] + picks[known, b]] = 1.0
    return X.reshape(*shape, schema.d)
