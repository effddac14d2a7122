"""Each user of a table alone: the candidates of personal models that need nobody else."""

from __future__ import annotations

from typing import Any

from flwr.common import NDArrays

from privfed.algorithm.table_client import TableClient
from privfed.data.evaluation_metrics import HeldOut
from privfed.foundation.linalg import Array


class TableStandaloneClient(TableClient):
    """Sends nothing and uses nothing shared."""

    def own_errors(self, block: Any, shared: NDArrays) -> Array:
        """Return the errors (B,) of each user alone; see :meth:`TableClient.alone`."""
        return self.alone(block)

    def judged_predictions(self, block: Any, shared: NDArrays) -> dict[str, HeldOut]:
        """Return predictions of each user alone."""
        return {"own": self.predictions(block, self.alone_model())}

    def rival_errors(self, block: Any) -> dict[str, Array]:
        """Return nothing: users alone are what others are compared with."""
        return {}
