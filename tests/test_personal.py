"""Personal models in Python: the heads that training fits, any form of data, and clear errors."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from support.finished import KINDS, columns, finished, table_run

import privfed
from clients.table_fedrep import TableFedRepClient as FedRepClient
from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import ConfigError
from privfed.models import table_heads
from privfed.models.linear_model import LinearModel
from privfed.models.personal_predictors import personal_predictors
from privfed.models.table_model import NAMES, TableModel

LINEAR = ("data.n=200", "data.d=6", "rounds=2", "init=spectral")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {kind: table_run(folder, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("linear") / "run", *LINEAR)


def of_user(lines, user):
    return columns([line for line in lines if line["user"] == user])


@pytest.mark.parametrize("kind", KINDS)
def test_heads_are_those_of_training_clients(runs, kind):
    run, lines = runs[kind]
    path = run.parent / f"{kind}.csv"
    cfg = compose(
        [
            "data=table",
            f"data.path={path}",
            "data.target=target",
            "data.test=0",
            "data.categorical=[city]",
        ]
    )
    data = Experiment(cfg).data
    model = privfed.load(run)
    client = FedRepClient(data.cohort(0, data.n), None, slope_ridge=2.0)
    seen = 0
    for block in client.blocks():
        shared = TableModel.of(data.schema, [model.published.arrays[name] for name in NAMES])
        heads = table_heads.fit(shared, block.rows)
        for place, user in list(enumerate(block.ids))[:4]:
            mine = model.personalize(*of_user(lines, data.frame.names[user]))
            for name, array in heads[place].arrays.items():
                np.testing.assert_allclose(mine.head_.arrays[name], array, rtol=1e-7, atol=1e-9)
            seen += 1
    assert seen > 8 and not hasattr(model, "head_")


@pytest.mark.parametrize("kind", KINDS)
def test_heads_help_and_the_global_model_answers_without(runs, kind):
    run, lines = runs[kind]
    model = privfed.load(run)
    own, everybody = [], []
    for user in range(1, 40):
        X, y = of_user(lines, f"u{user}")
        half = {name: values[::2] for name, values in X.items()}, y[::2]
        rest = {name: values[1::2] for name, values in X.items()}, y[1::2]
        mine = model.personalize(*half)
        own.append(mine.score(*rest))
        everybody.append(model.score(*rest))
        assert mine.predict(rest[0]).shape == (len(rest[1]),)
    assert np.median(own) > np.median(everybody)


def test_every_form_of_data_means_the_same(runs):
    run, lines = runs["number"]
    model = privfed.load(run)
    texts, y = of_user(lines, "u4")
    age = [float(v) if v else math.nan for v in texts["age"]]
    size, city, numbers = [float(v) for v in texts["size"]], texts["city"], [float(v) for v in y]
    expected = model.personalize(texts, y).predict(texts)

    class Frame:
        columns = ("city", "size", "age", "more")

        def __getitem__(self, name):
            return {
                "age": np.array(age),
                "size": np.array(size),
                "city": np.array(city, dtype=object),
                "more": 0,
            }[name]

    objects = np.array([age, size, city], dtype=object).T
    named = np.array(
        list(zip(age, size, city, strict=True)),
        dtype=[("age", float), ("size", float), ("city", "U1")],
    )
    nones = {"age": [None if math.isnan(v) else v for v in age], "size": size, "city": city}
    forms = [
        Frame(),
        objects,
        objects.tolist(),
        named,
        nones,
        pa.table(nones),
        {**texts, "user": 1, "other": 2},
    ]
    assert list(model.feature_names_in_) == ["age", "size", "city"] and model.n_features_in_ == 3
    for X in forms:
        np.testing.assert_allclose(model.personalize(X, numbers).predict(X), expected, rtol=1e-12)
    mixed = {**nones, "city": ["A", 3, None, *city[3:]]}
    assert np.isfinite(model.predict(mixed)).all()


def test_no_rows_one_row_and_unknown_values(runs):
    run, lines = runs["number"]
    model = privfed.load(run)
    X, _ = of_user(lines, "u5")
    for nothing in ([], np.empty((0, 3)), {"age": [], "size": [], "city": []}):
        np.testing.assert_array_equal(model.personalize(nothing, []).predict(X), model.predict(X))
        assert model.predict(nothing).shape == (0,)
    one = model.personalize(*of_user(lines, "u0"))
    assert np.isfinite(one.predict(X)).all()
    missing, unknown = ({"age": [""], "size": [1], "city": [city]} for city in (None, "Zurich"))
    np.testing.assert_array_equal(model.predict(missing), model.predict(unknown))


def test_labels(runs):
    two, three = (privfed.load(runs[kind][0]) for kind in ("two", "three"))
    X, y = of_user(runs["two"][1], "u7")
    mine = two.personalize(X, [int(label) for label in y])
    assert list(two.classes_) == [0, 1] and mine.predict(X).dtype.kind == "i"
    np.testing.assert_array_equal(mine.predict(X) == 1, mine.decision_function(X) > 0)
    assert mine.score(X, y) == np.mean(mine.predict(X) == np.array(y, dtype=int))
    X, y = of_user(runs["three"][1], "u7")
    mine = three.fit(X, y)
    assert mine is three and list(three.classes_) == ["high", "low", "mid"]
    np.testing.assert_array_equal(
        mine.classes_[mine.decision_function(X).argmax(axis=1)], mine.predict(X)
    )


def test_scores_of_numbers(runs):
    run, lines = runs["number"]
    model = privfed.load(run)
    X, y = of_user(lines, "u7")
    truth = np.array(y, dtype=float)
    rest = np.sum((model.predict(X) - truth) ** 2) / np.sum((truth - truth.mean()) ** 2)
    assert model.score(X, y) == pytest.approx(1 - rest)
    assert not hasattr(model, "classes_")
    with pytest.raises(ConfigError, match="the target is a number"):
        model.decision_function(X)


def test_rows_with_missing_values_are_left_out_where_the_schema_says_so(tmp_path):
    run, lines = table_run(tmp_path, "number", "data.missing=drop")
    model = privfed.load(run)
    X, y = of_user(lines, "u9")
    whole = [place for place, age in enumerate(X["age"]) if age]
    assert len(whole) < len(y)
    complete = (
        {name: [values[place] for place in whole] for name, values in X.items()},
        [y[place] for place in whole],
    )
    np.testing.assert_array_equal(
        model.personalize(X, y).head_.V, model.personalize(*complete).head_.V
    )
    assert len(model.predict(X)) == len(y)


def test_conventions(runs):
    model = privfed.load(str(runs["two"][0]))
    again = type(model)(**model.get_params())
    assert again.get_params() == {"run": model.run} and repr(again) == repr(model)
    X, y = of_user(runs["two"][1], "u3")
    assert repr(again.fit(X, y)).endswith("with a head")
    again.set_params(run=runs["number"][0])
    assert not hasattr(again, "head_") and not hasattr(again, "classes_")
    with pytest.raises(ConfigError, match="did you mean 'run'"):
        again.set_params(runs=3)


def test_scikit_learn(runs):
    base, selection = (
        pytest.importorskip(f"sklearn.{name}") for name in ("base", "model_selection")
    )
    for kind in KINDS:
        run, lines = runs[kind]
        X, y = of_user(lines, "u8")
        model = privfed.load(run).fit(X, y)
        assert not hasattr(base.clone(model), "head_") and base.is_classifier(model) == (
            kind != "number"
        )
        array = np.array([X["age"], X["size"], X["city"]], dtype=object).T
        scores = selection.cross_val_score(
            model, array, np.array(y).astype("U" if kind == "three" else float), cv=2
        )
        assert scores.shape == (2,) and np.isfinite(scores).all()


def test_linear_runs(linear):
    rng = np.random.default_rng(0)
    model = privfed.load(linear)
    shared = [model.published.arrays["U"]]
    for m in (0, 1, 12):
        X, y = rng.normal(size=(m, 6)), rng.normal(size=m)
        mine = model.personalize(X, y)
        expected = personal_predictors(shared, X[None], y[None], True)[0] if m else np.zeros(6)
        np.testing.assert_allclose(mine.head_[:, 0], expected)
        np.testing.assert_allclose(mine.predict(X), X @ expected)
    assert model.n_features_in_ == 6 and not hasattr(model, "feature_names_in_")
    with pytest.raises(ConfigError, match="no global model; fit"):
        model.predict(X)


def test_rows_left_out_of_a_linear_head():
    rng = np.random.default_rng(1)
    X, Y = rng.normal(size=(1, 5, 4)), rng.normal(size=(1, 5, 1))
    U = np.linalg.qr(rng.normal(size=(4, 2)))[0]
    judged = LinearModel((U, np.array([0.5])), safety=True)
    for model in (LinearModel((U,)), judged):
        told = model.left_out(X, Y)
        for j in range(5):
            rest = np.arange(5) != j
            head = model.fit(X[:, rest], Y[:, rest])[0]
            np.testing.assert_allclose(told[0, j], model.scores(X[0, j : j + 1], head)[0])
    assert np.isnan(LinearModel((U,)).left_out(X[:, :2], Y[:, :2])).all()
    assert np.isnan(judged.left_out(X[:, :1], Y[:, :1])).all()


GOOD = {"age": [30, 40], "size": [1.0, 2.0], "city": ["A", "B"]}


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        ({"age": [1], "city": ["A"]}, [1], "no column 'size'"),
        ({**GOOD, "sizes": [1, 2], "size": [1]}, [1, 2], "'size' has 1 values, 'age' has 2"),
        (GOOD, [1], "'y' has 1 values, 'age' has 2"),
        (GOOD, [1, math.nan], "y: 1 of 2 values are missing"),
        (GOOD, [None, None], "y: 2 of 2 values are missing"),
        (GOOD, ["1", "many"], "row 2, column 'target': 'many' is not a number"),
        (GOOD, [[1], [2]], "y: must have one dimension"),
        (GOOD, None, "y: must be given"),
        ({**GOOD, "age": ["old", 3]}, [1, 2], "row 1, column 'age': 'old' is not a number"),
        ({**GOOD, "age": [[1], [2]]}, [1, 2], "age: must have one dimension"),
        (np.zeros((2, 4)), [1, 2], "X: has 4 columns; the model takes 3: age, size, city"),
        (np.zeros(3), [1, 2], "X: must have two dimensions"),
    ],
)
def test_mistakes_in_rows(runs, X, y, words):
    with pytest.raises(ConfigError, match=words) as caught:
        privfed.load(runs["number"][0]).fit(X, y)
    assert "\n" not in str(caught.value)


def test_unknown_labels_and_nearest_names(runs):
    with pytest.raises(ConfigError, match="'7' is none of the labels 0, 1"):
        privfed.load(runs["two"][0]).fit(GOOD, [0, 7])
    with pytest.raises(ConfigError, match="did you mean 'sise'"):
        privfed.load(runs["two"][0]).predict({"age": [1], "sise": [2], "city": ["A"]})
    with pytest.raises(ConfigError, match="no row to score"):
        privfed.load(runs["two"][0]).score([], [])


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (np.zeros((2, 5)), [1, 2], r"X: must be of shape \(rows, 6\)"),
        (np.zeros((2, 6)), [1], "y: must be of shape"),
        (np.zeros((2, 6)), [1, math.nan], "y: row 2"),
        (np.full((2, 6), math.inf), [1, 2], "X: row 1"),
        ({"a": [1]}, [1], "must be arrays of numbers"),
    ],
)
def test_mistakes_in_linear_rows(linear, X, y, words):
    with pytest.raises(ConfigError, match=words):
        privfed.load(linear).fit(X, y)


def test_runs_without_linear_heads(runs, linear, tmp_path):
    def changed(run, **arrays):
        folder = tmp_path / f"changed-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(run, folder)
        if arrays:
            np.savez(folder / "model.npz", **arrays)
        return folder

    def refused(folder, words):
        with pytest.raises(ConfigError, match=words) as caught:
            privfed.load(folder)
        assert "\n" not in str(caught.value)

    refused(tmp_path / "nowhere", "there is no such folder")
    unfinished = changed(linear)
    (unfinished / "result.json").unlink()
    refused(unfinished, "not a finished run, as it has no result.json")
    refused(
        changed(linear, **{"body.weight": np.ones((2, 2)), "U": np.ones((2, 2))}),
        "published body.weight, U; heads are",
    )
    refused(changed(linear, U=np.full((6, 2), math.nan)), "U is not an array of finite numbers")
    margin = changed(linear)
    text = (margin / "config.yaml").read_text()
    (margin / "config.yaml").write_text(text.replace("head: least-squares", "head: other"))
    refused(margin, "published U; heads are fitted to")
    table = runs["number"][0]
    bare = changed(table)
    (bare / "schema.yaml").unlink()
    refused(bare, "has no schema.yaml")
    edited = changed(table)
    text = (edited / "schema.yaml").read_text()
    (edited / "schema.yaml").write_text(text.replace("[A, B, C, D]", "[A, B]"))
    refused(edited, "not of the columns in schema.yaml")
    for content in (b"", b"PK\x03\x04 and no more"):
        broken = changed(table)
        (broken / "model.npz").write_bytes(content)
        refused(broken, "model.npz: cannot be read")
    (broken / "model.npz").unlink()
    refused(broken, "has no model.npz")


def test_import_is_light():
    line = "import sys, privfed; print(callable(privfed.load), 'numpy' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", line], capture_output=True, text=True).stdout
        == "True False\n"
    )
