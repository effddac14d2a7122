"""The client of a node whose users have tables, with any numbers of rows each."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.common import EvaluateIns, EvaluateRes, NDArrays, parameters_to_ndarrays

from privfed.data.tables.own_table import OwnTable
from privfed.data.tables.ragged_cohort import RaggedCohort
from privfed.federation.client_factory import ClientFactory
from privfed.federation.head_store import HeadStore
from privfed.federation.node_clients import NOTHING_TOLD, NodeClients, Served
from privfed.foundation.linalg import Array
from privfed.models import table_heads
from privfed.models.table_model import TableModel


class TableNode(NodeClients):
    """Answers for users of a table; users without rows contribute nothing.

    Args:
        factory: makes the client.
        table: rows of the users.
        users: public numbers of the registered users.
    """

    def __init__(self, factory: ClientFactory, table: OwnTable, users: range) -> None:
        self.table = table
        self.cohort: RaggedCohort = table.numbered(users)
        self.serving: Any = factory.serving(self.cohort)
        self.store: HeadStore | None = None
        super().__init__([Served(self.serving)])

    @property
    def users(self) -> int:
        """Number of users with rows."""
        return int(np.sum(self.cohort.sizes > 0))

    @property
    def row_counts(self) -> list[int]:
        """Numbers of training rows of users who have any."""
        return [int(size) for size in self.cohort.sizes if size]

    def keep_heads(self, store: HeadStore) -> None:
        """Keep the head of every user with rows, once the model is published."""
        self.store = store

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Take the published model; nothing about users is told."""
        if self.store is not None:
            model = self._model(parameters_to_ndarrays(ins.parameters))
            for block in self.cohort.blocks():
                heads = table_heads.fit(model, block.rows)
                for i, user in enumerate(block.ids.tolist()):
                    self.store.save_arrays(user, **heads[i : i + 1].arrays)
        return NOTHING_TOLD

    def errors(self, shared: NDArrays, labels: bool) -> Array:
        """Return the mean error of each user's held-out rows, once per row."""
        found = [np.empty(0)]
        for block in self.table.judged(self.cohort).blocks():
            if len(block) and block.judging is not None:
                found.append(np.repeat(self.serving.own_errors(block, shared), block.judging))
        return np.concatenate(found)

    def _model(self, shared: NDArrays) -> TableModel:
        assert self.cohort.schema is not None
        return TableModel.of(self.cohort.schema, shared, self.serving.kind)
