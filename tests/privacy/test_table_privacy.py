"""Training on a table for release (data.evaluate=false): only what passed the noise gate leaves."""

from __future__ import annotations

import json
import re
import shutil
from itertools import combinations, product

import numpy as np
import pytest
from support.tables import write

from privfed.commands import audit, replay
from privfed.commands.run import main
from privfed.experiment import run_account
from privfed.foundation.seeding import generator
from privfed.privacy.clipping import norm
from privfed.privacy.gate import NoiseGate

USERS, ROWS = 9, 6
HEADER = ["user", "age", "income", "city", "shop", "target"]
SCHEMA = """
user: user
target: {column: target, kind: %s}
missing: %s
columns:
  age: {kind: numeric, bounds: [0, 100]}
  income: {kind: numeric}
  city: {kind: categorical, values: [Bern, Basel]}
  shop: {kind: hashed, buckets: 41}
"""
GUISES = {
    "itself": None,
    "no target": [["", "1234.5", "Bern", "s1", "?"]] * 3,
    "one row": [["31", "4321.25", "Bern", "s1", "1"]],
    "many rows": [[20 + j % 50, 10.0 * j, "Basel", f"s{j}", j % 2] for j in range(137)],
    "all missing": [["", "", "", "", 1]] * 5,
    "strange cells": [
        ["x", "--", "Atlantis", "", "0"],
        ["1e400", "inf", "", "?", "1"],
        ["-1e38", "1e-38", "Bern", "s3", "1"],
    ]
    * 2,
    "damaged lines": [
        ["<bad byte>", "1234.5", "Bern", "s1", "1"],
        ["3<zero byte>1", "4321.25", "<bad byte>", "s1", "<bad byte>"],
        ["40", "<quote>5000", "Bern", "s2", "0"],
        ["41", "5001", "<quote>Bern", "s2", "1"],
        ["42", "5002", "Bern", "s3", "1<comma>2<comma>3"],
        ["<letters>", "5002", "Bern", "s3", "1"],
    ],
    "all equal": [["50", "1e30", "Bern", "s2", "1"]] * 12,
    "alternating": [
        ["0" if j % 2 else "100", (-1) ** j * 1e15, "Bern", f"s{j % 3}", j % 2] for j in range(10)
    ],
}
"""The rows that one user may have."""
DAMAGES = {
    b"<bad byte>": b"\xff",
    b"<zero byte>": b"\0",
    b"<quote>": b'"',
    b"<comma>": b",",
    b"<letters>": b"x" * 9_000_000,
}
"""What no program would write as a cell."""


def table(path, guise):
    """Everybody has more rows than are used.

    The user who changes stands first, and in the middle of the names.
    """
    rng = np.random.default_rng(0)
    lines = {
        f"person{i}": [
            [
                f"{rng.normal(40, 10):.3f}",
                f"{rng.normal(5000, 999):.3f}",
                rng.choice(["Bern", "Basel"]),
                f"shop{rng.integers(12)}",
                j % 2,
            ]
            for j in range(ROWS + i)
        ]
        for i in range(USERS)
    }
    changed = "person4"
    rows = GUISES[guise] or lines.pop(changed)
    lines.pop(changed, None)
    write(
        path,
        HEADER,
        [[name, *row] for name, mine in ((changed, rows), *lines.items()) for row in mine],
    )
    content = path.read_bytes()
    for words, damage in DAMAGES.items():
        content = content.replace(words, damage)
    path.write_bytes(content)
    return path


@pytest.fixture
def played(tmp_path, monkeypatch, capfd):
    """What a run leaves behind, and what entered its gate.

    The gate releases numbers that depend on neither.
    """
    original, entered = NoiseGate.release, []

    def release(self, name, total, *, round, bound, **terms):
        original(self, name, total, round=round, bound=bound, **terms)
        entered.append((name, np.array(total), self.ledger.releases[-1]))
        made = generator(0, name, round).random(total.shape)
        return USERS * bound.clip * made / np.linalg.norm(made)

    def played(guise, *overrides, kind="numeric", missing="mean"):
        entered.clear()
        (tmp_path / "schema.yaml").write_text(SCHEMA % (kind, missing))
        folder = tmp_path / "run"
        line = [
            "data=table",
            f"data.path={table(tmp_path / 't.csv', guise)}",
            f"data.schema={tmp_path / 'schema.yaml'}",
        ]
        with monkeypatch.context() as patch:
            patch.setattr(NoiseGate, "release", release)
            # Each is the first run of its account, under the same random name.
            patch.setenv("PRIVFED_STATE", str(tmp_path / f"state of {guise}"))
            patch.setattr(run_account, "new_run", lambda: "0" * 32)
            assert (
                main(
                    [
                        *line,
                        "data.evaluate=false",
                        "eps=5000",
                        "rounds=2",
                        "runtime.threads=1",
                        f"out={folder}",
                        *overrides,
                    ]
                )
                == 0
            )
        said = capfd.readouterr()
        left = {"console": said.out + said.err}
        # How long it took and how much memory is for the operator alone.
        assert (folder / "operator.json").stat().st_mode & 0o777 == 0o600
        assert json.loads((folder / "operator.json").read_text())["time"]["total_s"] > 0
        (folder / "operator.json").unlink()
        for path in sorted(folder.rglob("*")):
            left[f"{path.name} time"] = "" if path.is_dir() else path.stat().st_mtime % 86400
            if path.suffix == ".npz":
                with np.load(path) as file:
                    left |= {f"{path.name} {name}": file[name].tobytes() for name in file.files}
            elif path.is_file():
                left[path.name] = path.read_text()
        shutil.rmtree(folder)
        return left, list(entered)

    return played


SETTINGS = {
    "a node each": (("runtime.nodes=9", "data.most_rows=5"), {}),
    "labels, rows dropped": (
        ("runtime.nodes=9", "data.most_rows=4"),
        {"missing": "drop", "kind": "categorical, values: [0, 1]"},
    ),
    "zero-out": (
        ("runtime.nodes=2", "neighbouring=zero-out", "algo.clip.slopes=1e-3"),
        {"missing": "indicator"},
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_with_the_releases_given_nothing_depends_on_a_user_and_no_sum_moves_further_than_claimed(
    played, setting
):
    overrides, schema = SETTINGS[setting]
    plays = {guise: played(guise, *overrides, **schema) for guise in GUISES}
    base, calls = plays["itself"]
    assert {
        "result.json",
        "report.html",
        "ledger.jsonl",
        "rounds.csv",
        "config.yaml",
        "console",
        "model.npz U",
    } <= set(base)
    assert not {"details.json", "private"} & set(base) and len(calls) >= 12
    for guise, (left, _) in plays.items():
        assert left == base, guise
    moved = {}
    absent = plays["no target"]
    for one, other in (
        product([absent], plays.values())
        if setting == "zero-out"
        else combinations(plays.values(), 2)
    ):
        for (name, mine, entry), (_, theirs, _) in zip(one[1], other[1], strict=True):
            moved[name] = max(moved.get(name, 0.0), norm(mine - theirs) / entry.sensitivity)
    assert set(moved) >= {"magnitudes", "locate", "curvature", "gradient", "counts", "sums",
                          "slopes", "factors", "evidence"} - (
        {"magnitudes", "locate"} if "kind" in schema else set())  # fmt: skip
    assert all(0 < ratio <= 1 for ratio in moved.values()) and max(moved.values()) > 0.5, moved


def test_nothing_of_a_user_is_left_behind(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    path = table(tmp_path / "t.csv", "many rows")
    (tmp_path / "schema.yaml").write_text(SCHEMA % ("numeric", "mean"))
    settings = [
        "data=table",
        "data.path=t.csv",
        "data.schema=schema.yaml",
        "data.evaluate=false",
        "eps=5000",
        "out=run",
    ]
    assert main(settings) == 0
    said = capfd.readouterr()
    whole = said.out.encode() + said.err.encode()
    text = said.out + said.err
    for file in (tmp_path / "run").rglob("*"):
        if file.suffix == ".npz":
            with np.load(file) as arrays:
                whole += b"".join(arrays[name].tobytes() for name in arrays.files)
        elif file.is_file() and file.name != "operator.json":
            whole += file.read_bytes()
            text += file.read_text(errors="ignore")
    cells = {cell for line in path.read_text().splitlines()[1:] for cell in line.split(",")}
    long = {cell for cell in cells if len(cell) > 5}
    assert len(long) > 100 and not [cell for cell in long if cell.encode() in whole]
    for cell in cells - {"Bern", "Basel", ""}:
        if not cell.startswith(("person", "s")):
            for kind in (np.float32, np.float64):
                value = kind(cell)
                assert value in (0, 1) or value.tobytes() not in whole or value == np.rint(value)
    # Digits of hashes and of drawn curves follow from secret noise and may spell any number.
    text = re.sub(r"<svg.*?</svg>|\b[0-9a-f]{32,}\b", "", text, flags=re.DOTALL)
    for size in (137, 137 + sum(ROWS + i for i in range(USERS) if i != 4)):
        assert not re.search(rf"(?<![\w.,-]){size}(?![\w.,])", text), size
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (
        result["metrics"] == {}
        and "judged" not in result
        and result["privacy"]["noise"] == "discrete"
    )
    assert result["privacy"]["guarantee"] == "worst-case"
    assert not {"time", "peak_rss_mb"} & set(result)
    assert "simulation" not in said.out and "rows" not in said.out


@pytest.mark.parametrize("kind", ["numeric, bounds: [0, 1]", "categorical, values: [0, 1]"])
def test_a_claim_about_a_table_can_be_audited(tmp_path, monkeypatch, capfd, kind):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "t.csv", "itself")
    (tmp_path / "schema.yaml").write_text(SCHEMA % (kind, "mean"))
    line = ["data=table", "data.path=t.csv", "rounds=1", "out=audited", "--repetitions", "40"]
    assert audit.main([*line, "data.schema=schema.yaml", "eps=60"]) == 0
    assert "consistent with the audit" in " ".join(capfd.readouterr().out.split())
    found = json.loads((tmp_path / "audited/result.json").read_text())["audit"]
    assert found["consistent"] and found["epsilon_lower"] <= 60


@pytest.mark.parametrize(
    ("command", "more", "words"),
    [
        (audit.main, [], "under the assumption"),
        (audit.main, ["--one-run"], "--one-run: every user has to be a canary"),
        (audit.main, ["algo=table/standalone"], "nothing to audit"),
        (replay.main, [], "a replay changes users' data"),
    ],
)
def test_what_cannot_be_checked_on_a_table_is_refused_in_one_line(
    tmp_path, monkeypatch, capfd, command, more, words
):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "t.csv", "itself")
    assert command(["data=table", "data.path=t.csv", "eps=60", *more]) == 2
    error = capfd.readouterr().err
    assert words in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
