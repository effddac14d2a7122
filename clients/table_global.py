"""One global private model of a table's rows, user side: nothing but what every client of tables does."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.table_client import RIDGE, TableClient
from privfed.data.tables.ragged_cohort import Block
from privfed.foundation.linalg import Array


class TableGlobalClient(TableClient):
    """Everybody predicts with the global model; beside it a personal offset is tried."""

    def __init__(self, cohort: Any, init: Any, ridge: Annotated[float, RIDGE]) -> None:
        super().__init__(cohort, init, ridge)
        self.shared: NDArrays = []

    def heads(self, block: Block, shared: NDArrays) -> Array:
        """None."""
        self.shared = shared
        return np.zeros((len(block), 1, shared[2].shape[1]))

    def rival_errors(self, block: Any) -> dict[str, Array]:
        """Global model and personal offset."""
        model, X, _ = self.encoded(block, self.shared)
        return {
            "offset": self.errors(block, self.shared, model.fit(X, model.targets(block.rows.y)))
        }
