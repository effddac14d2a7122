"""Private personal models of a table, user side.

    R     residuals of the global model (m, C) around their mean, with rows r_j
    h_j   influence (p,) of row j on the user's ridge solution in the dense columns around their
          mean, which is sum_j h_j r_j^T
    s_c   = sum_j r_jc h_j (p,)
    Z_i   = sum_{j != l} <r_j, r_l> sym(h_j h_l^T)
          = sum_c s_c s_c^T - sum_j |r_j|^2 h_j h_j^T   (p, p)

Z_i is the user's own solution times its transpose, without the terms that hold the noise of one row
twice.

    A (m, P)      rows (1, x); D = L L^T and s the announced variances of effects and of rows
    V             = (A^T A / s + D^-1)^-1 (P, P), b = V A^T R / s (P, C): a user's effects given its
                  rows, covariance and mean
    effects       [b; I] [b; I]^T + [C V, 0; 0, 0], and |R - A b|^2 + C tr(A V A^T) over m C as one
                  more entry of the diagonal: the step of expectation for mixed models (Laird and
                  Ware 1982). It is positive semidefinite.

    h_i (L, C)   residuals added up per item, over the number of the user's rows with it plus 1
    part         sum_c h_ic h_ic^T (L, L): positive semidefinite, so that its sensitivity is
                 sqrt(2) times its norm and not twice; its diagonal is not used
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.algorithm.table_client import TableClient
from privfed.algorithm.table_parts import Outer, SparseOuter, by_item, gram_square
from privfed.data.tables.ragged_cohort import Block, RaggedCohort
from privfed.foundation.constraints import Number
from privfed.kernels.tolerances import CANCELLATION
from privfed.models import ridge as ridges
from privfed.models.table_model import NAMES, TableModel

RIDGE = Number(lambda x: 1e-6 <= x <= 1e6, "must lie between 1e-6 and 1e6")
"""With such a strength no user's equations are singular, however similar its rows are.

Singular equations would stop all other users of the node, too.
"""


class TableFedRepClient(TableClient):
    """Second moments of users' own solutions, in dense columns and in items."""

    def __init__(
        self, cohort: RaggedCohort, init: Any, slope_ridge: Annotated[float, RIDGE]
    ) -> None:
        super().__init__(cohort)
        self.slope_ridge = slope_ridge

    @task
    def slopes(self, block: Block, shared: NDArrays, told: Announcement) -> Outer:
        """Return Z_i of every user by its factors."""
        inputs, R = self.residuals(block, TableModel.of(self.schema, shared), told)
        R = R - R.mean(axis=1, keepdims=True)
        X = inputs.X - inputs.X.mean(axis=1, keepdims=True)
        H = ridges.influences(X, self.slope_ridge * ridges.lengths(X))
        A = H * np.linalg.norm(R, axis=2, keepdims=True)
        s = np.matmul(R.transpose(0, 2, 1), H)
        between, among, mixed = (gram_square(P, Q) for P, Q in ((s, s), (A, A), (s, A)))
        sizes = np.sum(s * s, axis=(1, 2)) + np.sum(A * A, axis=(1, 2))
        # A difference of larger numbers: see the spectral initialiser on CANCELLATION.
        norms = np.sqrt(np.maximum(between - 2 * mixed + among, 0.0))
        return Outer(s, np.maximum(norms, CANCELLATION * sizes), A)

    @task
    def effects(self, block: Block, shared: NDArrays, told: Announcement) -> Outer:
        """Return what each user's rows say of the variances of effects and rows, by factors."""
        model, s = TableModel.of(self.schema, shared), float(shared[len(NAMES)][0])
        inputs, R = self.residuals(block, model, told)
        L = model.effects[np.concatenate([[0], 1 + self.schema.dense])] * math.sqrt(s)
        F = np.concatenate([np.ones((*R.shape[:2], 1)), inputs.X], axis=2) @ L
        (B, m, C), r, P = R.shape, L.shape[1], len(L)
        values, E = np.linalg.eigh(np.matmul(F.transpose(0, 2, 1), F))
        kept = 1.0 / (1.0 + np.maximum(values, 0.0) / s)
        T = E.transpose(0, 2, 1) * np.sqrt(kept)[:, :, None]
        gamma = (
            np.matmul(T.transpose(0, 2, 1), np.matmul(T, np.matmul(F.transpose(0, 2, 1), R))) / s
        )
        left = R - np.matmul(F, gamma)
        chance = s * np.sum(1.0 - kept, axis=1)  # tr(A V A^T)
        rows = np.sqrt((np.sum(left * left, axis=(1, 2)) / C + chance) / m)
        part = np.zeros((B, r + C + 1, P + C + 1))
        part[:, :r, :P] = math.sqrt(C) * np.matmul(T, L.T)
        part[:, r : r + C, :P] = np.matmul(L, gamma).transpose(0, 2, 1)
        part[:, r : r + C, P : P + C] = np.eye(C)
        part[:, -1, -1] = rows
        return Outer(part, np.sqrt(gram_square(part, part)))

    @task
    def factors(self, block: Block, shared: NDArrays, told: Announcement) -> SparseOuter:
        """Return sum_c h_ic h_ic^T of every user by its factors."""
        inputs, R = self.residuals(block, TableModel.of(self.schema, shared), told)
        items, m, L = self.items_of(inputs), R.shape[1], len(self.schema.items)
        R = R - R.mean(axis=1, keepdims=True) * m / (m + 1)
        h, counts = by_item(items, R, L), by_item(items, np.ones_like(R[:, :, :1]), L)
        h = type(h)(h.who, h.place, h.values / (counts.values + 1.0), h.shape)
        C = R.shape[2]
        pairs = [(c, e) for c in range(C) for e in range(C)]
        squares = sum(
            np.bincount(h.who, h.values[:, c] * h.values[:, e], minlength=len(R)) ** 2
            for c, e in pairs
        )
        return SparseOuter(h, np.sqrt(squares))
