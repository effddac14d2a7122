"""Sweeps: every combination, in processes; a failed, killed or stopped one costs only itself."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean, stdev

import pytest

from privfed.experiment.sweep_settings import combinations, names_of
from privfed.foundation.errors import ConfigError

SMALL = ("data.n=200", "data.d=8", "data.m=6", "rounds=2")
LONG = ("data.n=200", "data.d=8", "data.m=6", "rounds=200")


def result(folder):
    return json.loads((folder / "result.json").read_text())


def children(pid):
    """The processes that a sweep has started to do its runs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and "spawn_main" in (process / "cmdline").read_text():
                found.append(int(process.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


def started(folder, *arguments):
    """A sweep in the background, as soon as two of its runs have released something."""
    line = [sys.executable, "-m", "privfed.run", *arguments]
    process = subprocess.Popen(
        line,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len([path for path in folder.glob("o/*/ledger.jsonl") if path.stat().st_size]) < 2:
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.02)
    return process


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished sweep over two epsilons and two seeds, and a run of its own."""
    folder = tmp_path_factory.mktemp("sweep")
    for line in (
        ["-m", "eps=1,4", "seed=0,1", "out=o"],
        ["eps=4", "seed=1", "out=alone", "--quiet"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "privfed.run", *SMALL, *line],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        (folder / f"{'sweep' if '-m' in line else 'alone'}.txt").write_text(
            done.stdout + done.stderr
        )
    return folder


def test_every_combination_is_a_run_with_the_numbers_it_has_by_itself(done):
    names = {path.name for path in (done / "o").iterdir() if path.is_dir()}
    assert names == {"eps=1,seed=0", "eps=1,seed=1", "eps=4,seed=0", "eps=4,seed=1"}
    mine, alone = result(done / "o/eps=4,seed=1"), result(done / "alone")
    assert mine["metrics"] == alone["metrics"] and mine["n_nodes"] == alone["n_nodes"]
    assert mine["privacy"] == alone["privacy"]
    assert "threads: 1" in (done / "o/eps=4,seed=1/config.yaml").read_text()
    files = {path.name for path in (done / "alone").iterdir()}
    assert {path.name for path in (done / "o/eps=1,seed=0").iterdir()} == files


def test_the_summary_has_a_line_a_combination_with_mean_and_spread_over_seeds(done):
    rows = list(csv.DictReader((done / "o/summary.csv").open()))
    assert [row["eps"] for row in rows] == ["1", "4"] and all(row["runs"] == "2" for row in rows)
    errors = [result(done / f"o/eps=4,seed={seed}")["metrics"]["mse"] for seed in (0, 1)]
    assert float(rows[1]["error_mean"]) == pytest.approx(fmean(errors))
    assert float(rows[1]["error_std"]) == pytest.approx(stdev(errors))
    assert (
        float(rows[0]["epsilon"]) == pytest.approx(1, rel=1e-6)
        and rows[0]["guarantee"] == "simulation"
    )


def test_progress_is_plain_lines_with_count_and_time_left(done):
    text = (done / "sweep.txt").read_text()
    lines = [line for line in text.splitlines() if " of 4, about " in line]
    assert (
        len(lines) == 4 and "(4 of 4, about 0 s left)" in lines[-1] and "epsilon spent" in lines[0]
    )
    assert "\x1b" not in text and "add up" not in text
    assert "mean error" in text and "summary.csv" in text and (done / "o/report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-m", "eps=1,0"), ("eps=0", "positive", "nothing was started")),
        (("-m", "runtime=ray", "seed=0,1"), ("runtime=ray", "one by one")),
        (("-m", "eps=1,1"), ("eps=1,1", "twice")),
        (("-m", "out=a,b"), ("out=a,b", "one folder")),
        (("-m", "--plan", "eps=1,2"), ("--plan",)),
        (("-m", "--jobs", "0", "eps=1,2"), ("--jobs=0", "at least 1")),
        (("--jobs", "2", "eps=1"), ("--jobs 2", "-m")),
        (("-m", "--resume", "nowhere"), ("nowhere", "no sweep")),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_mistake_is_one_line_and_nothing_is_started(
    arguments, words, tmp_path, monkeypatch, capfd
):
    from privfed.commands.run import main

    monkeypatch.chdir(tmp_path)
    assert main(list(arguments)) == 2
    err = capfd.readouterr().err
    assert len(err.strip().splitlines()) == 1 and all(word in err for word in words), err
    assert not any(tmp_path.iterdir())


def test_a_folder_that_holds_runs_is_not_mixed_with_a_sweep(command, tmp_path):
    (tmp_path / "o/eps=1").mkdir(parents=True)
    (tmp_path / "o/eps=1/ledger.jsonl").touch()
    done = command("-m", *SMALL, "eps=1,2", "out=o")
    assert done.returncode == 2 and "already holds runs" in done.stderr


def test_a_run_that_fails_is_told_and_the_others_go_on(command, tmp_path):
    obstacle = tmp_path / "o/seed=1/rounds.csv"
    obstacle.mkdir(parents=True)  # where a file is to be written
    first = command("-m", *SMALL, "seed=0,1,2", "out=o")
    assert first.returncode == 1
    failures = first.stderr.strip().splitlines()
    assert len(failures) == 2 and failures[0].startswith("privfed: seed=1: IsADirectoryError")
    assert (
        "1 of 3 runs failed" in failures[1]
        and "--resume o" in failures[1]
        and "Traceback" not in first.stderr
    )
    assert "IsADirectoryError" in (tmp_path / "o/seed=1/error.txt").read_text()
    assert (
        len(list((tmp_path / "o").glob("*/result.json"))) == 2
        and (tmp_path / "o/summary.csv").exists()
    )
    obstacle.rmdir()
    before = (tmp_path / "o/seed=0/result.json").stat().st_mtime_ns
    again = command("--resume", "o")
    assert again.returncode == 0 and "2 of them done already" in again.stdout, again.stderr
    assert result(tmp_path / "o/seed=1")["seed"] == 1
    assert (tmp_path / "o/seed=0/result.json").stat().st_mtime_ns == before, (
        "a finished run must be kept"
    )


def test_a_killed_process_is_replaced_and_its_run_goes_on(tmp_path):
    process = started(tmp_path, "-m", *LONG, "seed=0,1,2", "out=o", "--jobs", "2")
    os.kill(children(process.pid)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "killed (signal 9); trying again" in out
    for seed in range(3):
        ledger = (tmp_path / f"o/seed={seed}/ledger.jsonl").read_text().splitlines()
        assert len(ledger) == result(tmp_path / f"o/seed={seed}")["privacy"]["releases"] == 201


def test_ctrl_c_stops_all_and_resume_ends_with_the_same_numbers(tmp_path, command):
    process = started(tmp_path, "-m", *LONG, "seed=0,1,2", "out=o", "--jobs", "2")
    workers = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and len(err.strip().splitlines()) == 1
    assert "interrupted" in err and "--resume o" in err
    assert len(workers) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not (tmp_path / "o/seed=2/ledger.jsonl").exists(), (
        "the third run must not have been started"
    )
    again = command("--resume", "o", "--quiet")
    assert again.returncode == 0 and again.stdout == "", again.stderr
    assert command(*LONG, "seed=0", "out=alone", "--quiet").returncode == 0
    assert result(tmp_path / "o/seed=0")["metrics"] == result(tmp_path / "alone")["metrics"]
    refused = command("--resume", "o", "eps=2")
    assert refused.returncode == 2 and "keeps its settings" in refused.stderr


def test_brackets_braces_and_quotes_protect_commas():
    made = combinations(
        [
            "data.shape=[1,2]",
            "a={b:1,c:2}",
            "d='x,y'",
            "eps=1,inf",
            "seed=range(0,3)",
            "e=[1,2],[3]",
        ]
    )
    assert len(made) == 2 * 3 * 2
    assert made[0][0] == {"eps": "1", "seed": "0", "e": "[1,2]"}
    assert made[0][1] == [
        "data.shape=[1,2]",
        "a={b:1,c:2}",
        "d='x,y'",
        "eps=1",
        "seed=0",
        "e=[1,2]",
    ]


def test_names_of_runs_are_short_and_never_the_same():
    long = "x" * 300
    names = list(
        names_of(
            [{"data.path": "a/b"}, {"data.path": "a-b"}, {"k": long + "1"}, {"k": long + "2"}, {}]
        )
    )
    assert len(set(names)) == 5 and all(len(name) < 140 and "/" not in name for name in names)
    assert names[0] == "data.path=a-b" and names[-1] == "run"


def test_an_empty_value_is_left_to_the_parser():
    with pytest.raises(ConfigError, match="one folder"):
        combinations(["eps=1,,2", "out=a,b"])
