"""Base of clients with rows of a table: the tasks of every algorithm on tables, and judging.

    magnitudes   per column without public bounds: shares of the user's rows by power of two
    locate       per such column: shares of the user's rows by 64th of the announced interval
    global       ridge solution (d + 1) x C, fitted on the user's own rows to the residuals of the
                 global model

Adding the mean of the users' ridge solutions repeatedly converges to the point at which that mean
vanishes: a global model. Directions in which users have data move at once. No direction can
overshoot, because a ridge solution never exceeds what it is fitted to. No curvature has to be
known.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays
from numpy.typing import NDArray

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import CohortClient, task
from privfed.data.tables.ragged_cohort import Block, Codes, RaggedCohort
from privfed.data.tables.schema import expand
from privfed.foundation.constraints import Number
from privfed.foundation.linalg import Array
from privfed.models import ridge
from privfed.models.table_model import LIMIT, PARTS, TableModel, unscaled
from privfed.privacy.adaptive_clipping import NORMS

RIDGE = Number(lambda x: 1e-6 <= x <= 1e6, "must lie between 1e-6 and 1e6")
"""With such a strength no user's equations are singular, however similar its rows are.

Singular equations would stop all other users of the node, too.
"""
OFFSET = 2.0
"""Length of the constant feature in local solutions, in units of a row's length.

It is large so that personal offsets are hardly shrunk.
"""

MOST = 1e80
"""Largest error of one row.

The square of a target like 1e300 overflows; the cap keeps the errors of all other rows readable.
"""


class TableClient(CohortClient):
    """Global model and personal offset; an algorithm adds its tasks and how heads are fitted."""

    def __init__(self, cohort: RaggedCohort, init: Any, ridge: Annotated[float, RIDGE]) -> None:
        super().__init__(cohort)
        assert cohort.schema is not None
        self.schema = cohort.schema
        self.ridge = ridge
        self.columns = unscaled(self.schema)

    # Scales of columns.

    @task
    def magnitudes(self, block: Block, shared: NDArrays, told: Announcement) -> Array:
        """Return shares of the rows by power of two per column without bounds: (B, c, bins).

        Zeros are left out.
        """
        values, there = self._values(block)
        return shares(
            np.frexp(np.abs(values))[1] - 1 - NORMS.bottom, there & (values != 0), NORMS.size
        )

    @task
    def locate(self, block: Block, shared: NDArrays, told: Announcement) -> Array:
        """Return shares of the rows by position in the interval centre +- spread: (B, c, PARTS).

        In the first round, values outside count at the ends of the interval, because the values
        are still being searched for. Later they do not count: tails that gather at the ends could
        be taken for the middle.
        """
        values, there = self._values(block)
        low, width = (shared[0] - shared[1])[self.columns], 2 * shared[1][self.columns] / PARTS
        place = np.floor((values - low) / width)
        seen = there & ((told.round == 1) | ((place >= 0) & (place < PARTS)))
        return shares(np.clip(place, 0, PARTS - 1).astype(np.int64), seen, PARTS)

    def _values(self, block: Block) -> tuple[Array, Any]:
        """Return values (B, m, c) of the columns without public bounds, and which are present."""
        both = np.concatenate(
            [block.rows.numbers.astype(np.float64), block.rows.y[..., None]], axis=2
        )[:, :, self.columns]
        there = np.isfinite(both)
        return np.where(there, both, 0.0), there

    # Models.

    def encoded(self, block: Block, shared: NDArrays) -> tuple[TableModel, Array, Array]:
        """Return the announced model, the encoded rows and the residuals of its global part.

        Returns:
            The model, X (B, m, d) and R (B, m, C).
        """
        model = TableModel.of(self.schema, shared)
        X = model.rows(block.rows.numbers, block.rows.codes)
        return model, X, model.targets(block.rows.y) - model.base(X)

    def influences(self, X: Array, strength: float) -> tuple[Array, Array]:
        """Return the influence of each row on the local ridge solution.

        Args:
            X: encoded rows (B, m, d).
            strength: strength of the ridge, in units of a row's mean square.

        Returns:
            Influences h_j (B, m, 1 + d), whose first feature is the constant, and the length (B,)
            of that constant.
        """
        square = ridge.lengths(X)
        length = OFFSET * np.sqrt(square)
        constant = np.broadcast_to(length[:, None, None], (*X.shape[:2], 1))
        return ridge.influences(np.concatenate([constant, X], axis=2), strength * square), length

    @task("global")
    def solutions(self, block: Block, shared: NDArrays, told: Announcement) -> Array:
        """Return each user's ridge solution (B, 1 + d, C)."""
        _, X, R = self.encoded(block, shared)
        H, length = self.influences(X, self.ridge)
        H[:, :, 0] *= length[:, None]
        return np.matmul(H.transpose(0, 2, 1), R)

    # Judging: simulations only.

    def heads(self, block: Block, shared: NDArrays) -> Array:
        """Return the heads V_i (B, 1 + k, C) of the personal models."""
        model, X, _ = self.encoded(block, shared)
        return model.fit(X, model.targets(block.rows.y))

    def own_errors(self, block: Any, shared: NDArrays) -> Array:
        """Return the mean error (B,) on each user's held-out rows; 0 for users who have none."""
        return self.errors(block, shared, self.heads(block, shared))

    @np.errstate(over="ignore", invalid="ignore")
    def errors(self, block: Block, shared: NDArrays, V: Array) -> Array:
        """Return the mean error (B,) on each user's held-out rows with heads V (B, 1 + k, C)."""
        assert block.held is not None and block.whose is not None
        model = TableModel.of(self.schema, shared)
        X = model.rows(block.held.numbers, block.held.codes)
        return self.means(block, model.losses(model.scores(X, V[block.whose]), block.held.y))

    @staticmethod
    def means(block: Block, losses: Array) -> Array:
        """Return the mean over each user's held-out rows: losses (t,) -> (B,).

        Losses are capped at MOST; NaN counts as MOST.
        """
        assert block.whose is not None and block.judging is not None
        total = np.bincount(block.whose, np.fmin(losses, MOST), minlength=len(block))
        return np.asarray(total / np.maximum(block.judging, 1))

    def rival_errors(self, block: Any) -> dict[str, Array]:
        """Return the errors (B,) of each user alone."""
        return {"alone": self.alone(block)}

    @np.errstate(over="ignore", invalid="ignore")
    def alone(self, block: Block) -> Array:
        """Return the errors (B,) of users who have only their own rows.

        Each user scales columns by its own rows and fits a ridge regression toward its own mean.
        """
        assert block.held is not None and block.whose is not None
        numbers = block.rows.numbers.astype(np.float64)
        there = np.isfinite(numbers)
        count = np.maximum(there.sum(axis=1), 1)
        centre = np.where(there, numbers, 0.0).sum(axis=1) / count
        spread = np.sqrt((np.where(there, numbers - centre[:, None], 0.0) ** 2).sum(axis=1) / count)
        spread = np.where(spread > 1e-9 * np.abs(centre), spread, np.inf)
        p = len(self.schema.numbers)

        def encode(values: Array, codes: Codes, users: Any) -> Array:
            own = np.clip((values - centre[users]) / spread[users], -LIMIT, LIMIT)
            return expand(
                self.schema, own.astype(np.float32), codes, np.zeros(p), np.ones(p), LIMIT
            )

        public, labels = TableModel.before(self.schema), self.schema.classes > 0
        X = encode(numbers, block.rows.codes, np.arange(len(block))[:, None])
        Y = public.targets(block.rows.y) if labels else block.rows.y[..., None]
        middle_x, middle_y = X.mean(axis=1), Y.mean(axis=1)
        fitted = ridge.fit_ridge_heads(X - middle_x[:, None], Y - middle_y[:, None], centre=True)
        T = (
            encode(block.held.numbers.astype(np.float64), block.held.codes, block.whose)
            - middle_x[block.whose]
        )
        scores = middle_y[block.whose] + np.matmul(T[:, None, :], fitted.V[block.whose])[:, 0]
        return self.means(
            block,
            public.losses(scores, block.held.y) if labels else (scores[:, 0] - block.held.y) ** 2,
        )


def shares(places: NDArray[Any], there: NDArray[np.bool_], size: int) -> Array:
    """Return how the rows of each user are distributed over bins, as shares of its m rows.

    Args:
        places: bin 0..size-1 of each value, (B, m, c).
        there: whether a value counts, (B, m, c).
        size: number of bins.

    Returns:
        Shares (B, c, size), of norm at most 1 per user and column.
    """
    B, m, c = places.shape
    cell = np.arange(B)[:, None, None] * c + np.arange(c)
    flat = cell * size + np.clip(places, 0, size - 1)
    counts = np.bincount(flat.ravel(), there.ravel() / m, minlength=B * c * size)
    return counts.reshape(B, c, size).astype(np.float64)
