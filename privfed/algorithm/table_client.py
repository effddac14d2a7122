"""Users with rows of a table: what every algorithm on tables asks them, and how they are judged.

    magnitudes   on which powers of two a user's values of each column without public bounds lie, as shares of its rows
    locate       in which of 64 equal parts of the announced interval they lie, likewise
    global       the ridge solution of a user's own rows to what the global model leaves over: (d + 1) x C

The mean of users' ridge solutions, added again and again, goes to the point where it vanishes: a global model. Directions in
which users have data move at once, none can overshoot (a ridge solution never exceeds what it is fitted to), and no curvature
has to be known.
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
from privfed.privacy.clip_norms import NORMS

RIDGE = Number(lambda x: 1e-6 <= x <= 1e6, "must lie between 1e-6 and 1e6")
"""At such a strength no user's rows, however alike, make its equations singular, which would stop all
other users of the node, too."""
OFFSET = 2.0
"""Length of the constant feature in local solutions, in units of a row's: personal offsets are hardly shrunk."""

MOST = 1e80
"""A larger error of one row is cut: of targets like 1e300, whose squares are no numbers, everybody else's should be told."""


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
        """Shares of the rows by power of two for each column without bounds (B, c, bins); zeros are left out."""
        values, there = self._values(block)
        return shares(
            np.frexp(np.abs(values))[1] - 1 - NORMS.bottom, there & (values != 0), NORMS.size
        )

    @task
    def locate(self, block: Block, shared: NDArrays, told: Announcement) -> Array:
        """Shares of the rows by place in the interval centre +- spread (B, c, PARTS).

        What lies outside counts at its ends where one is still looking for the values, and later not at all: tails that
        gather there would pass for the middle.
        """
        values, there = self._values(block)
        low, width = (shared[0] - shared[1])[self.columns], 2 * shared[1][self.columns] / PARTS
        place = np.floor((values - low) / width)
        seen = there & ((told.round == 1) | ((place >= 0) & (place < PARTS)))
        return shares(np.clip(place, 0, PARTS - 1).astype(np.int64), seen, PARTS)

    def _values(self, block: Block) -> tuple[Array, Any]:
        """Values (B, m, c) of the columns without public bounds, and where there are any."""
        both = np.concatenate(
            [block.rows.numbers.astype(np.float64), block.rows.y[..., None]], axis=2
        )[:, :, self.columns]
        there = np.isfinite(both)
        return np.where(there, both, 0.0), there

    # Models.

    def encoded(self, block: Block, shared: NDArrays) -> tuple[TableModel, Array, Array]:
        """The announced model, encoded rows X (B, m, d) and what its global part leaves over, R (B, m, C)."""
        model = TableModel.of(self.schema, shared)
        X = model.rows(block.rows.numbers, block.rows.codes)
        return model, X, model.targets(block.rows.y) - model.base(X)

    def influences(self, X: Array, strength: float) -> tuple[Array, Array]:
        """Rows h_j (B, m, 1 + d) of local ridge solutions, whose first feature is a constant of length (B,)."""
        square = ridge.lengths(X)
        length = OFFSET * np.sqrt(square)
        constant = np.broadcast_to(length[:, None, None], (*X.shape[:2], 1))
        return ridge.influences(np.concatenate([constant, X], axis=2), strength * square), length

    @task("global")
    def solutions(self, block: Block, shared: NDArrays, told: Announcement) -> Array:
        """Each user's ridge solution (B, 1 + d, C)."""
        _, X, R = self.encoded(block, shared)
        H, length = self.influences(X, self.ridge)
        H[:, :, 0] *= length[:, None]
        return np.matmul(H.transpose(0, 2, 1), R)

    # Judging: simulations only.

    def heads(self, block: Block, shared: NDArrays) -> Array:
        """V_i (B, 1 + k, C) of the personal models."""
        model, X, _ = self.encoded(block, shared)
        return model.fit(X, model.targets(block.rows.y))

    def own_errors(self, block: Any, shared: NDArrays) -> Array:
        """Mean error (B,) on each user's held-out rows; 0 for who has none."""
        return self.errors(block, shared, self.heads(block, shared))

    @np.errstate(over="ignore", invalid="ignore")
    def errors(self, block: Block, shared: NDArrays, V: Array) -> Array:
        """The same of given heads (B, 1 + k, C)."""
        assert block.held is not None and block.whose is not None
        model = TableModel.of(self.schema, shared)
        X = model.rows(block.held.numbers, block.held.codes)
        return self.means(block, model.losses(model.scores(X, V[block.whose]), block.held.y))

    @staticmethod
    def means(block: Block, losses: Array) -> Array:
        """Mean over each user's held-out rows: losses (t,) -> (B,). None counts as more than MOST, nor as no number."""
        assert block.whose is not None and block.judging is not None
        total = np.bincount(block.whose, np.fmin(losses, MOST), minlength=len(block))
        return np.asarray(total / np.maximum(block.judging, 1))

    def rival_errors(self, block: Any) -> dict[str, Array]:
        """Each user alone."""
        return {"alone": self.alone(block)}

    @np.errstate(over="ignore", invalid="ignore")
    def alone(self, block: Block) -> Array:
        """Errors (B,) of users who have only their own rows: columns in their own units, ridge toward their own mean."""
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
    """Counts of places (B, m, c) in 0..size-1 as shares of a user's m rows: (B, c, size), of norm at most 1 for each column."""
    B, m, c = places.shape
    cell = np.arange(B)[:, None, None] * c + np.arange(c)
    flat = cell * size + np.clip(places, 0, size - 1)
    counts = np.bincount(flat.ravel(), there.ravel() / m, minlength=B * c * size)
    return counts.reshape(B, c, size).astype(np.float64)
