"""One global private model of a table and a personal offset, user side."""

from __future__ import annotations

from privfed.algorithm.table_client import TableClient
from privfed.models.table_model import OFFSET


class TableOffsetClient(TableClient):
    """Predicts with the global model and the user's own offset from it."""

    kind = OFFSET
