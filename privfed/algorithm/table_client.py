"""Base of clients with rows of a table: the tasks of every algorithm on tables, and judging.

    magnitudes   per column without public bounds: shares of the user's rows by power of two
    locate       per such column: shares of the user's rows by 32nd of the announced interval
    spreads      per column to be taken around users' own means: which power of two, in steps of a
                 half, the spread of the user's own values has
    curvature    f_i A_i^T A_i
    gradient     W A_i^T R_i f_i / sqrt(P), W the announced whitener
    counts       c_i / |c_i|, c_i the number of the user's rows per item
    sums         the user's residuals added up per item, over |c_i|

    A_i (m, P)   rows [1, x] of the dense columns, less (1 - sqrt(l0 / (m + l0))) of their mean
    R_i (m, C)   residuals of the global model, likewise
    f_i          1 / (|A_i^T A_i|_F + EASE)

Taking off a part of a user's mean is generalised least squares for users with random intercepts
whose variance is 1/l0 of a row's (Fuller and Battese 1974): columns that differ between users only
count for what they say, and no more. The weight f_i makes every user's part as large as its bound
allows. Without noise (eps=inf) f_i is 1, and the global model is that of generalised least squares.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.common import NDArrays
from numpy.typing import NDArray

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import CohortClient, task
from privfed.algorithm.table_parts import Outer, Sparse, by_item, gram_square
from privfed.data.tables.ragged_cohort import Block, RaggedCohort
from privfed.foundation.linalg import Array
from privfed.models import table_heads
from privfed.models.table_model import (
    ALONE,
    MIXTURE,
    NAMES,
    PARTS,
    TARGET_LIMIT,
    TableModel,
    own_means,
)
from privfed.privacy.adaptive_clipping import Histogram
from privfed.privacy.bounds import UNCLIPPED

INTERCEPT = 10.0
"""l0: variance of a row over the variance of users' intercepts, as assumed."""
EASE = 5.0
"""Added to |A_i^T A_i|_F, so that users with very few rows weigh less."""
MAGNITUDES = Histogram(96, -32)
"""Powers of two that a column's values may have: up to 1e19."""
SPREADS = Histogram(192, -64)
"""Halves of powers of two that a column's spread within a user may have."""
ROUNDING = 1e-12
"""Spread, in units of the mean, below which values differ by rounding alone."""

MOST = 1e80
"""Largest error of one row.

The square of a target like 1e300 overflows; the cap keeps the errors of all other rows readable.
"""


class TableClient(CohortClient):
    """Scales, global model, and heads of one kind; an algorithm adds its tasks."""

    kind = MIXTURE
    """How users predict, one of KINDS of the model."""

    def __init__(self, cohort: RaggedCohort, init: Any = None) -> None:
        super().__init__(cohort)
        assert cohort.schema is not None
        self.schema = cohort.schema

    # Scales of columns.

    @task
    def magnitudes(self, block: Block, shared: NDArrays, told: Announcement) -> Array:
        """Return shares of the rows by power of two per column without bounds: (B, c, bins).

        A column's shares are those of its values other than 0: they add up to at most 1.
        """
        values, there = self._values(block, shared)
        return shares(np.frexp(np.abs(values))[1] - 1 - MAGNITUDES.bottom, there, MAGNITUDES.size)

    @task
    def locate(self, block: Block, shared: NDArrays, told: Announcement) -> Array:
        """Return shares of the rows by position in the interval centre +- spread: (B, c, PARTS).

        In the first round, values outside count at the ends of the interval, because the values
        are still being searched for. Later they do not count: tails that gather at the ends could
        be taken for the middle. Columns whose interval was not found count nowhere.
        """
        values, there = self._values(block, shared)
        columns = self._asked_columns(shared)
        low, width = (shared[0] - shared[1])[columns], 2 * shared[1][columns] / PARTS
        place = np.floor((values - low) / np.where(width > 0, width, np.inf))
        inside = (told.round == 1) | ((place >= 0) & (place < PARTS))
        place = np.clip(np.nan_to_num(place), 0, PARTS - 1).astype(np.int64)
        return shares(place, there & inside & (width > 0), PARTS)

    @task
    def spreads(self, block: Block, shared: NDArrays, told: Announcement) -> Array:
        """Return one-hot the spread of each user's own values per column: (B, c, bins).

        Columns that do not vary for the user, but for rounding, count nowhere.
        """
        both = np.concatenate([block.rows.numbers, block.rows.y[..., None]], axis=2)
        both = both[:, :, self._asked_columns(shared)]
        there = np.isfinite(both)
        middle = own_means(both)
        gaps = np.where(there, both - middle, 0.0)
        count = np.maximum(there.sum(axis=1), 2) - 1
        spread = np.sqrt(np.sum(gaps * gaps, axis=1) / count)
        varies = np.isfinite(spread) & (spread > ROUNDING * np.abs(middle[:, 0]))
        place = np.floor(2.0 * np.log2(np.where(varies, spread, 1.0))) - SPREADS.bottom
        place = np.clip(place, 0, SPREADS.size - 1).astype(np.int64)
        return shares(place[:, None], varies[:, None], SPREADS.size)

    def _asked_columns(self, shared: NDArrays) -> list[int]:
        """Return the columns whose scales are asked for: announced after the model's arrays."""
        return [int(column) for column in shared[len(NAMES)]]

    def _values(self, block: Block, shared: NDArrays) -> tuple[Array, NDArray[np.bool_]]:
        """Return values (B, m, c) of the columns in question, and which count."""
        both = np.concatenate([block.rows.numbers, block.rows.y[..., None]], axis=2)
        both = both[:, :, self._asked_columns(shared)]
        there = np.isfinite(both) & (both != 0)
        return np.where(there, both, 0.0), there

    # The global model.

    def residuals(self, block: Block, model: TableModel, told: Announcement) -> tuple[Any, Array]:
        """Return the encoded rows, and what the global model leaves over of the targets.

        Without noise targets are not clamped, as nothing is bounded.

        Returns:
            Inputs of (B, m) rows, and R (B, m, C).
        """
        inputs = model.inputs(block.rows)
        limit = math.inf if unbounded(told) else TARGET_LIMIT
        targets = model.sent_targets(block.rows.y, limit)
        return inputs, targets - model.w[0] - model.relative(inputs)

    def rows_and_weights(self, X: Array, told: Announcement) -> tuple[Array, Array, Array]:
        """Return A (B, m, P), the weights f (B,), and |f A^T A|_F (B,)."""
        A = partly_centred(np.concatenate([np.ones((*X.shape[:2], 1)), X], axis=2))
        norms = np.sqrt(gram_square(A, A))
        f = np.ones(len(X)) if unbounded(told) else 1.0 / (norms + EASE)
        return A, f, f * norms

    @task
    def curvature(self, block: Block, shared: NDArrays, told: Announcement) -> Outer:
        """Return f_i A_i^T A_i of every user: positive semidefinite, of norm below 1."""
        inputs = TableModel.of(self.schema, shared).inputs(block.rows)
        A, f, norms = self.rows_and_weights(inputs.X, told)
        return Outer(A * np.sqrt(f)[:, None, None], norms)

    @task
    def gradient(self, block: Block, shared: NDArrays, told: Announcement) -> Array:
        """Return W A_i^T R_i f_i / sqrt(P) of every user, (B, P, C)."""
        model, W = TableModel.of(self.schema, shared), shared[len(NAMES)]
        inputs, R = self.residuals(block, model, told)
        A, f, _ = self.rows_and_weights(inputs.X, told)
        G = np.matmul(A.transpose(0, 2, 1), partly_centred(R)) * f[:, None, None]
        return np.matmul(W / math.sqrt(len(W)), G)

    # Items.

    def items_of(self, inputs: Any) -> NDArray[np.int64]:
        """Return the place of each row's items among all items, (B, m, q), -1 for none."""
        place = np.full(self.schema.d + 1, -1, dtype=np.int64)
        place[self.schema.items] = np.arange(len(self.schema.items))
        return place[inputs.items]

    def item_weights(self, items: NDArray[np.int64], told: Announcement) -> tuple[Sparse, Array]:
        """Return the counts c_i of every user, and the weights 1 / |c_i| (B,)."""
        counts = by_item(items, np.ones((*items.shape[:2], 1)), len(self.schema.items))
        f = np.ones(len(items)) if unbounded(told) else 1.0 / np.maximum(counts.norms, 1.0)
        return counts, f

    @task
    def counts(self, block: Block, shared: NDArrays, told: Announcement) -> Sparse:
        """Return c_i / |c_i| of every user: no entry is negative, and the norm is at most 1."""
        inputs = TableModel.of(self.schema, shared).inputs(block.rows)
        counts, f = self.item_weights(self.items_of(inputs), told)
        return counts.times(f)

    @task
    def sums(self, block: Block, shared: NDArrays, told: Announcement) -> Sparse:
        """Return residuals added up by item over |c_i|; round t asks for the t-th item feature."""
        inputs, R = self.residuals(block, TableModel.of(self.schema, shared), told)
        items = self.items_of(inputs)
        _, f = self.item_weights(items, told)
        mine = items[:, :, told.round - 1 : told.round] if told.round else items[:, :, :1]
        return by_item(mine, partly_centred(R), len(self.schema.items)).times(f)

    @task
    def evidence(self, block: Block, shared: NDArrays, told: Announcement) -> Array:
        """Return log(LOO_k / LOO_own mean) of every user, cut to +-1, (B, K)."""
        return table_heads.Candidates(TableModel.of(self.schema, shared), block.rows).evidence()

    # Judging: simulations only.

    def own_errors(self, block: Any, shared: NDArrays) -> Array:
        """Return the mean error (B,) on each user's held-out rows; 0 for users who have none."""
        return self.errors(block, TableModel.of(self.schema, shared, self.kind))

    def rival_errors(self, block: Any) -> dict[str, Array]:
        """Return the errors (B,) of each user alone."""
        return {"alone": self.alone(block)}

    def alone(self, block: Block) -> Array:
        """Return the errors (B,) of users who have only their own rows."""
        return self.errors(block, replace(TableModel.before(self.schema), kind=ALONE))

    @np.errstate(over="ignore", invalid="ignore")
    def errors(self, block: Block, model: TableModel) -> Array:
        """Return the mean error (B,) on each user's held-out rows with heads of this model.

        Losses are capped at MOST; NaN counts as MOST.
        """
        assert block.held is not None and block.whose is not None and block.judging is not None
        heads = table_heads.fit(model, block.rows)
        scores = table_heads.scores(model, block.held, heads[block.whose])
        losses = np.fmin(model.losses(scores, block.held.y), MOST)
        total = np.bincount(block.whose, losses, minlength=len(block))
        return np.asarray(total / np.maximum(block.judging, 1))


def unbounded(told: Announcement) -> bool:
    """Return whether parts are not clipped: runs without noise, in which weights are 1."""
    return told.clips[0] >= UNCLIPPED


def partly_centred(A: Array) -> Array:
    """Return rows A (B, m, P) less (1 - sqrt(l0 / (m + l0))) of their mean."""
    part = 1.0 - math.sqrt(INTERCEPT / (A.shape[1] + INTERCEPT))
    return A - part * A.mean(axis=1, keepdims=True)


def shares(places: NDArray[Any], there: NDArray[np.bool_], size: int) -> Array:
    """Return how the values of each user and column that count are distributed over bins.

    Args:
        places: bin 0..size-1 of each value, (B, m, c).
        there: whether a value counts, (B, m, c).
        size: number of bins.

    Returns:
        Shares (B, c, size): no entry is negative, and they add up to 1 or 0 per user and column.
    """
    B, _, c = places.shape
    cell = np.arange(B)[:, None, None] * c + np.arange(c)
    flat = cell * size + np.clip(places, 0, size - 1)
    each = there / np.maximum(there.sum(axis=1, keepdims=True), 1)
    counts = np.bincount(flat.ravel(), each.ravel(), minlength=B * c * size)
    return counts.reshape(B, c, size).astype(np.float64)
