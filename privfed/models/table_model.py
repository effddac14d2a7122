"""Published model of a table: scales of columns, a global model, a shared representation.

    x (d,)   encoded row: numbers minus their centre in units of their spread, categories one-hot
    y (C,)   target in the same way; for labels +-1 (two of them) or one-hot minus 1/C
    within (p + 1,)   1 for numbers that are taken around each user's own mean, the target last
    w (d+1, C)   global model, its first row the intercept; rows of items are their biases
    U (d, k), scale (k,)   shared directions, and the relative length of heads in them
    effects (d+1, r)   root L of the covariance L L^T of users' own intercepts and slopes around w,
                 in units of the variance of a row; empty if not learnt
    evidence (K,)   how well each way to predict does for the population; empty if not released

The global model predicts base(x) = w_0 + x w. How a user combines it with own rows is in
`table_heads`. A column with spread 0 stays with the users: it is 0 in x, and only users' own fits
see it. If that is the target, there is no global model.

A number whose centre was not asked for (`within`) is taken around the mean of the user's own rows:
its spread is that within users, and what differs between users is left to their offsets.

Numbers with public bounds are clamped to them, others to LIMIT spreads, so no value, however large,
can enter x. Items (features with many values) are never expanded: their columns of w and U are
looked up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.data.tables.ragged_cohort import Codes, Numbers, TableRows
from privfed.data.tables.schema import Schema, expand
from privfed.foundation.linalg import Array

NAMES = ("centre", "spread", "within", "w", "U", "scale", "effects", "evidence")
"""Published arrays, in the order in which they are announced."""
KINDS = MIXTURE, ALONE, OFFSET, GLOBAL = "mixture", "alone", "offset", "global"
"""How users predict: by all candidates of `table_heads`; by those that need no other users; by the
global model and an offset; by the global model."""
PARTS = 32
"""Number of parts into which the interval of a column is divided to locate its values."""
LIMIT, TARGET_LIMIT = 8.0, 4.0
"""Encoded numbers lie within +-LIMIT, targets within +-TARGET_LIMIT in what users send."""
OUTSIDE = 6.0
"""Predictions lie within OUTSIDE spreads where the target has no public bounds."""


def public_scales(schema: Schema) -> tuple[Array, Array]:
    """Return centre and spread (p + 1,) of numeric columns and target by their public bounds.

    Columns without public bounds have 0 and 0. Labels need no scale: theirs are 0 and 1.
    """
    bounds = [feature.bounds for feature in schema.numbers] + [schema.target.bounds]
    centre = [0.0 if b is None else (b[0] + b[1]) / 2 for b in bounds]
    # The spread is that of a uniform distribution.
    spread = [0.0 if b is None else (b[1] - b[0]) / math.sqrt(12) for b in bounds]
    if schema.classes:
        centre[-1], spread[-1] = 0.0, 1.0
    return np.array(centre), np.array(spread)


def unscaled(schema: Schema) -> list[int]:
    """Return the indices of numeric columns without public bounds; index p is the target.

    The target comes first: where not all scales can be had, it is the one that matters.
    """
    places = [i for i, feature in enumerate(schema.numbers) if feature.bounds is None]
    free = not schema.classes and schema.target.bounds is None
    return [len(schema.numbers), *places] if free else places


@dataclass(frozen=True)
class Inputs:
    """Encoded rows without expanding items.

    Attributes:
        X: dense columns, (..., p).
        items: encoded column (..., q) of each item, -1 for none.
    """

    X: Array
    items: NDArray[np.int64]


@dataclass(frozen=True)
class TableModel:
    """Published arrays; those that do not exist yet are empty.

    See the module for names and shapes. `kind` says how users predict with it, one of KINDS.
    """

    schema: Schema
    centre: Array
    spread: Array
    within: Array
    w: Array
    U: Array
    scale: Array
    effects: Array
    evidence: Array
    kind: str = MIXTURE

    @classmethod
    def of(cls, schema: Schema, arrays: Sequence[Any], kind: str = MIXTURE) -> TableModel:
        """Return the model of announced arrays, in the order of NAMES."""
        named = {name: np.asarray(array) for name, array in zip(NAMES, arrays, strict=False)}
        return cls(schema, **named, kind=kind)

    @classmethod
    def before(cls, schema: Schema) -> TableModel:
        """Return the model before any release: public scales only."""
        centre, spread = public_scales(schema)
        w, U = np.zeros((schema.d + 1, schema.outputs)), np.zeros((schema.d, 0))
        none, effects = np.zeros(0), np.zeros((schema.d + 1, 0))
        return cls(schema, centre, spread, np.zeros_like(centre), w, U, none, effects, none)

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays as they are announced and published."""
        return [getattr(self, name) for name in NAMES]

    @cached_property
    def has_global(self) -> bool:
        """Whether there is a global model: a scale of targets, and something learnt."""
        return bool(self.spread[-1] > 0 and np.any(self.w))

    # Encoding.

    def rows(self, numbers: Numbers, codes: Codes) -> Array:
        """Return encoded rows, items expanded: numbers (..., p), codes (..., q) -> (..., d)."""
        clamped = clamp(self.schema, numbers)
        return expand(self.schema, clamped, codes, self.centre[:-1], self.spread[:-1], LIMIT)

    @property
    def has_level(self) -> bool:
        """Whether the global model knows the level of targets; otherwise it is a user's own."""
        return self.has_global and not self.within[-1]

    def inputs(self, rows: TableRows, own: Array | None = None) -> Inputs:
        """Return encoded rows (...).

        Args:
            rows: rows, (B, m) or (t,).
            own: means of users' own numbers, that broadcast with the numbers; None takes those of
                rows (B, m), and for rows (t,) of no user no mean, so that such numbers are 0.
        """
        centre, within = self.centre[:-1], self.within[:-1] > 0
        if within.any():
            if own is None:
                own = own_means(rows.numbers) if rows.y.ndim > 1 else np.full(len(within), np.nan)
            centre = np.where(within, own, centre)
        return encode(self.schema, rows, centre, self.spread[:-1])

    def targets(self, y: Array) -> Array:
        """Return encoded targets, not clamped: y (...) -> (..., C)."""
        if not self.schema.classes:
            spread = self.spread[-1] if self.spread[-1] > 0 else 1.0
            return ((y - self.centre[-1]) / spread)[..., None]
        if self.schema.classes == 2:
            return np.where(y == 1, 1.0, -1.0)[..., None]
        return (y[..., None] == np.arange(self.schema.classes)) - 1.0 / self.schema.classes

    def sent_targets(self, y: Array, limit: float = TARGET_LIMIT) -> Array:
        """Return encoded targets as they enter what users send: within +-limit.

        Args:
            y: targets (B, m).
            limit: largest encoded target.
        """
        if self.within[-1]:
            y = y - y.mean(axis=1, keepdims=True)
        return np.clip(self.targets(y), -limit, limit)

    # The global model.

    def base(self, inputs: Inputs) -> Array:
        """Return the prediction of the global model, (..., C); 0 if there is none."""
        return self.relative(inputs) + (self.w[0] if self.has_global else 0.0)

    def relative(self, inputs: Inputs) -> Array:
        """Return base - w_0, (..., C): what the columns of a row say; 0 without a model."""
        if not self.has_global:
            return np.zeros((*inputs.X.shape[:-1], self.schema.outputs))
        return self._times(inputs, self.w[1:])

    def features(self, inputs: Inputs) -> Array:
        """Return the rows in the shared directions, (..., k)."""
        return self._times(inputs, self.U)

    def _times(self, inputs: Inputs, matrix: Array) -> Array:
        """Return x matrix: (..., d) and (d, c) -> (..., c)."""
        product = inputs.X @ matrix[self.schema.dense]
        padded = np.concatenate([matrix, np.zeros((1, matrix.shape[1]))])
        for j in range(inputs.items.shape[-1]):
            product = product + padded[inputs.items[..., j]]
        return np.asarray(product)

    # Answers.

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest encoded prediction, before a user's own range is joined."""
        if self.schema.classes or not self.spread[-1] > 0 or self.within[-1]:
            return math.inf, -math.inf
        bounds = self.schema.target.bounds
        if bounds is None:
            return -OUTSIDE, OUTSIDE
        low, high = (np.array(bounds) - self.centre[-1]) / self.spread[-1]
        return float(low), float(high)

    def answers(self, scores: Array) -> Array:
        """Return predictions in the table's units, or class numbers: scores (t, C) -> (t,)."""
        if self.schema.classes > 2:
            return np.argmax(scores, axis=1).astype(np.float64)
        if self.schema.classes:
            return (scores[:, 0] > 0).astype(np.float64)
        spread = self.spread[-1] if self.spread[-1] > 0 else 1.0
        return self.centre[-1] + spread * scores[:, 0]

    def losses(self, scores: Array, y: Array) -> Array:
        """Return squared errors in the table's units, or 1 for a wrong class, (t,)."""
        answers = self.answers(scores)
        return (answers != y).astype(np.float64) if self.schema.classes else (answers - y) ** 2


def own_means(numbers: Numbers) -> Array:
    """Return the mean (B, 1, p) of each user's numbers (B, m, p); 0 where all are missing."""
    there = np.isfinite(numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.where(there, numbers, 0.0).sum(axis=1, keepdims=True)
        return np.asarray(total / np.maximum(there.sum(axis=1, keepdims=True), 1))


def clamp(schema: Schema, numbers: Numbers) -> Numbers:
    """Return numbers (..., p) within their public bounds; missing ones stay missing."""
    low, high = (
        np.array([side if f.bounds is None else f.bounds[place] for f in schema.numbers])
        for place, side in enumerate((-np.inf, np.inf))
    )
    return np.clip(numbers, low, high) if len(schema.numbers) else numbers


def encode(schema: Schema, rows: TableRows, centre: Array, spread: Array) -> Inputs:
    """Return encoded rows with given scales.

    Args:
        schema: meaning of the columns.
        rows: rows (...).
        centre: centres of the numbers, that broadcast with (..., p).
        spread: spreads likewise; 0 makes a column 0.
    """
    numbers = clamp(schema, rows.numbers)
    scale = np.divide(1.0, spread, out=np.zeros(np.shape(spread)), where=np.asarray(spread) > 0)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.nan_to_num(np.clip((numbers - centre) * scale, -LIMIT, LIMIT), nan=0.0)
    parts = [scaled, np.isnan(rows.numbers).astype(np.float64)] if schema.indicates else [scaled]
    items = []
    for b, size in enumerate(schema.sizes):
        code = rows.codes[..., b].astype(np.int64)
        known = (code >= 0) & (code < size)
        if b in schema.item_features:
            items.append(np.where(known, code + schema.starts[b], -1))
        else:
            parts.append((code[..., None] == np.arange(size)).astype(np.float64))
    none = np.zeros((*rows.y.shape, 0), dtype=np.int64)
    return Inputs(np.concatenate(parts, axis=-1), np.stack(items, axis=-1) if items else none)
