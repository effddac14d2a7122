"""Reading tables: the same rows from every kind of file, kinds of columns, and messages."""

from __future__ import annotations

import gzip
import io
import math
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.sources import reading

from privfed.data.tables import table_files, table_opening
from privfed.data.tables.schema import Categorical, Hashed, Numeric, Target, bucket
from privfed.data.tables.table_loading import read_rows_for, read_table
from privfed.foundation.errors import ConfigError

PEOPLE = 'user,age,city,y\nbob,30,Bern,1.5\nann,,"Basel, BS",2\nbob,41.5,,3\n'


@pytest.fixture
def table(tmp_path):
    """A file with this content, under this name."""

    def table(content, name="mine.csv"):
        path = tmp_path / name
        if isinstance(content, dict):
            pq.write_table(pa.table(content), path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return table


@pytest.fixture
def read(table):
    def read(content, name="mine.csv", **options):
        return read_table(reading(table(content, name), **options))

    return read


def check_people(schema, frame):
    assert schema.features == (Numeric("age"), Categorical("city", ("Basel, BS", "Bern")))
    assert schema.target == Target("y") and not schema.declared
    assert frame.names == ("ann", "bob") and len(frame) == 3
    np.testing.assert_array_equal(frame.who, [1, 0, 1])
    np.testing.assert_array_equal(frame.numbers, np.array([[30], [math.nan], [41.5]]))
    np.testing.assert_array_equal(frame.codes, [[1], [0], [-1]])
    np.testing.assert_array_equal(frame.target, [1.5, 2, 3])
    assert (
        frame.time is None
        and frame.numbers.dtype == np.float64
        and frame.codes.dtype == frame.who.dtype == np.int32
    )
    assert frame.notes == (
        "age: 1 of 3 values missing; taken as the mean",
        "city: 1 of 3 values missing; taken as none of its values",
    )


@pytest.mark.parametrize(
    "content",
    [
        PEOPLE,
        "\ufeff" + PEOPLE.replace("\n", "\r\n"),
        "\n" + PEOPLE.replace("\n", "\n\n"),
        PEOPLE.replace("user,age,city,y", " user, age ,city,y")
        .replace(",30,", ", 30 ,")
        .replace("bob", "bob "),
        PEOPLE.replace(",", ";").replace("Basel;", "Basel,").replace("1.5", "1,5"),
        PEOPLE.replace(",", "\t").replace("Basel\t", "Basel,"),
        PEOPLE.replace(",,", ",NA,").replace("41.5,NA", "41.5,null"),
        gzip.compress(PEOPLE.encode(), mtime=0),
        {
            "user": ["bob", "ann", "bob"],
            "age": [30, None, 41.5],
            "city": ["Bern", "Basel, BS", None],
            "y": [1.5, 2, 3],
        },
        {
            "user": pa.array(["bob", "ann", "bob"]).dictionary_encode(),
            "age": pa.array([30, math.nan, 41.5], pa.float32()),
            "city": pa.array(["Bern", "Basel, BS", None], pa.large_string()).dictionary_encode(),
            "y": [1.5, 2, 3],
        },
    ],
)
@pytest.mark.parametrize("name", ["mine.csv", "mine.parquet", "mine"])
def test_the_same_rows_from_every_kind_of_file(read, content, name):
    check_people(*read(content, name))


def test_a_field_over_two_lines(read):
    _, frame = read('user,a,y\nb,"x\ny",1\nc,z,2\nb,z,3\n', task="regression")
    assert frame.names == ("b", "c") and frame.codes[:, 0].tolist() == [0, 1, 1]


def test_batches_make_no_difference(read, monkeypatch):
    rng = random.Random(0)
    lines = [
        f"u{rng.randrange(50)},{rng.gauss(0, 1)},{rng.choice('abc')},"
        f"{rng.choice(['', '1', '2'])},{rng.random()}"
        for _ in range(3000)
    ]
    content = "user,a,b,c,y\n" + "\n".join(lines)
    schema, frame = read(content)
    monkeypatch.setattr(table_files, "BLOCK", 1000)
    again, same = read(content)
    assert again == schema and same.names == frame.names and same.notes == frame.notes
    for name in ("who", "numbers", "codes", "target"):
        np.testing.assert_array_equal(getattr(same, name), getattr(frame, name))
    cells = [line.split(",") for line in lines]
    assert [frame.names[i] for i in frame.who] == [cell[0] for cell in cells]
    np.testing.assert_array_equal(frame.numbers[:, 0], np.array([float(cell[1]) for cell in cells]))
    assert [schema.features[1].values[code] for code in frame.codes[:, 0]] == [
        cell[2] for cell in cells
    ]
    np.testing.assert_array_equal(frame.target, [float(cell[4]) for cell in cells])


def column(read, values, name="x", **options):
    """What a column between two others is taken for."""
    lines = [f"{i % 3},{i / 3},{value},{i * 0.7}" for i, value in enumerate(values)]
    schema, frame = read(f"user,other,{name},y\n" + "\n".join(lines), **options)
    return next((f for f in schema.features if f.name == name), None), frame


@pytest.mark.parametrize(
    "name", ["id", "joke_id", "movieId", "shop ID", "item", "Movie", "film.item", "itemID"]
)
def test_whole_numbers_that_are_names(read, name):
    feature, frame = column(read, [10, 9, "9.0", 10], name)
    assert feature == Categorical(name, ("9", "10")) and "by the column's name" in frame.notes[0]
    assert column(read, [10, 9, 9, 10], name, numeric=[name])[0] == Numeric(name)
    assert column(read, [1.5, 9, 9, 10], name)[0] == Numeric(name)


@pytest.mark.parametrize("name", ["age", "paid", "idle", "items", "grid"])
def test_whole_numbers_that_are_numbers(read, name):
    assert column(read, [10, 9, 9, 10], name)[0] == Numeric(name)
    assert column(read, [10, 9, 9, 10], name, categorical=[name])[0] == Categorical(
        name, ("9", "10")
    )


def test_the_only_feature_names_items(read):
    schema, frame = read("user,thing,y\n1,7,3.5\n1,8,4\n2,7,5\n")
    assert (
        schema.features == (Categorical("thing", ("7", "8")),)
        and "the only feature" in frame.notes[0]
    )


def test_texts_and_truth(read):
    assert column(read, ["b", "a", "b"])[0] == Categorical("x", ("a", "b"))
    assert column(read, ["True", "FALSE", "true"])[0] == Categorical("x", ("false", "true"))
    assert column(read, ["b", "", "b", ""])[0] == Categorical("x", ("b",))
    schema, _ = read(
        {"user": [1, 2], "flag": [True, False], "a": [0.5, 1], "y": [1, 2]}, task="regression"
    )
    assert schema.features[0] == Categorical("flag", ("false", "true"))


def test_too_many_values_are_hashed(read):
    feature, frame = column(read, [f"v{i % 5}" for i in range(40)], most_categories=4)
    assert feature == Hashed("x", 4) and "more than 4 different values" in frame.notes[0]
    assert frame.codes[:, 0].tolist() == [bucket(f"v{i % 5}", 4) for i in range(40)]
    feature, frame = column(read, [f"name {i}" for i in range(40)])
    assert feature is None and "free text, hardly any value twice, left out" in frame.notes[0]
    assert isinstance(
        column(read, [f"name {i}" for i in range(40)], categorical=["x"])[0], Categorical
    )
    assert column(read, ["a", "b", "a"], categories="hash", buckets=7)[0] == Hashed("x", 7)


def test_a_few_numbers_that_occur_again_and_again_have_bounds(read):
    assert column(read, [i % 5 for i in range(60)])[0] == Numeric("x", (0.0, 4.0))
    assert column(read, [i % 2 for i in range(60)])[0] == Numeric("x", (0.0, 1.0))
    assert column(read, [i % 20 for i in range(400)])[0] == Numeric("x", None), "too many"
    assert column(read, [i % 5 for i in range(30)])[0] == Numeric("x", None), "too rarely"
    given = column(read, [i % 5 for i in range(60)], bounds={"x": [0, 10]})[0]
    assert given == Numeric("x", (0.0, 10.0))
    schema, _ = read({"user": [1, 2] * 30, "a": [0.5, 1.5] * 30, "y": [1, 2, 3] * 20})
    assert schema.target.bounds == (1.0, 3.0)


def test_a_column_that_counts_the_rows_is_left_out(read):
    for start in (0, 1):
        feature, frame = column(read, list(range(start, start + 40)))
        assert feature is None and "counts the rows, left out" in frame.notes[0]
    assert column(read, list(range(40)), numeric=["x"])[0] == Numeric("x", None)
    assert column(read, [*range(39), 7])[0] == Numeric("x", None)


def test_large_numbers_keep_their_digits(read):
    _, frame = column(read, [1e15 + i for i in range(5)])
    np.testing.assert_array_equal(np.diff(frame.numbers[:, 1]), 1.0)


def test_columns_that_tell_nothing(read):
    feature, frame = column(read, [4, "4.0", 4])
    assert feature is None and "x: constant, left out" in frame.notes
    feature, frame = column(read, ["", "NA", "?"])
    assert feature is None and "x: has no values, left out" in frame.notes
    feature, frame = column(read, [1, "", 1])
    assert feature is None and "constant where present" in frame.notes[0]
    assert column(read, [1, "", 1], missing="indicator")[0] == Numeric("x")
    schema, frame = read(",user,a,y\n0,b,1.5,1\n1,c,2,2\n", task="regression")
    assert [f.name for f in schema.features] == ["a"] and "row index" in frame.notes[0]


def test_numbers_in_odd_spellings(read):
    _, frame = column(
        read, ["+5", ".5", "5.", "1e3", "-", "inf", "1e999", " 7 ", "?", "-Infinity", "1e39"]
    )
    expected = [5, 0.5, 5, 1000, *[math.nan] * 3, 7, *[math.nan] * 3]
    np.testing.assert_array_equal(frame.numbers[:, 1], np.array(expected))
    assert "x: 4 values are infinite; they count as missing" in frame.notes


def test_which_columns(read):
    text = (
        "user,a,b,c,when,y\n1,1.5,2.5,3,2024-01-01,1\n"
        "2,2,3,4,2024-01-02T12:00:00+02:00,2\n1,2,9,1,1.5,3\n"
    )
    schema, frame = read(text, features=["c", "a"], time="when", bounds={"a": [0, 5], "y": [0, 9]})
    assert schema.features == (Numeric("c"), Numeric("a", (0.0, 5.0))) and schema.target == Target(
        "y", None, (0.0, 9.0)
    )
    np.testing.assert_array_equal(frame.time, [1704067200.0, 1704189600.0, 1.5])
    schema, _ = read(text, ignore=["b", "when"])
    assert [f.name for f in schema.features] == ["a", "c"]


def test_time_in_parquet(read):
    moments = pa.array([0, 1_500_000], pa.timestamp("us"))
    for when in (moments, moments.cast(pa.timestamp("ms", "Europe/Zurich")), pa.array([0, 1.5])):
        _, frame = read({"user": [1, 2], "a": [1.5, 2], "t": when, "y": [1.0, 2.5]}, time="t")
        np.testing.assert_array_equal(frame.time, [0, 1.5])


@pytest.mark.parametrize(
    ("targets", "task", "labels"),
    [
        (["b", "a", "b"], "auto", ("a", "b")),
        (["10", "9", "9.0"], "auto", ("9", "10")),
        (["1", "2", "3"], "auto", None),
        (["1", "2", "3"], "classification", ("1", "2", "3")),
        (["0", "1", "1"], "regression", None),
        (["True", "False", "True"], "auto", ("false", "true")),
        (["a", "1", "b"], "auto", ("1", "a", "b")),
    ],
)
def test_targets(read, targets, task, labels):
    schema, frame = read(
        "user,a,target\n" + "".join(f"u,{i}.5,{y}\n" for i, y in enumerate(targets)), task=task
    )
    assert schema.target == Target("target", labels)
    if labels:
        assert [labels[int(y)] for y in frame.target] == [
            y.replace(".0", "").lower() for y in targets
        ]


def test_rows_without_a_target_and_users_without_rows(read):
    _, frame = read("user,a,y\nb,1.5,1\nc,2,NA\nb,3,inf\nd,4,2.5\nd,4,7\n")
    assert frame.names == ("b", "c", "d") and frame.who.tolist() == [0, 2, 2]
    assert frame.notes == ("2 rows without a target left out", "1 users have no rows left")


def test_users_by_size_of_their_numbers(read):
    assert read("user,a,y\n10,1.5,1\n9,2,2\n-1,3,4\n")[1].names == ("-1", "9", "10")
    _, frame = read("user,a,y\n10.0,1.5,1\n9.0,2,2\n10.0,3,4\n")
    assert frame.names == ("9", "10") and "3.0 as 3" in frame.notes[0]
    assert read({"user": [3.0, 1e15], "a": [1.5, 2], "y": [1.0, 2.5]}, task="regression")[
        1
    ].names == ("3", "1000000000000000")


def test_missing_values_drop_rows_on_request(read):
    schema, frame = read(PEOPLE, missing="drop")
    assert (
        frame.who.tolist() == [1]
        and schema.missing == "drop"
        and "age: 1 of 3 values missing; rows left out" in frame.notes
    )
    with pytest.raises(
        ConfigError, match=r"mine.csv: line 3, column 'age': is missing, and data.missing=refuse"
    ):
        read(PEOPLE, missing="refuse")


DECLARED = """
user: user
target: {column: y, kind: numeric}
columns: {age: {kind: numeric, bounds: [0, 120]}, city: {kind: categorical, values: [Basel, Bern]},
  x: {kind: hashed, buckets: 4}}
"""


def test_with_a_declared_schema_no_cell_is_an_error(read, tmp_path):
    (tmp_path / "s.yaml").write_text(DECLARED)
    text = (
        "user,age,city,x,y\nb,old,Bern,q,1\n,1,Bern,q,2\n"
        "c,7,Genf,,3\nc,8,,q,much\n1.5,inf,Basel,q,5\n"
    )
    schema, frame = read(text, schema=str(tmp_path / "s.yaml"))
    assert schema.declared and frame.names == ("1.5", "b", "c") and frame.who.tolist() == [1, 2, 0]
    np.testing.assert_array_equal(frame.numbers[:, 0], np.array([math.nan, 7, math.nan]))
    assert frame.codes.tolist() == [[1, bucket("q", 4)], [-1, -1], [0, bucket("q", 4)]]
    assert frame.target.tolist() == [1, 3, 5]
    assert {
        "1 rows without a user left out",
        "age: 1 values are not numbers; they count as missing",
    } < set(frame.notes)
    assert "city: 1 values are none of those the schema lists" in frame.notes


def test_with_a_declared_schema_a_bad_time_is_none(read, tmp_path):
    (tmp_path / "s.yaml").write_text(DECLARED + "time: t\n")
    text = (
        "user,age,city,x,y,t\nb,1,Bern,q,1,2024-01-01\n"
        "b,1,Bern,q,2,soon\nb,1,Bern,q,2,\nb,1,Bern,q,2,3\n"
    )
    _, frame = read(text, schema=str(tmp_path / "s.yaml"))
    np.testing.assert_array_equal(frame.time, [1704067200, math.nan, math.nan, 3])
    assert frame.notes == ("2 rows without a time, which count as the latest",)


def test_another_file_with_the_same_schema(read, table):
    schema, _ = read(PEOPLE)
    frame = read_rows_for(schema, table("city,age\nBern,1\nGenf,2\n", "new.csv"), need_target=False)
    assert (
        frame.names == ("",)
        and frame.who.tolist() == [0, 0]
        and frame.codes.tolist() == [[1], [-1]]
    )
    assert np.isnan(frame.target).all()
    frame = read_rows_for(
        schema, table("y,city,age\n,Bern,1\n4,Bern,2\n", "new.csv"), need_target=False
    )
    np.testing.assert_array_equal(frame.target, [math.nan, 4])
    with pytest.raises(ConfigError, match="no column 'y'"):
        read_rows_for(schema, table("city,age\nBern,1\n", "new.csv"))
    with pytest.raises(ConfigError, match=r"new.csv: line 2, column 'age': 'old' is not a number"):
        read_rows_for(schema, table("city,age\nBern,old\n", "new.csv"), need_target=False)


def test_a_schema_written_and_declared_reads_the_same(read, tmp_path):
    schema, frame = read(PEOPLE)
    (tmp_path / "s.yaml").write_text(schema.to_yaml())
    again, same = read(PEOPLE, schema=str(tmp_path / "s.yaml"))
    assert again.features == schema.features and again.declared
    np.testing.assert_array_equal(same.numbers, frame.numbers)
    np.testing.assert_array_equal(same.codes, frame.codes)


def test_a_table_that_does_not_fit_is_refused_before_it_is_read(table):
    path = table(PEOPLE)
    with pytest.raises(
        ConfigError,
        match=r"4 columns of about 4 rows need 0.1 GB of memory, 0.0 GB are free; .*data.features",
    ):
        read_table(reading(path), memory=lambda: 1 << 20)
    read_table(reading(path), memory=lambda: None)
    text = io.StringIO()
    for i in range(100_000):
        text.write(f"user {i},{i}\n")
    long = b"user,y\n" + text.getvalue().encode()
    for content in (long, gzip.compress(long, 1)):
        rows = table_opening.open_table(table(content)).rows
        assert 80_000 < rows < 200_000


def test_names_of_rows_and_of_users_are_left_out(read):
    feature, frame = column(read, [7 * i + 3 for i in range(60)], "order_id")
    assert feature is None and "order_id: names, hardly any value twice" in frame.notes[0]
    feature, _ = column(read, [f"{i % 20:05d}" for i in range(60)], "place")
    assert isinstance(feature, Categorical) and feature.values[1] == "00001"
    users = [f"u{i % 50}" for i in range(300)]
    rows = [f"{u},{i / 7},mail {u},{i * 0.7}" for i, u in enumerate(users)]
    schema, frame = read("user,x,mail,y\n" + "\n".join(rows))
    assert schema.columns == ("x",) and "it says who and not what" in frame.notes[0]
    assert "'data.categorical=[mail]'" in frame.notes[0], "quoted for a shell"


def test_large_numbers_that_differ_by_little_have_an_origin(read):
    random.seed(1)
    values = [1e9 + random.gauss(0, 1) for _ in range(200)]
    feature, frame = column(read, values)
    assert feature is not None and feature.origin == 1e9
    assert "their scale is searched around 1000000000" in frame.notes[0]
    assert column(read, [v - 1e9 for v in values])[0].origin == 0.0
