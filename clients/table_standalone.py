"""Users with rows of a table, each alone: ridge on its own rows, its strength chosen by leave-one-out."""

from __future__ import annotations

from typing import Any

from flwr.common import NDArrays

from privfed.algorithm.table_client import TableClient
from privfed.foundation.linalg import Array


class TableStandaloneClient(TableClient):
    """Nothing is asked, nothing is shared."""

    def __init__(self, cohort: Any, init: Any) -> None:
        super().__init__(cohort, init, ridge=1.0)

    def own_errors(self, block: Any, shared: NDArrays) -> Array:
        """See :meth:`TableClient.alone`."""
        return self.alone(block)

    def rival_errors(self, block: Any) -> dict[str, Array]:
        """Nobody to compare with."""
        return {}
