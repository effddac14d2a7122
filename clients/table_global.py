"""One global private model of a table, user side: only the tasks that all table clients have."""

from __future__ import annotations

from typing import Any

from flwr.common import NDArrays

from privfed.algorithm.table_client import TableClient
from privfed.data.evaluation_metrics import HeldOut
from privfed.foundation.linalg import Array
from privfed.models.table_model import GLOBAL, OFFSET, TableModel


class TableGlobalClient(TableClient):
    """Predicts with the global model for every user; a personal offset is judged as a rival."""

    kind = GLOBAL

    def own_errors(self, block: Any, shared: NDArrays) -> Array:
        """Return the errors (B,) of the global model, which is kept for its rival."""
        self.rival = TableModel.of(self.schema, shared, OFFSET)
        return super().own_errors(block, shared)

    def judged_predictions(self, block: Any, shared: NDArrays) -> dict[str, HeldOut]:
        """Return predictions of the global model, and with a personal offset."""
        kinds = {"own": GLOBAL, "offset": OFFSET}
        return {
            name: self.predictions(block, TableModel.of(self.schema, shared, kind))
            for name, kind in kinds.items()
        }

    def rival_errors(self, block: Any) -> dict[str, Array]:
        """Return the errors of the global model with a personal offset."""
        return {"offset": self.errors(block, self.rival)}
