"""Tables and settings that cannot be used: one clear line each, with the place and the remedy."""

from __future__ import annotations

import builtins
import gzip
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.sources import reading

from privfed.data.tables import table_files
from privfed.data.tables.table_loading import read_rows_for, read_table
from privfed.foundation.errors import ConfigError

GOOD = "user,a,city,y\nbob,1.5,Bern,1\nann,2,Basel,2\nbob,3,Bern,3\n"


@pytest.fixture
def refusal(tmp_path):
    """The line that a table is refused with."""

    def refusal(content=GOOD, name="mine.csv", **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ConfigError) as caught:
            read_table(reading(path, **options))
        assert "\n" not in str(caught.value)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return refusal


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "mine.csv: is empty"),
        (" \n\n", "mine.csv: is empty"),
        ("user,a,y\n", "mine.csv: has a header and no rows"),
        ("user,a,y\n\n\n", "mine.csv: has a header and no rows"),
        ("user,a,a,y\n1,2,3,4\n", "mine.csv: two columns are called 'a'"),
        (
            "User,a,y\n1,2,3\n",
            "mine.csv: has no column 'user' (data.user); did you mean 'User'? known: User, a, y",
        ),
        (
            "user,a,b\n1,2,3\n",
            "say which column is to be predicted with data.target; columns: user, a, b",
        ),
        ("user,y\n1,2\n", "has no feature column besides 'user' and 'y'"),
        ("user,a,y\nb,1.5,1\n\nb,2\n", "mine.csv: line 4 has 2 values, the header 3"),
        ('user,a,y\nb,"1\n5",1\nb,2,3,4\n', "mine.csv: line 4 has 4 values, the header 3"),
        ('user,a,y\nb,1,1\nc,2,"3\nd,4,5\n', "a quote that is never closed?"),
        (b"user,a,y\nb,1,1\nJ\xfcrg,2,2\n", "mine.csv: line 3 is not UTF-8 text"),
        ("user,a,y\nb,1,1\n".encode("utf-16"), "is UTF-16 text; save the table as UTF-8"),
        ("user,a,y\nb,1,1\n".encode("utf-16-le"), "is neither CSV in UTF-8 nor Parquet"),
        (bytes(range(256)) * 8, "is neither CSV in UTF-8 nor Parquet"),
        (b"PK\x03\x04 and so on", "is a zip archive and no workbook"),
        (b"PAR1 and so on", "mine.csv: cannot be read"),
        (
            gzip.compress(GOOD.encode(), mtime=0)[:-12],
            "mine.csv: cannot be read, cut off or damaged",
        ),
        (gzip.compress(b"", mtime=0)[:12], "mine.csv: cannot be read, cut off or damaged"),
        (gzip.compress(b"", mtime=0), "mine.csv: is empty"),
        (
            "user,a,y\nb,1," + "x" * (table_files.BLOCK * 2),
            "a line of more than 8 MB; is it a table",
        ),
        (
            "user,a,y\nb,1.5,1\nb,x,2\nc,3,4\n",
            "line 3, column 'a': mixed types: 'x' is not a number and most values are",
        ),
        ("user,a,y\nb,1.5,1\nb,x,2\nc,3,4\n", "set 'data.categorical=[a]'"),
        ("user,a,y\nb,1.5,1\n?,2,2\n", "line 3, column 'user': '' is no user's name"),
        (
            "user,a,y\n1,1.5,1\n1.5,2,2\n",
            "line 3, column 'user': '1.5' is not a user's number or name",
        ),
        ("user,a,y\nb,1.5,NA\nc,2,\n", "column 'y': no row has a target"),
        ("user,a,y\nb,1.5,3\nc,2,3.0\n", "column 'y': all targets are '3'"),
        ("user,a,y\nb,1,2\nc,1,3\n", "no feature column is left; a: constant, left out"),
        ("user,a,y\nb,1.5,1\nc,2,two\nc,2,3\n", "line 3, column 'y': 'two' is not a number"),
        (
            "user,a,y\n" + "".join(f"b,{i}.5,name {i}\n" for i in range(150)),
            "more than 100 different labels; is it the right column",
        ),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_files(refusal, content, words):
    assert words in refusal(content)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"user": "usr"}, "has no column 'usr' (data.user); did you mean 'user'?"),
        ({"user": None}, "data.user=None: must be the column"),
        ({"target": "z"}, "has no column 'z' (data.target)"),
        ({"target": "user"}, "data.target=user: is the user column already"),
        ({"time": "when"}, "has no column 'when' (data.time)"),
        ({"time": "user"}, "data.time=user"),
        ({"time": "y", "target": "y"}, "data.time=y: is the target column already"),
        ({"time": "y"}, "column 'y' cannot be the target and something else"),
        ({"time": "city"}, "line 2, column 'city': 'Bern' is neither a number nor a date"),
        ({"features": ["a", "y"]}, "column 'y' cannot be the target and something else"),
        ({"features": ["a", "y"], "target": "y"}, "data.features=[a,y]: 'y' is the target column"),
        ({"features": ["a", "user"]}, "data.features=[a,user]: 'user' is the user column"),
        ({"features": ["aa"]}, "has no column 'aa' (data.features)"),
        ({"features": "a"}, "data.features=a: must be a list of columns"),
        ({"features": ["a"], "ignore": ["a"]}, "has no feature column"),
        ({"ignore": ["town"]}, "has no column 'town' (data.ignore)"),
        ({"categorical": ["town"]}, "has no column 'town' (data.categorical)"),
        ({"categorical": ["user"]}, "data.categorical: column 'user' is not a feature"),
        (
            {"categorical": ["a"], "numeric": ["a"]},
            "data.numeric=[a]: 'a' is in data.categorical, too",
        ),
        ({"numeric": ["city"]}, "line 2, column 'city': 'Bern' is not a number"),
        ({"bounds": {"town": [0, 1]}}, "has no column 'town' (data.bounds)"),
        ({"bounds": {"a": [1, 1]}}, "data.bounds.a=[1, 1]: must be [lowest, highest]"),
        ({"bounds": {"a": 3}}, "data.bounds.a=3: must be [lowest, highest]"),
        ({"bounds": [1, 2]}, "data.bounds=[1, 2]: must give columns their bounds"),
        (
            {"bounds": {"city": [0, 1]}},
            "line 2, column 'city': 'Bern' is not a number; the column is text",
        ),
        (
            {"bounds": {"a": [0, 1]}, "categorical": ["a"]},
            "data.bounds.a=[0.0, 1.0]: the column is in data.categorical",
        ),
        ({"categories": "onehot"}, "data.categories=onehot: did you mean 'one-hot'?"),
        ({"missing": "skip"}, "must be one of mean, indicator, drop, refuse"),
        ({"task": "classify"}, "data.task=classify: did you mean 'classification'?"),
        ({"buckets": 0}, "data.buckets=0: must be a whole number of at least 1"),
        ({"most_categories": 2.5}, "data.most_categories=2.5"),
        ({"target": "city", "task": "regression"}, "line 2, column 'city': 'Bern' is not a number"),
        (
            {"schema": "nowhere.yaml"},
            "data.schema=nowhere.yaml: cannot be read (No such file or directory)",
        ),
        ({"schema": "s.yaml", "ignore": ["a"]}, "data.ignore: data.schema=s.yaml decides"),
    ],
)
def test_settings(refusal, options, words):
    assert words in refusal(**options)


def test_dropping_may_leave_nothing(refusal):
    line = refusal("user,a,b,y\n1,1.5,,1\n2,,2.5,2\n1,,1.5,3\n2,2,?,4\n", missing="drop")
    assert "no rows are left; a: 2 of 4 values missing; rows left out" in line


def test_schemas_that_do_not_go_with_the_rest(refusal, tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        "user: user\ntarget: {column: y, kind: numeric}\nmissing: refuse\n"
        "columns: {a: {kind: numeric}}\n"
    )
    assert "to refuse would tell about a user's data" in refusal(schema=str(path))
    path.write_text(
        "user: user\ntarget: {column: y, kind: numeric}\ncolumns: {b: {kind: numeric}}\n"
    )
    assert "has no column 'b' (a feature)" in refusal(schema=str(path))
    assert "data.target=a: data.schema=s.yaml says 'y'" in refusal(schema=str(path), target="a")
    path.write_bytes(b"user: \xff")
    assert "s.yaml: cannot be read (it is not UTF-8 text)" in refusal(schema=str(path))


def test_paths(tmp_path):
    with pytest.raises(ConfigError, match=r"data.path=None: must be a CSV or Parquet file"):
        reading(None)
    with pytest.raises(ConfigError, match="is a folder"):
        read_table(reading(tmp_path))
    with pytest.raises(ConfigError, match="there is no such file"):
        read_table(reading(tmp_path / "none.csv"))
    if os.geteuid():
        (tmp_path / "mine.csv").write_text(GOOD)
        (tmp_path / "mine.csv").chmod(0)
        with pytest.raises(ConfigError, match="Permission denied"):
            read_table(reading(tmp_path / "mine.csv"))


def test_parquet(tmp_path):
    path = tmp_path / "mine.parquet"

    def refused(columns, words):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(ConfigError, match=words):
            read_table(reading(path))

    users = {"user": [1, 2, 2], "y": [1.0, 2.5, 3.0]}
    refused({**users, "a": ["1.5", "x", "2"]}, r"mine.parquet: row 2, column 'a': mixed types: 'x'")
    refused({**users, "a": [[1], [2], [3]]}, r"column 'a' holds list<.*data.ignore=\[a\]")
    refused({**users, "a": [1.5, 2, 3], "user": [1, None, 2]}, "row 2, column 'user'")
    refused(
        {name: values[:0] for name, values in users.items()} | {"a": pa.array([], pa.int64())},
        "has a header and no rows",
    )
    pq.write_table(pa.table({**users, "a": [1.5, 2, 3]}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"mine.parquet: cannot be read"):
        read_table(reading(path))
    path.write_bytes(whole[:4] + bytes(200) + whole[204:])
    with pytest.raises(ConfigError, match=r"mine.parquet: cannot be read"):
        read_table(reading(path))


def test_labels_that_a_schema_does_not_know(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("user,a,y\nb,1.5,no\nc,2,yes\n")
    schema, _ = read_table(reading(path))
    path.write_text("user,a,y\nb,1.5,no\nc,2,maybe\n")
    with pytest.raises(
        ConfigError, match="line 3, column 'y': 'maybe' is none of the labels no, yes"
    ):
        read_rows_for(schema, path)
    assert len(read_rows_for(schema, path, strict=False)) == 1


def test_without_pyarrow(tmp_path, monkeypatch):
    real = builtins.__import__

    def lacking(name, *more):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(ConfigError, match=r"needs pyarrow: pip install 'privfed\[tables\]'"):
        read_table(reading(tmp_path / "mine.csv"))
