"""One global private model of a table, user side: only the tasks that all table clients have."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.table_client import RIDGE, TableClient
from privfed.data.tables.ragged_cohort import Block
from privfed.foundation.linalg import Array


class TableGlobalClient(TableClient):
    """Predicts with the global model for every user; a personal offset is judged as a rival."""

    def __init__(self, cohort: Any, init: Any, ridge: Annotated[float, RIDGE]) -> None:
        super().__init__(cohort, init, ridge)
        self.shared: NDArrays = []

    def heads(self, block: Block, shared: NDArrays) -> Array:
        """Return zeros (B, 1, C): no user has a head."""
        self.shared = shared
        return np.zeros((len(block), 1, shared[2].shape[1]))

    def rival_errors(self, block: Any) -> dict[str, Array]:
        """Return the errors of the global model with a personal offset."""
        model, X, _ = self.encoded(block, self.shared)
        return {
            "offset": self.errors(block, self.shared, model.fit(X, model.targets(block.rows.y)))
        }
