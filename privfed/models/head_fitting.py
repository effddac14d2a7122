"""Heads of users who come with their rows after training, and how well they do on rows they were not fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.data.cohort import Ids
from privfed.data.tables.ragged_cohort import RaggedCohort, TableRows
from privfed.foundation.linalg import Array
from privfed.models.linear import LinearModel
from privfed.models.table_model import TableModel

Model = TableModel | LinearModel


@dataclass(frozen=True)
class Fitted:
    """Heads V (u, ., C) of u users, 0 for who has no rows; own and base (N,): loss of each row under the head fitted without
    it, NaN where there is none, and without any head."""

    V: Array
    own: Array
    base: Array


def no_heads(model: Model, users: int) -> Array:
    """What users without rows have: nothing beside the global model."""
    offset, C = (1, model.w.shape[1]) if isinstance(model, TableModel) else (0, 1)
    return np.zeros((users, offset + model.U.shape[1], C))


def fit_head(model: Model, rows: TableRows) -> Array:
    """The head (., C) of one user with any number of rows."""
    if not len(rows):
        return no_heads(model, 1)[0]
    return model.fit(model.rows(rows.numbers, rows.codes)[None], model.targets(rows.y)[None])[0]


def fit_users(model: Model, rows: TableRows, who: NDArray[np.integer], users: int) -> Fitted:
    """Heads of several users: row j is that of user who[j], a place among so many users."""
    order = np.argsort(who, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(who, minlength=users))])
    nothing: Ids = np.zeros(users + 1, dtype=np.int64)
    cohort = RaggedCohort(
        np.arange(users), rows[order], starts, rows[:0], nothing, model.U.shape[0]
    )
    V, own, base = no_heads(model, users), np.empty(len(rows)), np.empty(len(rows))
    for block in cohort.blocks():
        X, Y, y = (
            model.rows(block.rows.numbers, block.rows.codes),
            model.targets(block.rows.y),
            block.rows.y.ravel(),
        )
        V[block.ids] = model.fit(X, Y)
        places = order[(starts[block.ids][:, None] + np.arange(block.m)).ravel()]
        scores = model.left_out(X, Y).reshape(len(y), Y.shape[2])
        known: NDArray[np.bool_] = np.all(np.isfinite(scores), axis=1)
        own[places] = np.where(
            known, model.losses(np.where(known[:, None], scores, 0.0), y), np.nan
        )
        base[places] = model.losses(model.base(X).reshape(len(y), Y.shape[2]), y)
    return Fitted(V, own, base)


def predict(model: Model, rows: TableRows, V: Array, who: NDArray[np.integer]) -> Array:
    """Answers (N,) to rows, each with the head V (u, ., C) of its user who (N,); -1: without a head."""
    heads = np.concatenate([V, no_heads(model, 1)])
    step = max(1, (1 << 22) // max(1, model.U.shape[0] + heads[0].size))
    parts = [slice(start, start + step) for start in range(0, len(rows), step)]
    answers = [
        model.answers(
            model.scores(model.rows(rows[part].numbers, rows[part].codes), heads[who[part]])
        )
        for part in parts
    ]
    return np.concatenate(answers) if answers else np.empty(0)
