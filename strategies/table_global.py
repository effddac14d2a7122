"""One global private model of a table, server side: what personal models have to beat."""

from __future__ import annotations

from privfed.algorithm.table_strategy import TableStrategy


class TableGlobal(TableStrategy):
    """Scales, then a global model with the rest of the budget."""
