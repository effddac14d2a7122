"""Whole commands as separate processes: three sections of `make bench`.

They are one run, a run with a million users and more, and a sweep.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench_process import watched
from bench_table import Column, Effort, Row, Section

RUN = (sys.executable, "-m", "privfed.run", "--quiet")
PLAIN = ("algo=fedrep", "eps=1")


def whole(name: str, *overrides: str) -> Row:
    """Return one run's seconds by part, from Python's start to the report, and its peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        cost = watched([*RUN, *PLAIN, *overrides, f"out={folder}/run"])
        row: Row = {
            "run": name,
            "command": " ".join(["python -m privfed.run", *PLAIN, *overrides]),
            "note": "",
        }
        if cost.code:
            return row | {"note": f"failed: {cost.complaint}"}
        result = json.loads((Path(folder) / "run/result.json").read_text())
        with (Path(folder) / "run/rounds.csv").open() as file:
            spent = sum(float(step["seconds"]) for step in csv.DictReader(file))
    times = result["time"]
    parts = {
        "setup_s": times["setup_s"],
        "init_s": spent - times["rounds_s"],
        "rounds_s": times["rounds_s"],
        "heads_s": times["total_s"] - times["setup_s"] - spent,
        "rest_s": cost.wall - times["total_s"],
    }
    peak = max(cost.peak_mb, result["peak_rss_mb"])
    return row | {
        "n": result["n_users"],
        "wall_s": cost.wall,
        "cpu_s": cost.cpu,
        **parts,
        "peak_mb": peak,
    }


def scale(effort: Effort) -> list[Row]:
    """Run with a million users; with a long effort also with ten million, which are streamed."""
    large, huge = ("100,000", "200,000") if effort.quick else ("1,000,000", "10,000,000")
    rows = [whole(large, f"data.n={large.replace(',', '')}")]
    if effort.long:
        rows.append(
            whole(f"{huge}, streamed", f"data.n={huge.replace(',', '')}", "data.stream=true")
        )
    return rows


def sweep(settings: Sequence[str], runs: int) -> list[Row]:
    """Return one row per phase of a sweep: seconds, and the fraction of all cores' time used."""
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "sweep"
        marks = {
            "start-up": lambda: (folder / "sweep.json").exists(),
            "runs": lambda: sum(1 for _ in folder.glob("*/result.json")) >= runs,
        }
        cost = watched([*RUN, "-m", *settings, f"out={folder}"], marks)
    if cost.code:
        raise RuntimeError(f"the sweep failed: {cost.complaint}")
    ends = {**cost.marks, "summary": (cost.wall, cost.cpu)}
    rows, before = [], (0.0, 0.0)
    for phase, end in (*ends.items(), ("all", (cost.wall, cost.cpu))):
        wall, cpu = (end[i] - (before[i] if phase != "all" else 0.0) for i in range(2))
        row = {
            "runs": runs,
            "cores": cores,
            "phase": phase,
            "seconds": wall,
            "cpu_s": cpu,
            "busy": cpu / (wall * cores),
        }
        rows.append(row)
        before = end
    return rows


def many_runs(effort: Effort) -> list[Row]:
    """Run a sweep over seeds and budgets."""
    if effort.quick:
        return sweep(["eps=1,2", "seed=0,1,2,3", "data.n=5000"], 8)
    return sweep(["eps=1,2,4,8", f"seed={','.join(map(str, range(16)))}", "data.n=20000"], 64)


WHERE = [
    Column("wall s", "wall_s", ",.2f", unit="s", better="lower"),
    Column("of it data", "setup_s", ",.2f"),
    Column("initialiser", "init_s", ",.2f"),
    Column("rounds", "rounds_s", ",.2f"),
    Column("heads, validation, checkpoints", "heads_s", ",.2f"),
    Column("imports, report", "rest_s", ",.2f"),
    Column("CPU s", "cpu_s", ",.1f"),
    Column("peak memory MB", "peak_mb", ",.0f", unit="MB", better="lower"),
]
COMMAND = Section(
    "command",
    "The whole command",
    "python -m privfed.run algo=fedrep eps=1, from start to report (n={n:,})",
    "The README's command as a process of its own: the start of Python and all imports, data, "
    "initialiser, 30 rounds, heads, report.",
    lambda effort: [whole("README")],
    WHERE,
    ["run"],
)
SCALE = Section(
    "scale",
    "A million users and more",
    "python -m privfed.run algo=fedrep eps=1 with many users, from start to report",
    "The same command with a million users, and with `--long` ten million whose data are made "
    "again when they are needed (`data.stream=true`).",
    scale,
    [Column("users", "run"), *WHERE, Column("note", "note")],
    ["run"],
)
SWEEP = Section(
    "sweep",
    "A sweep",
    "a sweep of {runs} runs (`-m`) on {cores} cores: how busy it keeps them",
    "CPU seconds of the command and all its processes, as the system accounts for them, over wall "
    "seconds times cores. Start-up: imports of all processes, and the check of all settings; "
    "summary: the end of the processes, `summary.csv` and the page.",
    many_runs,
    [
        Column("phase", "phase"),
        Column("seconds", "seconds", ",.1f", unit="s", better="lower"),
        Column("CPU s", "cpu_s", ",.1f"),
        Column("cores busy", "busy", ".0%", better="higher", relative=True),
    ],
    ["phase"],
)
SECTIONS = (COMMAND, SCALE, SWEEP)
