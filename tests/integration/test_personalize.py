"""The command that fits heads after training: what it writes, what it says, and what it refuses."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from support.finished import KINDS, columns, finished, read_lines, table_run, write_lines

import privfed
from privfed.commands.personalize import main
from privfed.foundation import atomic_files


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {kind: table_run(folder, kind) for kind in KINDS}


@pytest.fixture
def personalize(tmp_path, monkeypatch, capsys):
    """The command in its own folder: exit code, standard output, and the one line of error."""
    monkeypatch.chdir(tmp_path)

    def personalize(run, *arguments):
        code = main(["--model", str(run), *map(str, arguments), "--simulation"])
        said = capsys.readouterr()
        assert said.err.count("\n") == (code != 0)
        return code, said.out, said.err

    return personalize


def of(lines, *users, without=()):
    return [
        {key: value for key, value in line.items() if key not in without}
        for line in lines
        if line["user"] in users
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_another_file(runs, kind, personalize, tmp_path):
    run, lines = runs[kind]
    mine, new = of(lines, "u3"), of(lines, "u4", without=("user", "target"))
    new[0]["city"], new[1]["age"] = "Atlantis", ""
    write_lines(tmp_path / "mine.csv", mine)
    write_lines(tmp_path / "new.csv", new)
    code, out, _ = personalize(
        run, "--data", "mine.csv", "--predict", "new.csv", "--head", "head.npz"
    )
    assert code == 0 and f"mine.csv: {len(mine)} rows with a target, of 1 user" in out
    assert (
        "mean squared error" if kind == "number" else "wrong answers"
    ) in out and "by the global model alone" in out
    model = privfed.load(run).personalize(*columns(mine))
    told = read_lines(tmp_path / "predictions.csv")
    assert [row["row"] for row in told] == [
        str(i + 1) for i in range(len(new))
    ] and "user" not in told[0]
    assert {row["basis"] for row in told} == {"personal"}
    expected = model.predict(
        {name: [line[name] for line in new] for name in ("age", "size", "city")}
    )
    if kind == "number":
        np.testing.assert_allclose([float(row["prediction"]) for row in told], expected, rtol=1e-8)
    else:
        assert [row["prediction"] for row in told] == list(map(str, expected))
    assert stat.S_IMODE(os.stat("head.npz").st_mode) == 0o600
    with np.load("head.npz") as head:
        np.testing.assert_allclose(head["V"][0], model.head_.V)
        assert list(head["users"]) == ["u3"]


def test_rows_without_a_target_users_and_strangers(runs, personalize, tmp_path):
    run, lines = runs["number"]
    some = of(lines, "u0", "u1", "u2")
    for place in (0, 4, 12):  # the only row of u0, and one of each other user
        some[place]["target"] = ""
    write_lines(tmp_path / "mine.csv", some)
    code, out, _ = personalize(run, "--data", "mine.csv", "--out", "told.csv")
    told = read_lines(tmp_path / "told.csv")
    assert (
        code == 0
        and "of 2 users" in out
        and "3 predictions for mine.csv, 1 by the global model" in out
    )
    assert [(row["row"], row["user"]) for row in told] == [("1", "u0"), ("5", "u1"), ("13", "u2")]
    assert [row["basis"] for row in told] == ["global", "personal", "personal"]
    u1 = privfed.load(run).personalize(
        *columns([line for line in of(some, "u1") if line["target"]])
    )
    assert float(told[1]["prediction"]) == pytest.approx(u1.predict(columns([some[4]])[0])[0])
    code, _, _ = personalize(run, "--data", "mine.csv", "--user", "u1", "--out", "one.csv")
    assert code == 0 and read_lines(tmp_path / "one.csv") == [told[1]]
    code, _, _ = personalize(
        run, "--data", "mine.csv", "--predict", "mine.csv", "--user", "u2", "--out", "one.csv"
    )
    assert code == 0 and {row["user"] for row in read_lines(tmp_path / "one.csv")} == {"u2"}


def test_rows_that_were_fitted_to_and_no_target_at_all(runs, personalize, tmp_path):
    run, lines = runs["two"]
    write_lines(tmp_path / "mine.csv", of(lines, "u5", without=("user",)))
    code, out, _ = personalize(run, "--data", "mine.csv")
    assert code == 0 and "rows that heads were fitted to" in out
    assert {row["basis"] for row in read_lines(tmp_path / "predictions.csv")} == {"fitted"}
    write_lines(tmp_path / "empty.csv", [line | {"target": ""} for line in of(lines, "u5")])
    code, out, _ = personalize(run, "--data", "empty.csv")
    assert code == 0 and "no head: the global model answers" in out
    assert {row["basis"] for row in read_lines(tmp_path / "predictions.csv")} == {"global"}
    assert personalize(run, "--data", "mine.csv", "--quiet") == (0, "", "")


def test_rows_with_missing_values_get_an_answer(personalize, tmp_path):
    run, lines = table_run(tmp_path, "number", "data.missing=drop")
    mine = of(lines, "u9")
    write_lines(tmp_path / "mine.csv", mine)
    code, out, _ = personalize(run, "--data", "mine.csv")
    complete = sum(bool(line["age"]) for line in mine)
    assert code == 0 and f"mine.csv: {complete} rows with a target" in out and complete < len(mine)
    told = read_lines(tmp_path / "predictions.csv")
    expected = privfed.load(run).personalize(*columns(mine)).predict(columns(mine)[0])
    np.testing.assert_allclose([float(row["prediction"]) for row in told], expected, rtol=1e-8)


def test_linear_runs(personalize, tmp_path):
    run = finished(tmp_path / "run", "data.n=200", "data.d=3", "rounds=2")
    rng = np.random.default_rng(0)
    rows = [
        {"user": f"u{i % 2}", "a": str(a), "b": str(b), "c": str(c), "y": "1"}
        for i, (a, b, c) in enumerate(rng.normal(size=(9, 3)))
    ]
    write_lines(tmp_path / "mine.csv", rows)
    code, out, _ = personalize(run, "--data", "mine.csv", "--target", "y")
    assert code == 0 and "with a head" in out and "global model" not in out
    X = np.array([[float(row[name]) for name in "abc"] for row in rows])
    mine = privfed.load(run).personalize(X[::2], np.ones(5))
    told = [float(row["prediction"]) for row in read_lines(tmp_path / "predictions.csv")]
    np.testing.assert_allclose(told[::2], mine.predict(X[::2]), rtol=1e-5)
    write_lines(tmp_path / "new.csv", [rows[0] | {"user": "eve"}])
    code, _, err = personalize(run, "--data", "mine.csv", "--target", "y", "--predict", "new.csv")
    assert code == 2 and "user 'eve' has no row with a target in mine.csv" in err
    write_lines(tmp_path / "few.csv", [row for row in rows if row["user"] == "u0"][:2])
    assert "too few rows to judge" in personalize(run, "--data", "few.csv", "--target", "y")[1]
    write_lines(tmp_path / "few.csv", [{"a": "1", "y": "2"}])
    assert (
        "has 1 columns beside 'user' and 'y'; the model takes 3"
        in personalize(run, "--data", "few.csv", "--target", "y")[2]
    )
    write_lines(tmp_path / "few.csv", [rows[0] | {"y": ""}])
    assert "no row has a target" in personalize(run, "--data", "few.csv", "--target", "y")[2]
    write_lines(tmp_path / "few.csv", [rows[0] | {"a": ""}])
    assert (
        "line 2, column 'a': is missing"
        in personalize(run, "--data", "few.csv", "--target", "y")[2]
    )


def test_mistakes(runs, personalize, tmp_path):
    run, lines = runs["number"]
    write_lines(tmp_path / "mine.csv", of(lines, "u1", "u2"))
    write_lines(tmp_path / "one.csv", of(lines, "u1", without=("user",)))
    write_lines(tmp_path / "short.csv", of(lines, "u1", without=("size",)))
    write_lines(tmp_path / "aimless.csv", of(lines, "u1", without=("target",)))
    write_lines(tmp_path / "odd.csv", [of(lines, "u1")[0] | {"size": "big"}])
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "bare.csv").write_text("user,age,size,city,target\n")
    (tmp_path / "unfinished").mkdir()
    for words, *arguments in (
        ("--data none.csv: there is no such file", "--data", "none.csv"),
        (f"--data {tmp_path}: is a folder", "--data", tmp_path),
        ("empty.csv: is empty", "--data", "empty.csv"),
        ("bare.csv: has a header and no rows", "--data", "bare.csv"),
        ("aimless.csv: has no column 'target' (the target)", "--data", "aimless.csv"),
        ("short.csv: has no column 'size' (a feature)", "--data", "short.csv"),
        (
            "short.csv: has no column 'size' (a feature)",
            "--data",
            "mine.csv",
            "--predict",
            "short.csv",
        ),
        (
            "--predict none.csv: there is no such file",
            "--data",
            "mine.csv",
            "--predict",
            "none.csv",
        ),
        ("odd.csv: line 2, column 'size': 'big' is not a number", "--data", "odd.csv"),
        ("one.csv: has no column 'user' (--user)", "--data", "one.csv", "--user", "u1"),
        ("mine.csv: has no rows of user 'u3'; did you mean", "--data", "mine.csv", "--user", "u3"),
        (
            "one.csv: does not say whose rows it has, and mine.csv is of 2 users",
            "--data",
            "mine.csv",
            "--predict",
            "one.csv",
        ),
        ("--target=size: the run predicts 'target'", "--data", "mine.csv", "--target", "size"),
        (
            "--out mine.csv: is given as another file, too",
            "--data",
            "mine.csv",
            "--out",
            "mine.csv",
        ),
        (
            "--head predictions.csv: is given as another file, too",
            "--data",
            "mine.csv",
            "--head",
            "predictions.csv",
        ),
        (
            "--out no/where.csv: cannot write there (No such file or directory)",
            "--data",
            "mine.csv",
            "--out",
            "no/where.csv",
        ),
    ):
        code, _, err = personalize(run, *arguments)
        assert code == 2 and f"privfed: {words}" in err, err
    assert "is not a finished run" in personalize("unfinished", "--data", "mine.csv")[2]
    assert not (tmp_path / "predictions.csv").exists()


def test_full_disk_leaves_no_half_of_a_file(runs, personalize, tmp_path, monkeypatch):
    run, lines = runs["number"]
    write_lines(tmp_path / "mine.csv", of(lines, "u1"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_files.os, "fsync", full)
    code, _, err = personalize(run, "--data", "mine.csv")
    assert (
        code == 1
        and err == "privfed: --out predictions.csv: cannot write there (No space left on device)\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]


def test_as_a_process(runs, tmp_path):
    run, lines = runs["three"]
    write_lines(tmp_path / "mine.csv", of(lines, "u1"))

    def personalize(*arguments):
        line = [sys.executable, "-m", "privfed", "personalize", *map(str, arguments)]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    done = personalize("--model", run, "--data", "mine.csv")
    assert done.returncode == 0 and "predictions.csv: 9 predictions" in done.stdout
    assert done.stderr.count("\n") == 1 and "protects nobody" in done.stderr
    wrong = personalize("--data", "mine.csv")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and "--model" in wrong.stderr
