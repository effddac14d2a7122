"""Personal models of a table: the mixture, its linear head, and that it never costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import naive_tables as tables
from support.tables import LABELS, model_of, people, rows_of, schema_of

from privfed.data.tables.ragged_cohort import TableRows
from privfed.data.tables.schema import Numeric, Schema, Target
from privfed.models import logistic_heads, table_heads
from privfed.models.table_heads import Candidates, TableHeads, families
from privfed.models.table_model import KINDS, TableModel

ITEMS = 45


def block_of(schema, m, users=3, seed=0):
    rng = np.random.default_rng(seed)
    made = [rows_of(schema, m, rng) for _ in range(users)]
    return TableRows(*(np.stack([getattr(u, n) for u in made]) for n in ("numbers", "codes", "y")))


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("m", [2, 5, 20])
def test_leave_one_out_errors_are_those_of_refitting(kind, m):
    schema = schema_of(kind, buckets=ITEMS)
    model, rows = model_of(schema), block_of(schema, m)
    made = Candidates(model, rows)
    assert made.errors.shape == (3, sum(map(len, families(model))))
    for i in range(3):
        wanted = tables.candidates(model, rows.numbers[i], rows.codes[i], rows.y[i])
        errors = [np.mean(np.sum(e**2, axis=1)) for e in wanted]
        np.testing.assert_allclose(made.errors[i], errors, rtol=1e-4, atol=1e-8)
        mixed = sum(w * e for w, e in zip(made.weights()[i], wanted, strict=True))
        np.testing.assert_allclose(
            made.left_out()[i], tables.targets(model, rows.y[i]) - mixed, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("how", KINDS)
def test_a_head_is_the_mixture_of_the_candidates(kind, how):
    """Scores of new rows are the weighted predictions of ridge fits, made one at a time."""
    schema = schema_of(kind, buckets=ITEMS)
    model = replace(model_of(schema), kind=how, evidence=np.zeros(0))
    rows, new = block_of(schema, 8), block_of(schema, 5, seed=1)
    heads = table_heads.fit(model, rows)
    flat = new.reshaped(15)
    told = table_heads.scores(model, flat, heads[np.repeat(np.arange(3), 5)])
    made = Candidates(model, rows)
    if not made.families:
        np.testing.assert_allclose(heads.V, 0.0)
        wanted = model.base(model.inputs(flat))
    else:
        wanted = np.zeros((15, schema.outputs))
        for i in range(3):
            wanted[5 * i : 5 * i + 5] = mixture(model, made, rows, i, new)
    if schema.classes:
        wanted = logistic_heads.logits(wanted, np.repeat(heads.maps, 5, axis=0), schema.classes)
    low, high = np.repeat(heads.low, 5)[:, None], np.repeat(heads.high, 5)[:, None]
    np.testing.assert_allclose(told, np.clip(wanted, low, high), rtol=1e-5, atol=1e-6)


def mixture(model, made, rows, i, new):
    """The weighted predictions of ridge fits with an offset, fitted one at a time."""
    X, N = (tables.encoded(model, r.numbers[i], r.codes[i]) for r in (rows, new))
    shared = model.kind != "alone"
    zero = model.w[0] if shared else 0.0
    Y, base, later = tables.targets(model, rows.y[i]) - zero, X @ model.w[1:], N @ model.w[1:]
    if not shared:
        base, later = 0 * base, 0 * later
    dense, scales = model.schema.dense, (made.centre[i], made.spread[i])
    own, own_new = (
        tables.encoded(model, r.numbers[i], r.codes[i], *scales)[:, dense] for r in (rows, new)
    )
    features = {
        "own columns": (own - own.mean(axis=0), own_new - own.mean(axis=0)),
        "slopes": (X[:, dense], N[:, dense]),
        "directions": ((X @ model.U) * model.scale, (N @ model.U) * model.scale),
        "effects": tuple(model.effects[0] + E @ model.effects[1:] for E in (X, N)),
    }
    none, place, total = (np.zeros((len(X), 0)), np.zeros((len(N), 0))), 0, 0.0
    for family in families(model):
        F, G = features.get(family.name, none)
        unit = max(np.mean(np.sum(F * F, axis=1)), 1e-12) if family.name != "effects" else 1.0
        for strength in family.strengths or (1.0,):
            for l0 in family.offsets:
                for trust in family.trusts:
                    A = np.column_stack([np.ones(len(F)), F])
                    V = tables.ridge(
                        A, Y - trust * base, [min(l0, 1e12)] + [strength * unit] * F.shape[1]
                    )
                    said = np.column_stack([np.ones(len(G)), G]) @ V + trust * later
                    total = total + made.weights()[i, place] * said
                    place += 1
    return total + zero


@pytest.mark.parametrize("kind", LABELS)
def test_no_head_is_the_global_model(kind):
    schema = schema_of(kind, buckets=ITEMS)
    model, flat = model_of(schema), block_of(schema, 9).reshaped(27)
    X = np.array([tables.encoded(model, flat.numbers, flat.codes)])[0]
    told = table_heads.scores(model, flat, TableHeads.zero(model, 27))
    wanted = np.clip(model.w[0] + X @ model.w[1:], *bounds(model))
    if schema.classes:
        maps = logistic_heads.identity(27, schema.classes)
        wanted = logistic_heads.logits(wanted, maps, schema.classes)
    np.testing.assert_allclose(told, wanted)


def bounds(model):
    return (-np.inf, np.inf) if model.schema.classes else model.range


def line(n, m, seed, shift=0.0, unit=1.0):
    """Users with lines of their own, and the model of their columns by public bounds."""
    rng = np.random.default_rng(seed)
    x, slope = rng.uniform(0, 1, (n, m)), 2 + rng.standard_normal((n, 1))
    y = slope * x + rng.standard_normal((n, 1)) + 0.2 * rng.standard_normal((n, m))
    schema = Schema("user", Target("y"), (Numeric("x"),), declared=True)
    return schema, TableRows(x[..., None], np.zeros((n, m, 0), np.int32), unit * y + shift)


def error(model, rows, train):
    """Mean squared error on the rows after the first `train`, with heads of the first."""
    part = [slice(None), slice(0, train)]
    heads = table_heads.fit(model, rows[tuple(part)])
    n, m = rows.y.shape
    rest = rows[:, train:].reshaped(n * (m - train))
    scores = table_heads.scores(model, rest, heads[np.repeat(np.arange(n), m - train)])
    return float(np.mean(model.losses(scores, rest.y)))


@pytest.mark.parametrize("ruined", ["w", "centre", "spread", "target", "evidence"])
@pytest.mark.parametrize("m", [4, 12])
def test_a_ruined_global_model_costs_nothing(ruined, m):
    """Noise may have made up any released number; a user's own rows say so."""
    schema, rows = line(400, m + 5, 0)
    before = TableModel.before(schema)
    alone = error(replace(before, kind="alone"), rows, m)
    arrays = {"centre": [0.5, 1.0], "spread": [0.3, 1.5], "w": [[0.0], [0.4]]}
    wild = {
        "w": {"w": [[1e6], [-1e7]]},
        "centre": {"centre": [1e9, 1.0]},
        "spread": {"spread": [1e-9, 1.5]},
        "target": {"centre": [0.5, -1e12], "spread": [0.3, 1e9]},
        "evidence": {"w": [[30.0], [-50.0]]},
    }[ruined]
    model = replace(before, **{name: np.array(v) for name, v in (arrays | wild).items()})
    if ruined == "evidence":
        K = sum(len(family) for family in families(model))
        model = replace(model, evidence=np.random.default_rng(1).normal(0, 0.1, K))
    assert error(model, rows, m) < 1.1 * alone


def test_a_good_global_model_pays():
    schema, rows = line(400, 9, 0)
    before = TableModel.before(schema)
    good = replace(before, centre=np.array([0.5, 1.0]), spread=np.array([0.3, 1.5]),
                   w=np.array([[0.0], [0.4]]))  # fmt: skip
    assert error(good, rows, 4) < 0.9 * error(replace(before, kind="alone"), rows, 4)


@pytest.mark.parametrize(("shift", "unit"), [(1e9, 1.0), (0.0, 1e9), (0.0, 1e-6), (1e12, 1e3)])
def test_units_and_shifts_change_nothing_for_users_alone(shift, unit):
    wanted = error(
        replace(TableModel.before(line(50, 9, 0)[0]), kind="alone"), line(50, 9, 0)[1], 6
    )
    schema, rows = line(50, 9, 0, shift, unit)
    rows = TableRows(1e15 + 1e3 * np.round(1e6 * rows.numbers), rows.codes, rows.y)
    told = error(replace(TableModel.before(schema), kind="alone"), rows, 6) / unit**2
    assert told == pytest.approx(wanted, rel=1e-3)


def test_predictions_stay_near_what_a_user_has_seen():
    schema, rows = line(50, 6, 0)
    model = replace(TableModel.before(schema), kind="alone")
    heads = table_heads.fit(model, rows)
    far = TableRows(np.full((50, 1), 1e9), np.zeros((50, 0), np.int32), np.zeros(50))
    said = table_heads.scores(model, far, heads)[:, 0]
    spread = rows.y.max(axis=1) - rows.y.min(axis=1)
    assert np.all(said <= rows.y.max(axis=1) + 0.51 * spread)
    assert np.all(said >= rows.y.min(axis=1) - 0.51 * spread)


@pytest.mark.parametrize("value", [np.nan, 1e300, -1e300])
def test_a_user_with_strange_numbers_disturbs_nobody(value):
    schema = schema_of(buckets=ITEMS)
    model, rows = model_of(schema), block_of(schema, 6)
    wanted = table_heads.fit(model, rows)[::2]
    rows.numbers[1], rows.y[1] = value, 1e200
    got = table_heads.fit(model, rows)
    for name, array in wanted.arrays.items():
        np.testing.assert_array_equal(got[::2].arrays[name], array)


def test_every_number_of_rows_has_a_head():
    schema = schema_of()
    for block in people(schema, [1, 2, 3, 40]).blocks():
        for how in KINDS:
            heads = table_heads.fit(replace(model_of(schema), kind=how), block.rows)
            assert np.isfinite(heads.V).all() and len(heads) == len(block)


def test_a_level_of_ones_own_needs_no_common_centre():
    """Columns and target around users' own means: shifts, and shifts per user, change nothing."""
    schema, rows = line(60, 9, 0)
    before = TableModel.before(schema)
    model = replace(before, spread=np.array([0.3, 0.8]), within=np.ones(2),
                    w=np.array([[0.0], [0.7]]))  # fmt: skip
    wanted = error(model, rows, 5)
    assert wanted < error(replace(before, kind="alone"), rows, 5)
    rng = np.random.default_rng(0)
    moved = TableRows(
        rows.numbers + 1e9, rows.codes, rows.y + 1e6 * rng.standard_normal((len(rows.y), 1))
    )
    assert error(model, moved, 5) == pytest.approx(wanted, rel=1e-3)
    for how in KINDS:
        said = error(replace(model, kind=how), rows, 5)
        assert said == pytest.approx(error(replace(model, kind=how), moved, 5), rel=1e-3)
