"""Heads of users who join after training, and their losses on held-out rows.

Heads of a linear model are whole predictors (u, d, 1); those of a table are :class:`TableHeads`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.data.cohort import Ids
from privfed.data.tables.ragged_cohort import RaggedCohort, TableRows
from privfed.foundation.linalg import Array
from privfed.models import logistic_heads, table_heads
from privfed.models.linear_model import LinearModel
from privfed.models.table_heads import TableHeads
from privfed.models.table_model import TableModel

Model = TableModel | LinearModel
Heads = TableHeads | Array


@dataclass(frozen=True)
class Fitted:
    """Heads of some users, and losses of their rows.

    Attributes:
        heads: heads of u users; those of users without rows predict as no head does.
        own: loss of each row under the head fitted without it, (N,); NaN if there is none.
        base: loss of each row without a head, (N,).
    """

    heads: Heads
    own: Array
    base: Array


def no_heads(model: Model, users: int) -> Heads:
    """Return heads as users without rows have them."""
    if isinstance(model, TableModel):
        return TableHeads.zero(model, users)
    return np.zeros((users, len(model.U), 1))


def fit_head(model: Model, rows: TableRows) -> Heads:
    """Return the head of one user with any number of rows, without an axis of users."""
    if not len(rows):
        return no_heads(model, 1)[0]
    return _fit(model, rows[None])[0]


def _fit(model: Model, rows: TableRows) -> Heads:
    """Return the heads of B users with rows (B, m)."""
    if isinstance(model, TableModel):
        return table_heads.fit(model, rows)
    return model.fit(model.rows(rows.numbers), model.targets(rows.y))


def scores(model: Model, rows: TableRows, heads: Heads) -> Array:
    """Return scores (t, C) of t rows with the head of each row's user."""
    if isinstance(model, TableModel):
        assert isinstance(heads, TableHeads)
        return table_heads.scores(model, rows, heads)
    assert isinstance(heads, np.ndarray)
    return model.scores(model.rows(rows.numbers), heads)


def _left_out(model: Model, rows: TableRows) -> Array:
    """Return scores (B, m, C) of rows under heads fitted without them."""
    if isinstance(model, TableModel):
        return table_heads.left_out(model, rows)
    return model.left_out(model.rows(rows.numbers), model.targets(rows.y))


def fit_heads(model: Model, cohort: RaggedCohort, users: int) -> Heads:
    """Return the heads of the users 0..users-1 of a cohort."""
    heads = no_heads(model, users)
    for block in cohort.blocks():
        if len(block):
            heads[block.ids] = _fit(model, block.rows)  # type: ignore[assignment]
    return heads


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
    width = model.schema.width if isinstance(model, TableModel) else len(model.U)
    cohort = RaggedCohort(np.arange(users), rows[order], starts, rows[:0], nothing, width)
    heads, own, base = no_heads(model, users), np.empty(len(rows)), np.empty(len(rows))
    for block in cohort.blocks():
        if not len(block):
            continue
        heads[block.ids] = _fit(model, block.rows)  # type: ignore[assignment]
        places = order[(starts[block.ids][:, None] + np.arange(block.m)).ravel()]
        flat = block.rows.reshaped(len(places))
        told = _left_out(model, block.rows).reshape(len(places), -1)
        known: NDArray[np.bool_] = np.all(np.isfinite(told), axis=1)
        own[places] = np.where(
            known, model.losses(np.where(known[:, None], told, 0.0), flat.y), np.nan
        )
        base[places] = model.losses(scores(model, flat, no_heads(model, len(flat))), flat.y)
    return Fitted(heads, own, base)


def predict(
    model: Model, rows: TableRows, heads: Heads, who: NDArray[np.integer]
) -> tuple[Array, Array | None]:
    """Return the predictions for rows, (N,), and the probabilities of labels.

    Args:
        model: published model.
        rows: N rows.
        heads: heads of u users.
        who: index of each row's user, (N,); -1 means no head.

    Returns:
        Answers (N,), numbers or numbers of labels, and probabilities (N, C); None for numbers.
    """
    step = max(1, (1 << 22) // max(1, no_heads(model, 1).size))
    answers, chances = [np.empty(0)], []
    for start in range(0, len(rows), step):
        part, whose = rows[start : start + step], who[start : start + step]
        mine = no_heads(model, len(part))
        mine[whose >= 0] = heads[whose[whose >= 0]]  # type: ignore[assignment]
        told = scores(model, part, mine)
        answers.append(model.answers(told))
        if isinstance(model, TableModel) and model.schema.classes:
            chances.append(logistic_heads.probabilities(told))
    return np.concatenate(answers), np.concatenate(chances) if chances else None


def arrays_of(heads: Heads) -> dict[str, Array]:
    """Return the arrays that heads consist of, by name."""
    return heads.arrays if isinstance(heads, TableHeads) else {"V": heads}
