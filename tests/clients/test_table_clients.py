"""Users with rows of a table: every task against one user at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import naive
from support import naive_tables as tables
from support.tables import LABELS, model_of, people, schema_of
from test_contributions import settings_for

from clients.table_fedrep import TableFedRepClient as FedRepClient
from clients.table_global import TableGlobalClient as GlobalClient
from clients.table_standalone import TableStandaloneClient as StandaloneClient
from privfed.algorithm.table_client import MAGNITUDES
from privfed.algorithm.table_parts import gram_square
from privfed.config.instantiation import build
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import unsvec
from privfed.models.table_model import PARTS, TableModel
from privfed.privacy.adaptive_clipping import MEASURES
from privfed.privacy.bounds import UNCLIPPED

SIZES = [3, 1, 7, 3, 0, 12, 2, 7, 25, 1]
MISSING = ["mean", "indicator"]
ITEMS = 45
TASKS = ("magnitudes", "locate", "curvature", "gradient", "counts", "sums", "slopes", "factors",
         "evidence")  # fmt: skip


def client(cohort, slope_ridge=2.0):
    return FedRepClient(cohort, None, slope_ridge=slope_ridge)


def each(cohort):
    """The rows of every user who has some: numbers, codes, y."""
    for first, last in zip(cohort.starts, cohort.starts[1:], strict=False):
        if first < last:
            yield (
                cohort.rows.numbers[first:last],
                cohort.rows.codes[first:last],
                cohort.rows.y[first:last],
            )


def whitener(schema, seed=5):
    P = 1 + len(schema.dense)
    M = np.random.default_rng(seed).standard_normal((P, P))
    return M @ M.T / P


def shared_for(task, model):
    """What is announced with a task."""
    schema = model.schema
    if task in ("magnitudes", "locate"):
        return [*model.arrays, np.array([0, 1] if schema.classes else [3, 0, 1], dtype=float)]
    return [*model.arrays, whitener(schema)] if task == "gradient" else model.arrays


def total(cohort, shared, task, clip):
    """What the client sends."""
    (sum_,), count, _ = client(cohort).fit(shared, settings_for(task, clip))
    assert count == len(cohort)
    return sum_


@pytest.mark.parametrize("kind", LABELS)
def test_scales_are_shares_of_the_values_that_are_not_zero(kind):
    schema = schema_of(kind)
    cohort = people(schema, SIZES)
    cohort.rows.numbers[:5, 0], cohort.rows.numbers[5, 1] = 0.0, 1e15
    places = [0, 1] if schema.classes else [3, 0, 1]
    columns = [np.column_stack([numbers, y])[:, places] for numbers, _, y in each(cohort)]
    before = shared_for("magnitudes", TableModel.before(schema))
    wanted = sum(tables.magnitudes(mine, MAGNITUDES.bottom, MAGNITUDES.size) for mine in columns)
    np.testing.assert_allclose(total(cohort, before, "magnitudes", 1e6), wanted, atol=1e-9)
    model = model_of(schema)
    centre, spread = model.centre[places], model.spread[places]
    for t in (1, 2):
        wanted = sum(tables.locate(mine, centre, spread, PARTS, ends=t == 1) for mine in columns)
        (sent,), _, _ = client(cohort).fit(
            shared_for("locate", model), settings_for("locate", 1e6) | {"round": t}
        )
        np.testing.assert_allclose(sent, wanted, atol=1e-9)


def test_a_column_without_an_interval_is_located_nowhere():
    cohort, before = people(schema_of(), SIZES), TableModel.before(schema_of())
    assert not total(cohort, shared_for("locate", before), "locate", 1e6).any()


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("kind", LABELS)
def test_curvature_and_gradient_are_those_of_generalised_least_squares(kind, missing):
    schema = schema_of(kind, missing, ITEMS)
    cohort, model = people(schema, SIZES), model_of(schema)
    assert len(schema.items) == ITEMS and schema.d == len(schema.dense) + ITEMS
    P = 1 + len(schema.dense)
    users = [tables.rest(model, *user) for user in each(cohort)]
    wanted = sum(tables.curvature(model, X)[0] for X, _ in users)
    sent = unsvec(total(cohort, model.arrays, "curvature", 1.0), P)
    np.testing.assert_allclose(sent, wanted, rtol=1e-5, atol=1e-8)
    ours = [tables.gradient(model, X, R, whitener(schema)) for X, R in users]
    clip = float(np.median([np.linalg.norm(G) for G in ours]))
    wanted = sum(naive.clip(G, clip) for G in ours)
    sent = total(cohort, shared_for("gradient", model), "gradient", clip)
    np.testing.assert_allclose(sent, wanted, rtol=1e-5, atol=1e-5 * clip)


def test_without_noise_every_row_weighs_the_same():
    schema = schema_of()
    cohort, model = people(schema, SIZES), model_of(schema)
    wanted = 0.0
    for user in each(cohort):
        *_, A = tables.curvature(model, tables.rest(model, *user)[0])
        wanted = wanted + A.T @ A
    sent = total(cohort, model.arrays, "curvature", UNCLIPPED)
    np.testing.assert_allclose(unsvec(sent, 1 + len(schema.dense)), wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", LABELS)
def test_items_are_counted_and_their_residuals_added_up(kind):
    schema = schema_of(kind, buckets=ITEMS)
    cohort, model = people(schema, [40, *SIZES]), model_of(schema)
    users = [tables.rest(model, *user) for user in each(cohort)]
    wanted = sum(tables.counts(model, X) for X, _ in users)
    sent = total(cohort, model.arrays, "counts", 1.0)
    np.testing.assert_allclose(sent[:, 0], wanted, rtol=1e-5, atol=1e-8)
    ours = [tables.sums(model, X, R) for X, R in users]
    clip = float(np.median([np.linalg.norm(S) for S in ours]))
    wanted = sum(naive.clip(S, clip) for S in ours)
    sent = total(cohort, model.arrays, "sums", clip)
    np.testing.assert_allclose(sent, wanted, rtol=1e-5, atol=1e-5 * clip)
    ours = [tables.factors(model, X, R) for X, R in users]
    clip = float(np.median([np.linalg.norm(Z) for Z in ours]))
    wanted = sum(naive.clip(Z, clip) for Z in ours)
    sent = unsvec(total(cohort, model.arrays, "factors", clip), ITEMS)
    np.testing.assert_allclose(sent, wanted, rtol=1e-5, atol=1e-5 * clip)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("kind", LABELS)
def test_slopes_are_sums_over_pairs_of_rows(kind, missing):
    schema = schema_of(kind, missing, ITEMS)
    cohort, model = people(schema, SIZES), model_of(schema)
    ours = []
    for user in each(cohort):
        X, R = tables.rest(model, *user)
        ours.append(tables.second_moment(X[:, schema.dense], R, 2.0))
    sizes = [np.linalg.norm(Z) for Z in ours]
    assert sizes[SIZES.index(1)] < 1e-15, "one row has no pair"
    clip = float(np.median(sizes))
    wanted = sum(naive.clip(Z, clip) for Z in ours)
    sum_ = unsvec(total(cohort, model.arrays, "slopes", clip), len(schema.dense))
    np.testing.assert_allclose(sum_, wanted, rtol=1e-5, atol=1e-5 * clip)


@pytest.mark.parametrize("kind", LABELS)
def test_evidence_compares_every_way_to_predict_with_the_own_mean(kind):
    schema = schema_of(kind, buckets=ITEMS)
    cohort, model = people(schema, SIZES), model_of(schema)
    floor = 0.1 if kind != "number" else 0.0
    wanted = 0.0
    for user in each(cohort):
        errors = np.array([np.mean(np.sum(e**2, axis=1)) for e in tables.candidates(model, *user)])
        m = len(user[2])
        logs = np.log((m * errors + 0.3 * (errors[0] + floor)) / (m + 0.3))
        mine = np.clip(logs - logs[0], -1, 1)
        wanted = wanted + naive.clip(mine, 1e6)
    np.testing.assert_allclose(
        total(cohort, model.arrays, "evidence", 1e6), wanted, rtol=1e-4, atol=1e-6
    )


def test_the_norm_of_pairs_is_the_same_by_either_product():
    P, Q = np.random.default_rng(0).standard_normal((2, 3, 9, 4))
    wanted = np.sum(np.matmul(P, Q.transpose(0, 2, 1)) ** 2, axis=(1, 2))
    np.testing.assert_allclose(gram_square(P, Q), wanted)
    np.testing.assert_allclose(
        gram_square(P[:, :2], Q),
        np.sum(np.matmul(P[:, :2], Q.transpose(0, 2, 1)) ** 2, axis=(1, 2)),
    )


@pytest.mark.parametrize("task", ["gradient", "sums", "slopes", "factors"])
def test_measuring_counts_every_user_with_a_part_once(task):
    """One row has no slope; users whose part is 0 answer nothing."""
    schema = schema_of(buckets=ITEMS)
    cohort, model = people(schema, SIZES), model_of(schema)
    (counts,), _, _ = client(cohort).fit(
        shared_for(task, model),
        settings_for(task, 0.0, release=False, measure="narrow") | {"round": 0},
    )
    with_part = sum(size > (task == "slopes") for size in SIZES)
    assert counts.shape == (MEASURES["narrow"].size,) and counts.sum() == with_part


@pytest.mark.parametrize("task", TASKS)
def test_a_node_whose_users_have_no_rows_sends_zeros_of_the_usual_shape(task):
    """Otherwise the server would count its users as missing, and tell everybody."""
    schema = schema_of(buckets=ITEMS)
    shared = shared_for(task, model_of(schema))
    some, none = (people(schema, sizes) for sizes in ([3, 4], [0, 0]))
    (sent,), (zeros,) = (
        client(users).fit(shared, settings_for(task, 1.0))[0] for users in (some, none)
    )
    assert sent.shape == zeros.shape and not zeros.any() and sent.any()
    (counts,), _, _ = client(none).fit(
        shared, settings_for(task, 0.0, release=False, measure="narrow")
    )
    np.testing.assert_array_equal(counts, np.zeros(20))


def test_how_users_are_spread_does_not_matter():
    schema = schema_of(buckets=ITEMS)
    cohort, model = people(schema, SIZES), model_of(schema)
    for task in TASKS:
        shared = shared_for(task, model)
        parts = [cohort[first:last] for first, last in ((0, 1), (1, 4), (4, 5), (5, 10))]
        pieces = sum(total(part, shared, task, 0.5) for part in parts)
        np.testing.assert_allclose(total(cohort, shared, task, 0.5), pieces, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("task", TASKS)
def test_no_value_however_large_moves_more_than_the_clip_norm_or_harms_others(task):
    schema = schema_of(buckets=ITEMS)
    cohort, model = people(schema, [4, 5, 6]), model_of(schema)
    shared, others = shared_for(task, model), cohort[1:]
    wanted = total(others, shared, task, 1.0)
    for number, y in ((1e15, 1e15), (1e300, -1e300), (np.nan, 1e12)):
        rows = cohort.rows
        rows.numbers[:4], rows.y[:4] = number, y
        moved = total(cohort, shared, task, 1.0) - wanted
        assert np.linalg.norm(moved) <= 1.0


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("kind_of_client", ["fedrep", "global", "standalone"])
def test_judgements_are_means_over_held_out_rows(kind, kind_of_client):
    """The rows that judge are rows that train here, which every user has seen."""
    schema = schema_of(kind)
    cohort, model = people(schema, SIZES, held=2), model_of(schema)
    make = {
        "fedrep": client,
        "global": lambda c: GlobalClient(c, None),
        "standalone": lambda c: StandaloneClient(c, None),
    }
    own = make[kind_of_client](cohort)
    _, users, told = own.evaluate(model.arrays, {"judge": True})
    assert (
        users == len(SIZES)
        and told["judged"] == sum(min(2, m) for m in SIZES)
        and told["judged_users"] == 9
    )
    if kind_of_client == "global":
        wanted = 0.0
        for numbers, codes, y in each(cohort):
            X, _ = tables.rest(model, numbers, codes, y)
            scores = (model.w[0] + X @ model.w[1:])[:2]
            if kind == "number":
                said = model.centre[-1] + model.spread[-1] * np.clip(scores[:, 0], -6, 6)
                wanted += np.sum((said - y[:2]) ** 2)
            else:
                said = scores[:, 0] > 0 if kind == "two" else scores.argmax(axis=1)
                wanted += np.sum(said != y[:2])
        assert told["own"] == pytest.approx(wanted) and "offset" in told
    assert ("alone" in told) == (kind_of_client == "fedrep") and math.isfinite(told["own"])


def test_nobody_is_judged_where_nobody_has_rows():
    none, one = (people(schema_of(), sizes, held=2) for sizes in ([0], [3]))
    told = [
        client(cohort).evaluate(model_of(schema_of()).arrays, {"judge": True})[2]
        for cohort in (none, one)
    ]
    assert told[0]["own"] == told[0]["judged"] == 0 and set(told[0]) == set(told[1])


def test_errors_of_real_users_are_not_told():
    with pytest.raises(ValueError, match="noise gate"):
        client(people(schema_of(), [3])).evaluate(model_of(schema_of()).arrays, {"judge": True})


@pytest.mark.parametrize("value", [0, -1, 1e-7, 1e7, float("nan"), "strong"])
def test_strengths_that_could_make_equations_singular_are_refused(value):
    with pytest.raises(ConfigError, match="1e-6 and 1e6"):
        target = "clients.table_fedrep.TableFedRepClient"
        build({"_target_": target, "slope_ridge": value}, "algo")(
            cohort=people(schema_of(), [3]), init=None
        )
