"""Whatever rows a table user has, they move each sum by at most its bound and disturb nobody."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from support.tables import LABELS, cohort_of, model_of, rows_of, schema_of
from test_contributions import settings_for
from test_table_clients import ITEMS, client, shared_for

from privfed.data.tables.ragged_cohort import TableRows
from privfed.models.table_model import TableModel, unscaled
from privfed.privacy.clipping import SLACK

CLIPS = {
    "magnitudes": None,
    "locate": None,
    "curvature": 0.05,
    "counts": 0.05,
    "gradient": 0.02,
    "sums": 0.02,
    "slopes": 1e-4,
    "factors": 1e-4,
    "evidence": 0.02,
}
"""Tasks with bounds far below what users have.

None: the square root of the number of columns without public bounds.
"""
CROWD = 7


def bound(task, schema):
    return CLIPS[task] or len(unscaled(schema)) ** 0.5


def hostile(schema, rng):
    """Users by what is strange about them."""

    def changed(m, number=None, y=None, code=None):
        rows = rows_of(schema, m, rng)
        if number is not None:
            rows.numbers[:] = number(rows.numbers)
        if code is not None:
            rows.codes[:] = code
        if y is not None and not schema.classes:
            rows.y[:] = y(rows.y)
        return rows

    signs = np.where(np.arange(8) % 2, 1.0, -1.0)
    equal = rows_of(schema, 9, rng)[np.zeros(9, dtype=int)]
    # Pairs that add up to zero, for a user whose rows are so short that its solutions are
    # enormous: rounding errors are left.
    model = model_of(schema)
    short = np.nextafter(np.tile(model.centre[:-1], (3, 1)), np.inf)
    pairs = (
        np.zeros(3)
        if schema.classes
        else model.centre[-1] + model.spread[-1] * (model.w[0, 0] + np.array([2.0, 2.0, -1.0]))
    )
    opposite = TableRows(
        equal.numbers[:8],
        equal.codes[:8],
        np.full(8, 1.0) if schema.classes else 990.0 + 1e6 * signs,
    )
    return {
        "nobody": rows_of(schema, 0, rng),
        "one row": rows_of(schema, 1, rng),
        "many rows": rows_of(schema, 400, rng),
        "huge": changed(6, lambda v: 1e30 * np.sign(v)),
        "largest": changed(6, lambda v: np.full_like(v, np.finfo(np.float64).max)),
        "tiny": changed(6, lambda v: 1e-308 * v),
        "zero": changed(6, lambda v: 0 * np.nan_to_num(v), lambda y: 0 * y, 0),
        "missing": changed(6, lambda v: np.full_like(v, np.nan), None, -1),
        "infinite": changed(
            6, lambda v: np.full_like(v, np.inf), lambda y: np.full_like(y, -np.inf)
        ),
        "no targets": changed(6, None, lambda y: np.full_like(y, np.nan)),
        "target 1e300": changed(6, None, lambda y: np.full_like(y, 1e300)),
        "targets +-1.7e308": changed(8, None, lambda y: 1.7e308 * signs),
        "denormal targets": changed(6, None, lambda y: np.full_like(y, 5e-324)),
        "all equal": equal,
        "cancelling": opposite,
        "cancelling pairs": TableRows(short, np.full((3, 2), -1, np.int32), pairs),
        "constant columns": changed(12, lambda v: np.full_like(v, 1e5)),
        "at its centre": changed(
            5,
            lambda v: np.broadcast_to(np.array([38.0, 0.001, 0.5]), v.shape),
            lambda y: 0 * y + 990,
        ),
        "codes out of range": changed(5, None, None, np.iinfo(np.int32).max),
        "one outlier": changed(30, lambda v: np.where(np.arange(30)[:, None] == 3, 1e308, v)),
    }


def sums(schema, users, task, shared):
    """What a node with these users sends."""
    (sum_,), _, _ = client(cohort_of(schema, users)).fit(
        shared, settings_for(task, bound(task, schema))
    )
    return sum_


@pytest.fixture(
    params=[(kind, missing) for kind in LABELS for missing in ("mean", "indicator")], ids="-".join
)
def setting(request):
    """Some ordinary users, of which a hostile one takes the first place."""
    schema = schema_of(*request.param, buckets=ITEMS)
    rng = np.random.default_rng(2)
    return (
        schema,
        [rows_of(schema, m, rng) for m in (6, 1, 6, 8, 9, 30, 400)[:CROWD]],
        hostile(schema, rng),
    )


@pytest.mark.parametrize("task", CLIPS)
def test_neighbouring_cohorts_are_within_twice_the_bound(setting, task):
    schema, users, strange = setting
    shared = shared_for(
        task, TableModel.before(schema) if task == "magnitudes" else model_of(schema)
    )
    psi = bound(task, schema)
    base = sums(schema, users[1:], task, shared)
    seen = {
        name: sums(schema, [user, *users[1:]], task, shared)
        for name, user in {"itself": users[0], **strange}.items()
    }
    largest = 0.0
    for name, sum_ in seen.items():
        assert np.isfinite(sum_).all(), name
        alone = sums(schema, [{"itself": users[0], **strange}[name]], task, shared)
        assert np.linalg.norm(alone) <= psi, name
        np.testing.assert_allclose(
            sum_, base + alone, rtol=0, atol=1e-9 * psi, err_msg=f"{name} disturbs others"
        )
    for one, other in combinations(seen, 2):
        distance = np.linalg.norm(seen[one] - seen[other])
        assert distance <= 2 * psi, (one, other)
        largest = max(largest, distance)
    assert largest > (1.0 if task in ("gradient", "sums", "evidence") else 0.6) * psi, (
        "the bound would not be noticed if it were missing"
    )


@pytest.mark.parametrize("task", ["gradient", "sums", "slopes", "evidence"])
@pytest.mark.parametrize("size", [1e40, 1e90, 1e160, 1e300])
def test_models_that_make_numbers_overflow_stop_nobody_else(task, size):
    """Users without rows of a kind must not suffer from users who have some.

    A global model may be as large as noise makes it.
    """
    schema = schema_of(missing="drop", buckets=ITEMS)
    model = model_of(schema)
    w = np.zeros_like(model.w)
    w[1] = size  # the first number's
    shared = shared_for(task, replace(model, w=w))
    rng = np.random.default_rng(0)
    calm = [rows_of(schema, 6, rng) for _ in range(4)]
    for rows in calm:
        rows.numbers[:, 0] = 38.0  # encoded as 0
    loud = rows_of(schema, 6, rng, gaps=0.0)
    (alone,), _, _ = client(cohort_of(schema, calm)).fit(shared, settings_for(task, 0.01))
    (both,), _, _ = client(cohort_of(schema, [*calm, loud])).fit(shared, settings_for(task, 0.01))
    assert np.isfinite(both).all() and np.linalg.norm(alone) > 0
    assert np.linalg.norm(both - alone) <= 0.01 * (1 + 1e-9)


@pytest.mark.parametrize("ridge", [1e-6, 0.1, 1e6])
@pytest.mark.parametrize("m", [1, 2, 8, 40])
def test_equal_rows_are_no_singular_equations(ridge, m):
    schema = schema_of()
    rows = rows_of(schema, 1, np.random.default_rng(0), gaps=0.0)[np.zeros(m, dtype=int)]
    own = client(cohort_of(schema, [rows]), slope_ridge=ridge)
    for task in ("curvature", "gradient", "slopes", "evidence"):
        shared = shared_for(task, model_of(schema))
        (sum_,), _, _ = own.fit(shared, settings_for(task, 1.0))
        assert np.isfinite(sum_).all() and np.linalg.norm(sum_) <= 1.0


@pytest.mark.parametrize("kind", ["number", "three"])
@pytest.mark.parametrize("task", ["curvature", "gradient", "sums", "slopes", "factors", "evidence"])
def test_a_search_finds_nobody_above_the_bound(task, kind):
    """Search with random changes of any size.

    A change is kept if it moves the unclipped sum's rounding, or the clipped sum, further out.
    """
    schema = schema_of(kind, buckets=ITEMS)
    shared, rng, psi = shared_for(task, model_of(schema)), np.random.default_rng(5), 1e-3
    best, rows = 0.0, rows_of(schema, 5, rng)
    for _ in range(250):
        numbers, y = rows.numbers.copy(), rows.y.copy()
        place = rng.integers(len(y)), rng.integers(numbers.shape[1])
        move = rng.integers(5)
        if move == 0:
            numbers[place] = rng.choice([-1, 1]) * 10.0 ** rng.uniform(-300, 300)
        elif move == 1:
            numbers[:] = numbers[place[0]] * (
                1 + 10.0 ** rng.uniform(-7, 0) * rng.standard_normal(numbers.shape)
            )
        elif move == 2 and kind == "number":
            y[place[0]] = rng.choice([-1, 1]) * 10.0 ** rng.uniform(-300, 300)
        elif move == 3:
            y[:] = y[place[0]]
        else:
            y[:] = y[rng.permutation(len(y))]
        changed = replace(rows, numbers=numbers, y=y)
        (sum_,), _, _ = client(cohort_of(schema, [changed])).fit(shared, settings_for(task, psi))
        norm = np.linalg.norm(sum_) / psi
        assert norm <= 1.0
        if norm >= best:
            best, rows = norm, changed
    assert best > 0.999 * SLACK


def test_shares_have_the_largest_norm_where_all_values_of_a_column_are_alike():
    schema = schema_of()
    rows = rows_of(schema, 7, np.random.default_rng(0), gaps=0.0)[np.zeros(7, dtype=int)]
    for task in ("magnitudes", "locate"):
        (sum_,), _, _ = client(cohort_of(schema, [rows])).fit(
            shared_for(task, model_of(schema)), settings_for(task, 100.0)
        )
        np.testing.assert_allclose(np.linalg.norm(sum_, axis=1), 1.0)
        assert np.linalg.norm(sum_) == pytest.approx(3**0.5) and sum_.shape[0] == 3


@pytest.mark.parametrize(
    "name",
    [
        "huge",
        "target 1e300",
        "targets +-1.7e308",
        "infinite",
        "missing",
        "all equal",
        "one outlier",
    ],
)
def test_a_user_without_finite_errors_does_not_hide_the_others(name):
    """A simulated judgement that is not finite would be left out, with all users of its node."""
    schema = schema_of()
    rng = np.random.default_rng(0)
    users = [rows_of(schema, 6, rng), hostile(schema, rng)[name]]
    _, _, told = client(cohort_of(schema, users, held=2)).evaluate(
        model_of(schema).arrays, {"judge": True}
    )
    assert all(0 <= value < 1e100 for value in told.values() if isinstance(value, float)), told
