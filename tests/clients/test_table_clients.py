"""Users with rows of a table: every task against one user at a time."""

from __future__ import annotations

import numpy as np
import pytest
from support import naive
from support import naive_tables as tables
from support.tables import LABELS, model_of, people, schema_of
from test_contributions import settings_for

from clients.table_fedrep import TableFedRepClient as FedRepClient
from clients.table_fedrep import gram_square
from clients.table_global import TableGlobalClient as GlobalClient
from clients.table_standalone import TableStandaloneClient as StandaloneClient
from privfed.config.instantiation import build
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import unsvec
from privfed.models.table_model import PARTS, TableModel
from privfed.privacy.adaptive_clipping import MEASURES, NORMS

SIZES = [3, 1, 7, 3, 0, 12, 2, 7, 25, 1]
MISSING = ["mean", "indicator"]


def client(cohort, ridge=0.1, spectral_ridge=2.0):
    return FedRepClient(cohort, None, ridge=ridge, spectral_ridge=spectral_ridge)


def each(cohort):
    """The rows of every user who has some: numbers, codes, y."""
    for first, last in zip(cohort.starts, cohort.starts[1:], strict=False):
        if first < last:
            yield (
                cohort.rows.numbers[first:last],
                cohort.rows.codes[first:last],
                cohort.rows.y[first:last],
            )


def total(cohort, shared, task, clip):
    """What the client sends."""
    (sum_,), count, _ = client(cohort).fit(shared, settings_for(task, clip))
    assert count == len(cohort)
    return sum_


@pytest.mark.parametrize("kind", LABELS)
def test_scales_are_shares_of_rows(kind):
    schema = schema_of(kind)
    cohort = people(schema, SIZES)
    cohort.rows.numbers[:5, 0], cohort.rows.numbers[5, 1] = 0.0, 1e38
    places = [0, 1] if schema.classes else [0, 1, 3]
    columns = [
        np.column_stack([numbers.astype(np.float64), y])[:, places]
        for numbers, _, y in each(cohort)
    ]
    before = TableModel.before(schema)
    wanted = sum(tables.magnitudes(mine, NORMS.bottom, NORMS.size) for mine in columns)
    np.testing.assert_allclose(total(cohort, before.arrays, "magnitudes", 1e6), wanted, atol=1e-9)
    model = model_of(schema)
    centre, spread = model.centre[places], model.spread[places]
    for t in (1, 2):
        wanted = sum(tables.locate(mine, centre, spread, PARTS, ends=t == 1) for mine in columns)
        (sent,), _, _ = client(cohort).fit(model.arrays, settings_for("locate", 1e6) | {"round": t})
        np.testing.assert_allclose(sent, wanted, atol=1e-9)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("kind", LABELS)
def test_the_global_model_is_asked_for_ridge_solutions(kind, missing):
    schema = schema_of(kind, missing)
    cohort, model = people(schema, SIZES), model_of(schema)
    ours = [tables.solution(*tables.rest(model, *user), 0.1) for user in each(cohort)]
    clip = float(np.median([np.linalg.norm(V) for V in ours]))
    wanted = sum(naive.clip(V, clip) for V in ours)
    np.testing.assert_allclose(
        total(cohort, model.arrays, "global", clip), wanted, rtol=1e-5, atol=1e-5 * clip
    )


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("kind", LABELS)
def test_the_spectral_sum_is_that_of_pairs_of_rows(kind, missing):
    schema = schema_of(kind, missing)
    cohort, model = people(schema, SIZES), model_of(schema)
    ours = [tables.second_moment(*tables.rest(model, *user), 2.0) for user in each(cohort)]
    sizes = [np.linalg.norm(Z) for Z in ours]
    assert sizes[SIZES.index(1)] < 1e-15, "one row has no pair"
    clip = float(np.median(sizes))
    wanted = sum(naive.clip(Z, clip) for Z in ours)
    sum_ = unsvec(total(cohort, model.arrays, "spectral", clip), schema.d)
    np.testing.assert_allclose(sum_, wanted, rtol=1e-5, atol=1e-5 * clip)


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("kind", LABELS)
def test_gradients_are_those_of_rows_under_heads_fitted_without_them(kind, missing):
    schema = schema_of(kind, missing)
    cohort, model = people(schema, SIZES), model_of(schema)
    ours = [tables.gradient(model, *tables.rest(model, *user)) for user in each(cohort)]
    clip = float(np.median([np.linalg.norm(G) for G in ours]))
    wanted = sum(naive.clip(G, clip) for G in ours)
    np.testing.assert_allclose(
        total(cohort, model.arrays, "gradient", clip).T, wanted, rtol=1e-5, atol=1e-5 * clip
    )


def test_the_norm_of_pairs_is_the_same_by_either_product():
    P, Q = np.random.default_rng(0).standard_normal((2, 3, 9, 4))
    wanted = np.sum(np.matmul(P, Q.transpose(0, 2, 1)) ** 2, axis=(1, 2))
    np.testing.assert_allclose(gram_square(P, Q), wanted)
    np.testing.assert_allclose(
        gram_square(P[:, :2], Q),
        np.sum(np.matmul(P[:, :2], Q.transpose(0, 2, 1)) ** 2, axis=(1, 2)),
    )


@pytest.mark.parametrize("task", ["global", "spectral", "gradient"])
def test_measuring_counts_every_user_with_rows_once(task):
    cohort, model = people(schema_of(), SIZES), model_of(schema_of())
    (counts,), _, _ = client(cohort).fit(
        model.arrays, settings_for(task, 0.0, release=False, measure="narrow")
    )
    assert counts.shape == (MEASURES["narrow"].size,) and counts.sum() == len(SIZES) - 1


@pytest.mark.parametrize("task", ["magnitudes", "locate", "global", "spectral", "gradient"])
def test_a_node_whose_users_have_no_rows_sends_zeros_of_the_usual_shape(task):
    """Otherwise the server would count its users as missing, and tell everybody."""
    model = model_of(schema_of())
    some, none = (people(schema_of(), sizes) for sizes in ([3, 4], [0, 0]))
    (sent,), (zeros,) = (
        client(users).fit(model.arrays, settings_for(task, 1.0))[0] for users in (some, none)
    )
    assert sent.shape == zeros.shape and not zeros.any() and sent.any()
    (counts,), _, _ = client(none).fit(
        model.arrays, settings_for(task, 0.0, release=False, measure="narrow")
    )
    np.testing.assert_array_equal(counts, np.zeros(20))


def test_how_users_are_spread_does_not_matter():
    cohort, model = people(schema_of(), SIZES), model_of(schema_of())
    for task in ("magnitudes", "locate", "global", "spectral", "gradient"):
        parts = [cohort[first:last] for first, last in ((0, 1), (1, 4), (4, 5), (5, 10))]
        pieces = sum(total(part, model.arrays, task, 0.5) for part in parts)
        np.testing.assert_allclose(
            total(cohort, model.arrays, task, 0.5), pieces, rtol=1e-10, atol=1e-12
        )


def loss(model, scores, y):
    """Squared errors, or wrong answers."""
    if not model.schema.classes:
        return np.sum((np.clip(scores[:, 0], -8, 8) * model.spread[-1] + model.centre[-1] - y) ** 2)
    return np.sum((scores[:, 0] > 0 if model.schema.classes == 2 else scores.argmax(axis=1)) != y)


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("kind_of_client", ["fedrep", "global", "standalone"])
def test_judgements_are_means_over_held_out_rows(kind, kind_of_client):
    """The rows that judge are rows that train here, which every user has seen."""
    schema = schema_of(kind)
    cohort, model = (
        people(schema, SIZES, held=2),
        model_of(schema, k=0 if kind_of_client == "global" else 2),
    )
    make = {
        "fedrep": client,
        "global": lambda c: GlobalClient(c, None, 0.1),
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
        wanted = {"own": 0.0, "offset": 0.0}
        for numbers, codes, y in each(cohort):
            X, R = tables.rest(model, numbers, codes, y)
            constant = np.full((len(X), 1), 2.0)
            offset = 2.0 * tables.ridge(constant, R, tables.strength(constant, R, 1.0))
            for name, more in (("own", 0.0), ("offset", offset)):
                wanted[name] += loss(model, (model.w[0] + X @ model.w[1:] + more)[:2], y[:2])
        assert {name: told[name] for name in wanted} == pytest.approx(wanted)
    assert ("alone" in told) == (kind_of_client == "fedrep")


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
    for given in ({"ridge": value}, {"spectral_ridge": value}):
        with pytest.raises(ConfigError, match="1e-6 and 1e6"):
            settings = {"ridge": 0.1, "spectral_ridge": 2.0} | given
            target = "clients.table_fedrep.TableFedRepClient"
            build({"_target_": target, **settings}, "algo")(
                cohort=people(schema_of(), [3]), init=None
            )
