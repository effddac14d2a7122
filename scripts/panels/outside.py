"""Simple private methods from outside, each with the whole budget and some things for free.

    statistics   sum_i of clipped [A_i, y_i]^T [A_i, y_i] + noise, ridge, and the user's own heads
    item means   noisy sums and counts per item, and the user's own offset

Scales and clip norms are those of the data, for nothing. The ridge of the item means is the one
that suits the held-out rows best. So these methods are better here than they could be in use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from panels.references import Array, Rows
from privfed.data.tables.ragged_cohort import RaggedCohort
from privfed.models import table_heads
from privfed.models.table_model import MIXTURE, TableModel

RIDGES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)


def free_scales(cohort: RaggedCohort, model: TableModel) -> TableModel:
    """Return the model with the scales of the data, for columns without public bounds."""
    both = np.column_stack([cohort.rows.numbers, cohort.rows.y])
    with np.errstate(all="ignore"):
        centre = np.nan_to_num(np.nanmedian(both, axis=0)) if len(both) else model.centre
        spread = np.nan_to_num(np.nanstd(np.clip(both, *np.nanpercentile(both, [1, 99], axis=0)),
                                         axis=0))  # fmt: skip
    known = model.spread > 0
    return replace(
        model,
        centre=np.where(known, model.centre, centre),
        spread=np.where(known, model.spread, np.where(spread > 0, spread, 1.0)),
    )


def statistics(cohort: RaggedCohort, mu: float, rng: np.random.Generator) -> TableModel:
    """Return a global model by noisy sufficient statistics of all users.

    Args:
        cohort: all users.
        mu: the whole budget.
        rng: source of the noise.
    """
    model = free_scales(cohort, TableModel.before(cohort.schema))  # type: ignore[arg-type]
    moments, norms = [], []
    for block in cohort.blocks():
        X, y = model.inputs(block.rows).X, model.sent_targets(block.rows.y)
        Z = np.concatenate([np.ones((*X.shape[:2], 1)), X, y], axis=2)
        M = np.matmul(Z.transpose(0, 2, 1), Z)
        moments.append(M)
        norms.append(np.sqrt(np.sum(M * M, axis=(1, 2))))
    M, norm = np.concatenate(moments), np.concatenate(norms)
    clip = float(np.median(norm))
    total = np.einsum("b,bij->ij", np.minimum(1.0, clip / np.maximum(norm, 1e-12)), M)
    P, edge = 1 + len(model.schema.dense), 0.0
    if not math.isinf(mu):
        # Semidefinite parts: replacing one moves the sum by at most sqrt(2) times the norm.
        sd = math.sqrt(2.0) * clip / mu
        noise = rng.normal(size=total.shape) * sd
        total = total + (np.triu(noise, 1) + np.triu(noise, 1).T) / math.sqrt(2.0)
        total = total + np.diag(np.diag(noise))
        edge = sd * math.sqrt(2.0 * P)
    values, E = np.linalg.eigh(total[:P, :P])
    G = (E * (np.maximum(values, 0.0) + edge + 1e-6 * abs(values[-1]))) @ E.T
    w = model.w.copy()
    w[np.concatenate([[0], 1 + model.schema.dense])] = np.linalg.solve(G, total[:P, P:])
    return replace(model, w=w, kind=MIXTURE)


@dataclass(frozen=True)
class ItemMeans:
    """Noisy item means of users' residuals, in encoded units."""

    sums: Array
    counts: Array
    noise: float

    def biases(self, ridge: float) -> Array:
        """Return the bias (L,) of every item."""
        return self.sums / (np.maximum(self.counts, 0.0) + ridge + self.noise)


def item_means(
    rows: Rows, n: int, L: int, mu: float, rng: np.random.Generator
) -> tuple[ItemMeans, Array]:
    """Return noisy item means, half of the budget to sums and half to counts, and own means (n,).

    Args:
        rows: training rows.
        n: number of users.
        L: number of items.
        mu: the whole budget.
        rng: source of the noise.
    """
    counts = np.bincount(rows.who, minlength=n)
    middle = np.bincount(rows.who, rows.y, minlength=n) / np.maximum(counts, 1)
    r = rows.y - middle[rows.who]
    norm = np.sqrt(np.bincount(rows.who, r * r, minlength=n))
    clip_r, clip_c = (float(np.median(x)) for x in (norm, np.sqrt(counts)))
    factor_r = np.minimum(1.0, clip_r / np.maximum(norm, 1e-12))[rows.who]
    factor_c = np.minimum(1.0, clip_c / np.maximum(np.sqrt(counts), 1e-12))[rows.who]
    S: Array = np.bincount(rows.items, r * factor_r, minlength=L).astype(np.float64)
    N: Array = np.bincount(rows.items, factor_c, minlength=L).astype(np.float64)
    if math.isinf(mu):
        return ItemMeans(S, N, 0.0), middle
    each = mu / math.sqrt(2.0)
    S = S + rng.normal(size=L) * 2 * clip_r / each
    N = N + rng.normal(size=L) * math.sqrt(2.0) * clip_c / each
    return ItemMeans(S, N, math.sqrt(2.0) * clip_c / each), middle


def with_offset(
    biases: Array, train: Rows, held: Rows, n: int, middle: float
) -> NDArray[np.float64]:
    """Return predictions: item bias and the user's own offset, shrunk with one row's weight."""
    r = train.y - biases[train.items] - middle
    counts = np.bincount(train.who, minlength=n)
    offset = np.bincount(train.who, r, minlength=n) / (counts + 1.0)
    return middle + offset[held.who] + biases[held.items]


def losses_with_heads(cohort: RaggedCohort, model: TableModel) -> Array:
    """Return the loss (t,) of every held-out row with heads of a model, in the cohort's order."""
    losses: Any = np.zeros(len(cohort.held))
    places = {user: i for i, user in enumerate(cohort.ids)}
    for block in cohort.blocks():
        assert block.held is not None and block.whose is not None
        heads = table_heads.fit(model, block.rows)
        found = model.losses(
            table_heads.scores(model, block.held, heads[block.whose]), block.held.y
        )
        users = np.array([places[user] for user in block.ids])
        counts = np.diff(cohort.held_starts)[users]
        starts = np.repeat(cohort.held_starts[users], counts)
        within = np.arange(len(found)) - np.repeat(np.cumsum(counts) - counts, counts)
        losses[starts + within] = found
    return np.asarray(losses)
