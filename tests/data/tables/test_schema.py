"""Schemas: counts and names of columns, how schemas are written, and how rows are encoded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privfed.data.tables.schema import (
    Categorical,
    Hashed,
    Numeric,
    Schema,
    Target,
    bucket,
    expand,
    ordered,
    plain_text,
)
from privfed.foundation.errors import ConfigError

PEOPLE = Schema(
    "who",
    Target("rating", bounds=(1.0, 5.0)),
    (
        Categorical("joke", ("5", "7")),
        Numeric("age", (0.0, 120.5)),
        Hashed("city", 3),
        Numeric("income"),
    ),
    time="when",
    missing="indicator",
)


def test_names_of_encoded_columns():
    words = "age|income|age missing|income missing|joke=5|joke=7|city#0|city#1|city#2"
    assert PEOPLE.names == tuple(words.split("|"))
    assert PEOPLE.d == len(PEOPLE.names) == 9
    assert [f.name for f in PEOPLE.numbers] == ["age", "income"]
    assert PEOPLE.classes == 0
    assert Schema("u", Target("y", ("no", "yes")), (Numeric("a"),)).classes == 2


def naive(schema, numbers, codes, centre, spread, limit):
    rows = []
    for v, c in zip(numbers, codes, strict=True):
        row = {}
        for j, feature in enumerate(schema.numbers):
            z = (float(v[j]) - centre[j]) / spread[j] if spread[j] else 0.0
            row[feature.name] = 0.0 if np.isnan(v[j]) else min(max(z, -limit), limit)
            row[f"{feature.name} missing"] = float(np.isnan(v[j]))
        for j, feature in enumerate(schema.choices):
            mark = "=" if isinstance(feature, Categorical) else "#"
            values = feature.values if isinstance(feature, Categorical) else range(feature.buckets)
            row |= {
                f"{feature.name}{mark}{value}": float(i == c[j]) for i, value in enumerate(values)
            }
        rows.append([row[name] for name in schema.names])
    return np.array(rows).reshape(-1, schema.d)


@pytest.mark.parametrize("missing", ["mean", "indicator"])
@pytest.mark.parametrize(
    "kinds", [(Numeric, Categorical, Hashed), (Numeric,), (Categorical, Hashed)]
)
def test_expansion_is_the_naive_one(missing, kinds):
    features = tuple(f for f in PEOPLE.features if isinstance(f, kinds))
    schema = Schema("who", Target("rating"), features, missing=missing)
    rng = np.random.default_rng(0)
    p, q = len(schema.numbers), len(schema.choices)
    numbers = rng.normal(size=(4, 5, p)).astype(np.float32) * 3
    numbers[rng.random(numbers.shape) < 0.3] = np.nan
    codes = rng.integers(-1, 2, size=(4, 5, q)).astype(np.int32)
    centre, spread = rng.normal(size=p), rng.random(p) + 0.1
    spread[1:2] = 0.0
    X = expand(schema, numbers, codes, centre, spread, 2.0)
    assert X.shape == (4, 5, schema.d) and X.dtype == np.float64
    flat = naive(schema, numbers.reshape(20, p), codes.reshape(20, q), centre, spread, 2.0)
    np.testing.assert_allclose(X.reshape(20, -1), flat, rtol=1e-12)
    assert expand(schema, numbers[:0], codes[:0], centre, spread, 2.0).shape == (0, 5, schema.d)


def test_hashes_are_the_same_everywhere():
    assert bucket("123456789", 1 << 32) == 0xCBF43926  # the check value that CRC-32 is defined with


def test_one_spelling_and_one_order():
    assert [
        plain_text(text) for text in (" 3.0", "3.", "-3.00", "3.10", "TRUE", "truly", "v1.0")
    ] == [*("3", "3", "-3", "3.10", "true", "truly", "v1.0")]
    assert ordered(["10", "9", "-1.5"]) == ["-1.5", "9", "10"]
    assert ordered(["10", "9", "a"]) == ["10", "9", "a"]


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
number = st.floats(allow_nan=False, allow_infinity=False)
bounds = st.none() | st.tuples(number, number).filter(lambda b: b[0] < b[1])
values = st.lists(names, min_size=2, max_size=5, unique_by=plain_text).map(tuple)


@st.composite
def schemas(draw):
    user, target, time, *columns = draw(st.lists(names, min_size=4, max_size=8, unique=True))
    kinds = {Numeric: bounds, Categorical: values, Hashed: st.integers(1, 10**6)}
    chosen = [draw(st.sampled_from(list(kinds))) for _ in columns]
    features = tuple(
        kind(name, draw(kinds[kind])) for kind, name in zip(chosen, columns, strict=True)
    )
    aim = draw(
        st.builds(Target, st.just(target), values)
        | st.builds(Target, st.just(target), st.none(), bounds)
    )
    policy = draw(st.sampled_from(["mean", "indicator", "drop", "refuse"]))
    return Schema(user, aim, features, draw(st.sampled_from([None, time])), policy, declared=True)


@settings(max_examples=150, deadline=None)
@given(schemas())
def test_what_is_written_is_read_again(schema):
    assert Schema.from_yaml(schema.to_yaml(), "schema.yaml") == schema


def test_a_file_is_pleasant_to_read():
    lines = PEOPLE.to_yaml().splitlines()
    assert (
        "  income: {kind: numeric}" in lines
        and "    values: ['5', '7']" in lines
        and "    bounds: [0, 120.5]" in lines
    )
    assert "time: when" in lines and all(len(line) <= 120 for line in lines)


def test_values_are_texts_however_they_are_typed():
    text = "user: u\ntarget: {column: y, kind: categorical, values: [no, yes]}\n"
    text += "columns: {a: {kind: categorical, values: [05, null, 1e3]}}"
    schema = Schema.from_yaml(text, "s.yaml")
    assert schema.declared and schema.missing == "mean" and schema.time is None
    assert schema.target.labels == ("no", "yes") and schema.features == (
        Categorical("a", ("05", "null", "1e3")),
    )


GOOD = {"user": "u", "target": "{column: y, kind: numeric}", "columns": "{a: {kind: numeric}}"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"user": None}, "user: is missing"),
        ({"user": "[a]"}, "user=.*name of a column"),
        ({"usr": "u"}, "usr: is no key here; did you mean 'user'"),
        ({"user": "y"}, "user and target are the same"),
        ({"columns": "{u: {kind: numeric}}"}, "'u' is the user column"),
        ({"columns": "{y: {kind: numeric}}"}, "'y' is the target column"),
        ({"columns": "{}"}, "at least one column"),
        ({"columns": "[a, b]"}, "at least one column"),
        ({"columns": "{a: numeric}"}, "columns.a: must have a kind"),
        ({"columns": "{a: {kind: numerical}}"}, "columns.a.kind=numerical: did you mean 'numeric'"),
        (
            {"columns": "{a: {kind: numeric, bound: [0, 1]}}"},
            "columns.a.bound: .*did you mean 'bounds'",
        ),
        (
            {"columns": "{a: {kind: numeric, bounds: [1, 0]}}"},
            "columns.a.bounds=.*lowest < highest",
        ),
        ({"columns": "{a: {kind: numeric, bounds: 12}}"}, "columns.a.bounds=12"),
        ({"columns": "{a: {kind: numeric, bounds: [0, x]}}"}, "columns.a.bounds"),
        ({"columns": "{a: {kind: numeric, bounds: [0, .inf]}}"}, "columns.a.bounds"),
        ({"columns": "{a: {kind: categorical}}"}, "columns.a.values: is missing"),
        ({"columns": "{a: {kind: categorical, values: []}}"}, "columns.a.values"),
        ({"columns": "{a: {kind: categorical, values: [3, 3.0]}}"}, "'3.0' appears twice"),
        ({"columns": "{a: {kind: hashed, buckets: 0}}"}, "columns.a.buckets=0"),
        ({"columns": "{a: {kind: hashed, buckets: 2.5}}"}, "columns.a.buckets=2.5"),
        ({"columns": "{a: {kind: numeric}, a: {kind: numeric}}"}, "line 3: .*twice"),
        ({"target": "{column: y, kind: categorical, values: [a]}"}, "at least two labels"),
        ({"target": "{column: y, kind: hashed, buckets: 2}"}, "target.kind=hashed"),
        ({"target": "y"}, "target: must have a kind"),
        ({"missing": "means"}, "missing=means: did you mean 'mean'"),
        ({"user": "{"}, "line .*is not YAML"),
    ],
)
def test_files_that_make_no_sense(change, words):
    text = "\n".join(
        f"{key}: {value}" for key, value in (GOOD | change).items() if value is not None
    )
    with pytest.raises(ConfigError, match=words) as refusal:
        Schema.from_yaml(text, "mine.yaml")
    assert str(refusal.value).startswith("mine.yaml: ") and "\n" not in str(refusal.value)


def test_a_file_that_is_no_mapping():
    for text in ("", "just words", "- a\n- b"):
        with pytest.raises(ConfigError, match="must have the keys user, target, columns"):
            Schema.from_yaml(text, "mine.yaml")
