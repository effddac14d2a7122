"""Published model of a table: scales of columns, a global model, a shared representation.

    x (d,)   encoded row: numbers minus their centre in units of their spread, categories one-hot
    y (C,)   target in the same way; for labels +-1 (two of them) or one-hot minus 1/C
    w (d+1, C)   global model, its first row the intercept
    U (d, k), scale (k,)   representation, and the length of heads in its directions

    user i predicts    w_0 + x w + [1, x U] V_i        with its own V_i (1 + k, C), by ridge toward
        0

V_i is fitted to the residual of the global model, so its population mean is about 0: ridge toward 0
is ridge toward the mean head. A user first scales the rows of x U diag(scale) to mean square 1,
whatever units features have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from privfed.data.tables.ragged_cohort import Codes, Numbers
from privfed.data.tables.schema import Schema, expand
from privfed.foundation.linalg import Array
from privfed.models import ridge

NAMES = ("centre", "spread", "w", "U", "scale")
"""Published arrays, in the order in which they are announced."""
CONSTANT = 2.0
"""Length of the constant feature, so that personal offsets are shrunk less than other features."""
PARTS = 64
"""Number of parts into which the interval of a column is divided to locate its values."""
LIMIT, TARGET_LIMIT = 4.0, 8.0
"""Encoded numbers lie within +-LIMIT, encoded targets within +-TARGET_LIMIT."""


def public_scales(schema: Schema) -> tuple[Array, Array]:
    """Return centre and spread (p + 1,) of numeric columns and target by their public bounds.

    Columns without public bounds have 0 and 1.
    """
    bounds = [feature.bounds for feature in schema.numbers] + [
        None if schema.classes else schema.target.bounds
    ]
    centre = [0.0 if b is None else (b[0] + b[1]) / 2 for b in bounds]
    # The spread is that of a uniform distribution.
    spread = [1.0 if b is None else (b[1] - b[0]) / math.sqrt(12) for b in bounds]
    return np.array(centre), np.array(spread)


def unscaled(schema: Schema) -> list[int]:
    """Return the indices of numeric columns without public bounds; index p is the target."""
    places = [i for i, feature in enumerate(schema.numbers) if feature.bounds is None]
    return (
        places
        if schema.classes or schema.target.bounds is not None
        else [*places, len(schema.numbers)]
    )


@dataclass(frozen=True)
class TableModel:
    """Published arrays; those that do not exist yet are empty.

    See the module for names and shapes.
    """

    schema: Schema
    centre: Array
    spread: Array
    w: Array
    U: Array
    scale: Array

    @classmethod
    def of(cls, schema: Schema, arrays: Sequence[Any]) -> TableModel:
        """Return the model of announced arrays, in the order of NAMES."""
        return cls(schema, *(np.asarray(array) for array in arrays))

    @classmethod
    def before(cls, schema: Schema) -> TableModel:
        """Return the model before any release: public scales only."""
        d, C = schema.d, schema.outputs
        return cls(
            schema, *public_scales(schema), np.zeros((d + 1, C)), np.zeros((d, 0)), np.zeros(0)
        )

    @property
    def arrays(self) -> list[Array]:
        """Return the arrays as they are announced and published."""
        return [self.centre, self.spread, self.w, self.U, self.scale]

    def rows(self, numbers: Numbers, codes: Codes) -> Array:
        """Return encoded rows: numbers (..., p), codes (..., q) -> (..., d)."""
        return expand(self.schema, numbers, codes, self.centre[:-1], self.spread[:-1], LIMIT)

    def targets(self, y: Array) -> Array:
        """Return encoded targets: y (...) -> (..., C)."""
        if not self.schema.classes:
            return np.clip((y - self.centre[-1]) / self.spread[-1], -TARGET_LIMIT, TARGET_LIMIT)[
                ..., None
            ]
        if self.schema.classes == 2:
            return np.where(y == 1, 1.0, -1.0)[..., None]
        return (y[..., None] == np.arange(self.schema.classes)) - 1.0 / self.schema.classes

    def base(self, X: Array) -> Array:
        """Return the prediction of the global model: X (..., d) -> (..., C)."""
        return self.w[0] + X @ self.w[1:]

    def features(self, X: Array) -> Array:
        """Return the representation, the input of a head: X (..., d) -> (..., k)."""
        return np.asarray(X @ self.U)

    def head_rows(self, P: Array) -> tuple[Array, Array]:
        """Return the inputs of heads, and their scaling.

        Args:
            P: features, (B, m, k).

        Returns:
            [constant, features in the user's units] (B, m, 1 + k), and the factors (B, k) of
                features.
        """
        S = P * self.scale
        factors = self.scale / np.sqrt(ridge.lengths(S))[:, None]
        return np.concatenate(
            [np.full((*P.shape[:2], 1), CONSTANT), P * factors[:, None, :]], axis=2
        ), factors

    def own(self, X: Array, R: Array) -> tuple[Array, Array, ridge.RidgeHeads]:
        """Return inputs of heads, their factors, and users' ridge heads.

        Args:
            X: encoded rows, (B, m, d).
            R: residuals of the global model, (B, m, C).

        Returns:
            Inputs Q (B, m, 1 + k), factors (B, k), and the heads.
        """
        Q, factors = self.head_rows(self.features(X))
        return Q, factors, ridge.fit_ridge_heads(Q, R, np.ones(len(X)))

    def fit(self, X: Array, Y: Array) -> Array:
        """Return the heads of some users, (B, 1 + k, C); without U, only an offset.

        Args:
            X: encoded rows, (B, m, d).
            Y: encoded targets, (B, m, C).
        """
        _, factors, heads = self.own(X, Y - self.base(X))
        units = np.concatenate([np.full((len(X), 1), CONSTANT), factors], axis=1)
        return heads.V * units[:, :, None]

    def left_out(self, X: Array, Y: Array) -> Array:
        """Return the predictions of heads fitted without the row, (B, m, C).

        Strengths are those that `fit` chooses.
        """
        R = Y - self.base(X)
        Q, _, heads = self.own(X, R)
        return Y - ridge.leave_one_out_residuals(Q, R, heads)[0]

    def scores(self, X: Array, V: Array) -> Array:
        """Return encoded predictions, (t, C).

        Args:
            X: encoded rows, (t, d).
            V: head of each row's user, (t, 1 + k, C), or one head for all rows, (1 + k, C).
        """
        own = V[..., 0, :] + np.matmul(self.features(X)[:, None, :], V[..., 1:, :])[:, 0]
        return self.base(X) + own

    def answers(self, scores: Array) -> Array:
        """Return predictions in the table's units, or class numbers: scores (t, C) -> (t,)."""
        if self.schema.classes > 2:
            return np.argmax(scores, axis=1).astype(np.float64)
        if self.schema.classes:
            return (scores[:, 0] > 0).astype(np.float64)
        y = self.centre[-1] + self.spread[-1] * np.clip(scores[:, 0], -TARGET_LIMIT, TARGET_LIMIT)
        bounds = self.schema.target.bounds
        return y if bounds is None else np.clip(y, *bounds)

    def losses(self, scores: Array, y: Array) -> Array:
        """Return squared errors in the table's units, or 1 for a wrong class, (t,)."""
        answers = self.answers(scores)
        return (answers != y).astype(np.float64) if self.schema.classes else (answers - y) ** 2
