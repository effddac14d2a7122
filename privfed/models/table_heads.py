"""How a user of a table predicts: a mixture of candidates, weighted by what it has seen of them.

A candidate is an offset and, for some, slopes, fitted by ridge to what a base leaves over:

    y - w_0 - t (base - w_0)        t the trust in the global model, 0 to 1

    family        features                                     t          offset held at 0
    own mean      none                                         0          no
    own columns   the user's columns, scaled by its own rows   0          no
    offset        none                                         0, .5, 1   weakly to strongly
    slopes        encoded columns                              0, 1       weakly, strongly
    directions    shared directions                            1          weakly, strongly
    effects       (1, x) L                                     1          in L

The first two use nothing but the user's own rows. Every candidate's leave-one-out error LOO_k is
known in closed form. With m rows the weight of candidate k is

    exp(-ROWS E_k / 2 - m log(LOO_k) / 2) / (size of its family)

where E_k is the released evidence: the population's mean of log(LOO_k / LOO_own mean). It counts
like ROWS rows of one's own, times n / (n + FEW_USERS). Where no evidence was released, a user's own
counts ALONE_TIMES: errors of candidates on the same rows are so alike that their differences are
surer than they look.

This is what makes personal models safe: a global model that noise has ruined predicts a user's own
rows badly, and loses its weight there. All candidates are linear, so their mixture is one head

    y = base + V_0 + (base - w_0) V_1 + X V_x + features V_f + own V_o

and the head 0 is the global model. Without a global model, base is 0. Scores of labels become
probabilities by the map of `logistic_heads`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from privfed.data.tables.ragged_cohort import TableRows
from privfed.foundation.linalg import Array
from privfed.models import logistic_heads, ridge
from privfed.models.table_model import ALONE, GLOBAL, OFFSET, Inputs, TableModel, encode

OWN = tuple(10.0 ** (x / 2) for x in range(-3, 6))
EFFECTS = (0.4, 1.0, 2.5)
"""Strengths of users' own effects; 1 is that of the mixed model."""
SLOPES, DIRECTIONS = (0.3, 3.0, 30.0, 300.0), (0.3, 3.0, 30.0)
"""Strengths of slopes, in units of the mean square of a user's rows of features."""
OFFSETS, FEW_OFFSETS = (1.0, 4.0, 16.0, 64.0), (1.0, 8.0)
"""Strengths that hold an offset at 0, in rows."""
ROWS = 120.0
"""Number of own rows that the evidence of a large population counts as."""
FEW_USERS = 50.0
"""Number of users whose evidence counts half: with few users it is partly chance."""
ALONE_TIMES = 2.0
"""How often a user's own rows count where there is no evidence of others."""
DOUBT = 1.0
"""Log of the odds against candidates that use nothing of other users, where there is a model."""
PRIOR = 0.3
"""Number of rows with the error of the own mean that are added to every leave-one-out error.

It keeps a user with few rows, which one candidate happens to fit exactly, from being certain.
"""
FLOOR, LABEL_FLOOR = 0.01, 0.1
"""Squared errors of encoded targets that are added to the own mean's error in that prior.

Only where the unit of targets is public: in a unit that noise has made up, any error may be small.
"""
WIDER = 0.5
"""Predictions may leave the range of the user's own targets by this part of it."""


@dataclass(frozen=True)
class Family:
    """Candidates with the same features.

    Attributes:
        name: `own mean`, `own columns`, `offset`, `slopes` or `directions`.
        strengths: strengths of slopes; empty without features.
        offsets: strengths of the offset; 0 leaves it free.
        trusts: trusts in the global model.
    """

    name: str
    strengths: tuple[float, ...] = ()
    offsets: tuple[float, ...] = (0.0,)
    trusts: tuple[float, ...] = (0.0,)

    def __len__(self) -> int:
        return max(1, len(self.strengths)) * len(self.offsets) * len(self.trusts)


def families(model: TableModel) -> tuple[Family, ...]:
    """Return the families of candidates, the same for every user of a model."""
    kind = model.kind
    own = [Family("own mean")]
    if len(model.schema.dense):
        own.append(Family("own columns", OWN))
    if kind == ALONE or not model.has_global:
        return tuple(own)
    if kind == GLOBAL:
        return ()
    if kind == OFFSET:
        return (Family("offset", (), OFFSETS if model.has_level else (0.0,), (1.0,)),)
    # Where the level of targets is a user's own, no offset is held at 0: own rows have fixed it.
    many, few, held = (OFFSETS, FEW_OFFSETS, np.inf) if model.has_level else ((0.0,), (0.0,), 0.0)
    shared = [Family("offset", (), many, (0.0, 0.5, 1.0))]
    if len(model.schema.dense):
        shared.append(Family("slopes", SLOPES, few, (0.0, 1.0)))
    if model.scale.any():
        shared.append(Family("directions", DIRECTIONS, few, (1.0,)))
    if model.effects.any():
        shared.append(Family("effects", EFFECTS, (held,), (1.0,)))
    return (*own, *shared)


@dataclass(frozen=True)
class TableHeads:
    """Heads of B users, or of one user without the first axis.

    Attributes:
        V: coefficients (B, 2 + p + k + p, C); see the module.
        centre: the user's own centres (B, numbers) of numeric columns.
        spread: its own spreads.
        low: lowest encoded prediction, (B,).
        high: highest one.
        maps: maps of scores to logits, (B, 2), or (B, 0) for numbers; see `logistic_heads`.
    """

    V: Array
    centre: Array
    spread: Array
    low: Array
    high: Array
    maps: Array

    def __getitem__(self, users: Any) -> TableHeads:
        return TableHeads(**{name: array[users] for name, array in self.arrays.items()})

    def __setitem__(self, users: Any, heads: TableHeads) -> None:
        for name, array in self.arrays.items():
            array[users] = heads.arrays[name]

    def __len__(self) -> int:
        return len(self.V)

    @property
    def size(self) -> int:
        """Number of coefficients."""
        return self.V.size

    @property
    def arrays(self) -> dict[str, Array]:
        """Arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def zero(cls, model: TableModel, users: int) -> TableHeads:
        """Return heads that predict as the global model does."""
        size = 2 + 2 * len(model.schema.dense) + model.U.shape[1]
        numbers = np.full((users, len(model.schema.numbers)), np.nan)
        low, high = model.range
        free = low > high  # nothing is known about the range of predictions
        return cls(
            np.zeros((users, size, model.schema.outputs)),
            numbers,
            np.zeros_like(numbers),
            np.full(users, -np.inf if free else low),
            np.full(users, np.inf if free else high),
            logistic_heads.identity(users, model.schema.classes),
        )


class Candidates:
    """All candidates of a block of users with m rows each.

    Args:
        model: published model.
        rows: rows (B, m).
    """

    def __init__(self, model: TableModel, rows: TableRows) -> None:
        self.model, self.m = model, rows.y.shape[1]
        self.families = families(model)
        self.inputs = model.inputs(rows)
        Y = model.targets(rows.y)
        # Without a level of all users, a user works around its own mean.
        level = model.has_level
        self.zero = np.broadcast_to(model.w[0], Y[:, 0].shape) if level else Y.mean(axis=1)
        self.Y = Y - self.zero[:, None]
        self.relative = model.relative(self.inputs)
        self.centre, self.spread = own_scales(model, rows)
        self.own, self.middle = self._own(rows)
        self.fits = {f.name: self._smoothed(f) for f in self.families}
        self._set_errors()

    def _own(self, rows: TableRows) -> tuple[Array, Array]:
        """Return columns in own units around their means (B, m, p), and these means (B, p)."""
        own = own_columns(self.model, rows, self.centre[:, None], self.spread[:, None]).X
        middle = own.mean(axis=1)
        return own - middle[:, None], middle

    def features(self, name: str) -> Array | None:
        """Return the features (B, m, q) of a family; None if it has none."""
        if name == "own columns":
            return self.own
        if name == "slopes":
            return self.inputs.X
        if name == "directions":
            return self.model.features(self.inputs) * self.model.scale
        if name == "effects":
            return effects_of(self.model, self.inputs)
        return None

    def _smoothed(self, family: Family) -> list[ridge.Smoothed]:
        ones = np.ones((*self.Y.shape[:2], 1))
        V = np.concatenate([self.Y, self.relative, ones], axis=2)
        F = self.features(family.name)
        if F is None:
            return [ridge.without_features(V)]
        unit = np.ones(len(V)) if family.name == "effects" else None
        return ridge.smooth(F, family.strengths, V, unit)

    def _set_errors(self) -> None:
        """Set offsets c (B, K, C) and mean leave-one-out errors (B, K)."""
        C, offsets, errors = self.Y.shape[2], [], []
        for family in self.families:
            for fit in self.fits[family.name]:
                a = fit.residuals[:, :, -1]
                for l0 in family.offsets:
                    for trust in family.trusts:
                        r = fit.residuals[:, :, :C] - trust * fit.residuals[:, :, C : 2 * C]
                        c, e = ridge.with_offset(fit, r, a, l0)
                        offsets.append(c)
                        errors.append(np.sum(e * e, axis=(1, 2)) / self.m)
        empty = np.zeros((len(self.Y), 0))
        self.offsets = np.stack(offsets, axis=1) if offsets else empty[:, :, None]
        self.errors = np.stack(errors, axis=1) if errors else empty

    def log_errors(self) -> Array:
        """Return log of the leave-one-out errors with the prior, (B, K); never infinite."""
        schema = self.model.schema
        floor = LABEL_FLOOR if schema.classes else 0.0
        if schema.target.bounds is not None and self.model.has_global:
            floor = FLOOR
        prior = PRIOR * (self.errors[:, :1] + floor)
        whole = (self.m * self.errors + prior) / (self.m + PRIOR)
        return np.log(np.clip(np.nan_to_num(whole, nan=1e300), 1e-300, 1e300))

    def evidence(self) -> Array:
        """Return log(LOO_k / LOO_own mean) (B, K), cut to +-1."""
        logs = self.log_errors()
        return np.clip(logs - logs[:, :1], -1.0, 1.0)

    def weights(self) -> Array:
        """Return the weights of the candidates, (B, K)."""
        sizes = np.concatenate([np.full(len(f), len(f)) for f in self.families])
        E, own = self.model.evidence, ALONE_TIMES
        logs = -np.log(sizes)
        if self.model.has_global:
            logs = logs + np.concatenate(
                [np.full(len(f), -DOUBT * f.name.startswith("own")) for f in self.families]
            )
        if len(E) == len(sizes):
            logs, own = logs - ROWS * E / 2, 1.0
        logs = logs - own * self.m * self.log_errors() / 2
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def heads(self, rows: TableRows) -> TableHeads:
        """Return the heads of the mixture."""
        model, B = self.model, len(self.Y)
        heads = TableHeads.zero(model, B)
        heads.V[:, 0] = self.zero - (model.w[0] if model.has_global else 0.0)
        if not self.families:
            return replace(heads, centre=self.centre, spread=self.spread)
        weights, C = self.weights(), self.Y.shape[2]
        V, k = heads.V, model.U.shape[1]
        if model.has_global:
            V[:, 1] = -1.0
        p = len(model.schema.dense)
        parts = {"slopes": slice(2, 2 + p), "directions": slice(2 + p, 2 + p + k),
                 "own columns": slice(2 + p + k, 2 + 2 * p + k)}  # fmt: skip
        place = 0
        for family in self.families:
            each = len(family.offsets) * len(family.trusts)
            trusts = np.tile(family.trusts, len(family.offsets))
            F = self.features(family.name)
            for fit in self.fits[family.name]:
                mine = slice(place, place + each)
                w, c = weights[:, mine], self.offsets[:, mine]
                total, trust = w.sum(axis=1), w @ trusts
                offset = np.matmul(w[:, None], c)[:, 0]
                V[:, 0] += offset
                V[:, 1] += trust[:, None]
                if F is not None:
                    r = total[:, None, None] * fit.residuals[:, :, :C]
                    r = r - trust[:, None, None] * fit.residuals[:, :, C : 2 * C]
                    r = r - fit.residuals[:, :, -1:] * offset[:, None]
                    slopes = np.matmul(F.transpose(0, 2, 1), r) / fit.lam[:, None, None]
                    if family.name == "effects":  # they are an offset and slopes
                        V[:, 0] += np.matmul(model.effects[:1], slopes)[:, 0]
                        L = model.effects[1 + model.schema.dense]
                        V[:, parts["slopes"]] += np.matmul(L, slopes)
                    else:
                        V[:, parts[family.name]] += slopes
                place += each
        V[:, parts["directions"]] *= model.scale[:, None]
        V[:, 0] -= np.matmul(self.middle[:, None], V[:, parts["own columns"]])[:, 0]
        low, high = own_range(model, rows)
        return TableHeads(V, self.centre, self.spread, low, high, self.maps(rows.y))

    def maps(self, y: Array) -> Array:
        """Return the maps of scores to logits, given labels y (B, m)."""
        classes = self.model.schema.classes
        if not classes or not self.families:
            return logistic_heads.identity(len(y), classes)
        return logistic_heads.fit(self.left_out(), y, classes)

    def left_out(self) -> Array:
        """Return scores (B, m, C) of the mixture without each row, with its weights."""
        if not self.families:
            return self.model.relative(self.inputs) + self.zero[:, None]
        weights, C = self.weights(), self.Y.shape[2]
        left = np.zeros_like(self.Y)
        place = 0
        for family in self.families:
            for fit in self.fits[family.name]:
                for l0 in family.offsets:
                    for trust in family.trusts:
                        r = fit.residuals[:, :, :C] - trust * fit.residuals[:, :, C : 2 * C]
                        e = ridge.with_offset(fit, r, fit.residuals[:, :, -1], l0)[1]
                        left += weights[:, place, None, None] * e
                        place += 1
        return self.Y + self.zero[:, None] - left


def effects_of(model: TableModel, inputs: Inputs) -> Array:
    """Return (1, x) L of encoded rows, (..., r)."""
    return np.asarray(inputs.X @ model.effects[1 + model.schema.dense] + model.effects[0])


def own_scales(model: TableModel, rows: TableRows) -> tuple[Array, Array]:
    """Return the user's own centre and spread (B, numbers) of its numeric columns.

    Columns with public bounds keep the spread of these: in their units, a column that hardly
    varies stays small.
    """
    numbers = rows.numbers
    there = np.isfinite(numbers)
    count = np.maximum(there.sum(axis=1), 1)
    with np.errstate(over="ignore", invalid="ignore"):
        centre = np.where(there, numbers, 0.0).sum(axis=1) / count
        gaps = np.where(there, numbers - centre[:, None], 0.0)
        spread = np.sqrt((gaps**2).sum(axis=1) / count)
    # What differs by rounding alone does not differ.
    spread = np.where(np.isfinite(spread) & (spread > 1e-12 * np.abs(centre)), spread, 0.0)
    public = [f.bounds is not None for f in model.schema.numbers]
    spread[:, public] = model.spread[:-1][public]
    return centre, spread


def own_columns(model: TableModel, rows: TableRows, centre: Array, spread: Array) -> Inputs:
    """Return rows encoded in users' own units; centre and spread broadcast with the numbers."""
    return encode(model.schema, rows, centre, spread)


def own_range(model: TableModel, rows: TableRows) -> tuple[Array, Array]:
    """Return lowest and highest encoded predictions (B,): the model's range, joined with own."""
    if model.schema.classes:
        return np.full(len(rows.y), -np.inf), np.full(len(rows.y), np.inf)
    y = model.targets(rows.y)[:, :, 0]
    low, high = y.min(axis=1), y.max(axis=1)
    room = WIDER * (high - low)
    return np.minimum(low - room, model.range[0]), np.maximum(high + room, model.range[1])


def fit(model: TableModel, rows: TableRows) -> TableHeads:
    """Return the heads of B users with rows (B, m)."""
    with np.errstate(all="ignore"):  # a user whose own numbers overflow harms nobody else
        return Candidates(model, rows).heads(rows)


def left_out(model: TableModel, rows: TableRows) -> Array:
    """Return encoded predictions, or logits of labels, (B, m, C) for each row without that row."""
    with np.errstate(all="ignore"):
        candidates = Candidates(model, rows)
        scores = candidates.left_out()
        if not model.schema.classes:
            return scores
        maps = candidates.maps(rows.y)
        return logistic_heads.logits(scores, maps[:, None], model.schema.classes)


def scores(model: TableModel, rows: TableRows, heads: TableHeads) -> Array:
    """Return encoded predictions, or logits of labels, (t, C).

    Args:
        model: published model.
        rows: rows (t,).
        heads: the head of each row's user.
    """
    inputs = model.inputs(rows, heads.centre)
    base = model.base(inputs)
    own = own_columns(model, rows, heads.centre, heads.spread)
    F = np.concatenate([inputs.X, model.features(inputs), own.X], axis=1)
    with np.errstate(all="ignore"):
        y = base + heads.V[:, 0] + model.relative(inputs) * heads.V[:, 1]
        y = y + np.matmul(F[:, None, :], heads.V[:, 2:])[:, 0]
        if model.schema.classes:
            return logistic_heads.logits(y, heads.maps, model.schema.classes)
        return np.clip(np.nan_to_num(y), heads.low[:, None], heads.high[:, None])


def candidates_of(model: TableModel, directions: bool, effects: bool) -> int:
    """Return the largest number of candidates of the mixture.

    Args:
        model: model whose schema counts.
        directions: whether it will have shared directions.
        effects: whether it will have a covariance of effects.
    """
    dense = bool(len(model.schema.dense))
    count = len(Family("own mean")) + len(Family("offset", (), OFFSETS, (0.0, 0.5, 1.0)))
    count += dense * (len(OWN) + len(SLOPES) * len(FEW_OFFSETS) * 2)
    return count + directions * len(DIRECTIONS) * len(FEW_OFFSETS) + effects * len(EFFECTS)


def smooth_evidence(model: TableModel, evidence: Array, noise: float, n: int) -> Array:
    """Return evidence (K,) with less noise: each family is shrunk toward its mean.

    Args:
        model: model with these candidates.
        evidence: released evidence.
        noise: standard deviation of the noise in each entry.
        n: number of users; with few of them, evidence counts less.
    """
    found, place = evidence.copy(), 0
    for family in families(model):
        mine = slice(place, place + len(family))
        e = found[mine]
        square = float(np.sum((e - e.mean()) ** 2))
        if len(e) > 2 and square > 0:
            kept = max(0.0, 1.0 - (len(e) - 1) * noise**2 / square)
            found[mine] = e.mean() + kept * (e - e.mean())
        place += len(family)
    found[0] = 0.0  # the own mean, to which all others are compared
    assert place == len(found)
    return found * (n / (n + FEW_USERS))
