"""Each user of a table alone: ridge on its own rows, the strength chosen by leave-one-out."""

from __future__ import annotations

from typing import Any

from flwr.common import NDArrays

from privfed.algorithm.table_client import TableClient
from privfed.foundation.linalg import Array


class TableStandaloneClient(TableClient):
    """Sends nothing and uses nothing shared."""

    def __init__(self, cohort: Any, init: Any) -> None:
        super().__init__(cohort, init, ridge=1.0)

    def own_errors(self, block: Any, shared: NDArrays) -> Array:
        """Return the errors (B,) of each user alone; see :meth:`TableClient.alone`."""
        return self.alone(block)

    def rival_errors(self, block: Any) -> dict[str, Array]:
        """Return nothing: users alone are what others are compared with."""
        return {}
