"""Heads of users who join after training, and their losses on held-out rows."""

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
    """Heads of some users, and losses of their rows.

    Attributes:
        V: heads, (u, ., C); 0 for users without rows.
        own: loss of each row under the head fitted without it, (N,); NaN if there is none.
        base: loss of each row without a head, (N,).
    """

    V: Array
    own: Array
    base: Array


def no_heads(model: Model, users: int) -> Array:
    """Return zero heads (users, ., C), as users without rows have them."""
    offset, C = (1, model.w.shape[1]) if isinstance(model, TableModel) else (0, 1)
    return np.zeros((users, offset + model.U.shape[1], C))


def fit_head(model: Model, rows: TableRows) -> Array:
    """Return the head (., C) of one user with any number of rows."""
    if not len(rows):
        return no_heads(model, 1)[0]
    return model.fit(model.rows(rows.numbers, rows.codes)[None], model.targets(rows.y)[None])[0]


def fit_users(model: Model, rows: TableRows, who: NDArray[np.integer], users: int) -> Fitted:
    """Fit the heads of several users.

    Args:
        model: published model.
        rows: rows of all users, N of them.
        who: index of each row's user, (N,).
        users: number of users.
    """
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
    """Return the predictions for rows, (N,).

    Args:
        model: published model.
        rows: N rows.
        V: heads, (u, ., C).
        who: index of each row's user, (N,); -1 means no head.
    """
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
