"""Earlier measurements, and how a run compares with the last figures of its kind.

The history is docs/benchmarks.jsonl, with one line per run. Only figures of the same kind of
machine and the same sizes are compared. Ratios to a reference of the same run come first, because
seconds change more with the other load of the machine.
"""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_table import Effort, Measurement, Row, Section
from rich.table import Table

import privfed
from privfed.experiment.result import versions

ROOT = Path(__file__).resolve().parent.parent
HISTORY = ROOT / "docs/benchmarks.jsonl"
SLOW = 0.8
"""A quantity is marked if its speed falls below this fraction of its earlier speed."""
Entry = dict[str, Any]


def machine() -> dict[str, Any]:
    """Return the kind of processor, the number of usable cores, and the load at the start."""
    found = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        found = names[0] if names else found
    return {
        "cpu": found,
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 2),
    }


def git(*arguments: str) -> str | None:
    """Return git's answer about the code that is measured, or None without git.

    Git takes no locks, because it only reads.
    """
    try:
        line = ["git", "--no-optional-locks", *arguments]
        done = subprocess.run(
            line, cwd=Path(privfed.__file__).parent, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def begin(effort: Effort) -> Entry:
    """Return an entry to which sections will be added."""
    commit, changed = (
        git("rev-parse", "--short", "HEAD"),
        git("status", "--porcelain", "--untracked-files=no"),
    )
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": (commit or "").strip() or None,
        "dirty": bool(changed and changed.strip()),
        "size": effort.size,
        "machine": machine(),
        "versions": versions(),
        "sections": {},
    }


def usable(entry: object) -> bool:
    """Return whether a JSON value is an entry."""
    if not isinstance(entry, dict):
        return False
    shapes = {"date": str, "size": str, "machine": dict, "sections": dict}
    if not all(isinstance(entry.get(key), kind) for key, kind in shapes.items()):
        return False
    parts = entry["sections"].values()
    return all(
        isinstance(part, dict)
        and part.get("rows")
        and all(isinstance(row, dict) for row in part["rows"])
        for part in parts
    )


def parse(text: str) -> list[Entry]:
    """Return the entries of a history, oldest first; skip lines that are no entry."""
    entries = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if usable(entry):
            entries.append(entry)
    return entries


def read(path: Path) -> list[Entry]:
    """Return the history on disk."""
    return parse(path.read_text()) if path.exists() else []


def committed(path: Path) -> list[Entry]:
    """Return the history as last committed, or the one on disk if none was committed."""
    text = git("show", f"HEAD:{path.relative_to(ROOT)}") if path.is_relative_to(ROOT) else None
    return (parse(text) if text else []) or read(path)


def append(entry: Entry, path: Path) -> None:
    """Add an entry to the history."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    with path.open("a") as file:
        file.write(("\n" if torn else "") + json.dumps(entry, default=float) + "\n")


def kind(entry: Entry) -> tuple[Any, ...]:
    """Return what two entries must have in common to be compared."""
    return entry["machine"].get("cpu"), entry["machine"].get("cores"), entry["size"]


def busy(entry: Entry) -> bool:
    """Return whether other programs used more than a quarter of the cores at the start."""
    return float(entry["machine"].get("load") or 0) > 0.25 * int(entry["machine"].get("cores") or 1)


def rows_of(entry: Entry, section: str) -> list[Row]:
    """Return the rows of a section; empty if it was not measured."""
    part = entry["sections"].get(section)
    return list(part["rows"]) if part else []


def last(entries: Iterable[Entry], section: str) -> Entry | None:
    """Return the newest entry that has the section."""
    return next((entry for entry in reversed(list(entries)) if rows_of(entry, section)), None)


@dataclass(frozen=True)
class Change:
    """One quantity then and now.

    Attributes:
        name: name of the quantity.
        unit: its unit.
        relative: whether it is a ratio to a reference of the same run.
        then: earlier value.
        now: value of this run.
        ratio: ratio of speeds; below 1 means slower, whether higher or lower values are better.
    """

    name: str
    unit: str
    relative: bool
    then: float
    now: float
    ratio: float

    @property
    def slow(self) -> bool:
        """Whether the change is marked as slower."""
        return self.ratio < SLOW


def changes(then: Sequence[Measurement], now: Sequence[Measurement]) -> list[Change]:
    """Return the changes of quantities that both have, slowest first.

    Ratios to references of the same run come before absolute numbers.
    """
    before = {each.name: each for each in then}
    found = []
    for each in now:
        old = before.get(each.name)
        if (
            old is None
            or each.better == "near"
            or not all(math.isfinite(value) and value > 0 for value in (old.value, each.value))
        ):
            continue
        ratio = each.value / old.value if each.better == "higher" else old.value / each.value
        found.append(Change(each.name, each.unit, each.relative, old.value, each.value, ratio))
    return sorted(found, key=lambda change: (not change.relative, change.ratio))


def compare(
    entry: Entry, history: Sequence[Entry], sections: Mapping[str, Section]
) -> tuple[list[Change], list[str], set[str]]:
    """Compare an entry with the last figures of the same kind.

    Args:
        entry: entry of this run.
        history: earlier entries.
        sections: all sections by name.

    Returns:
        The changes, the names of new quantities, and the dates of the entries compared with.
    """
    then: list[Measurement] = []
    now: list[Measurement] = []
    dates: set[str] = set()
    same = [old for old in history if kind(old) == kind(entry)]
    for name in entry["sections"]:
        now += sections[name].measurements(rows_of(entry, name))
        old = last(same, name)
        if old is not None:
            then += sections[name].measurements(rows_of(old, name))
            dates.add(old["date"])
    known = {each.name for each in then}
    return changes(then, now), [each.name for each in now if each.name not in known], dates


def shown(found: Sequence[Change], dates: Iterable[str]) -> Table:
    """Return the comparison as a table, slowest first."""
    title = (
        f"speed now / then ({', '.join(sorted(dates))}); below 1 is slower, below {SLOW} is marked"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("quantity", "then", "now", "now / then in speed", ""):
        table.add_column(heading, justify="left" if heading in ("quantity", "") else "right")
    for i, change in enumerate(found):
        ends = i + 1 < len(found) and change.relative and not found[i + 1].relative
        numbers = [f"{value:.4g} {change.unit}".strip() for value in (change.then, change.now)]
        table.add_row(
            change.name,
            *numbers,
            f"{change.ratio:.2f}",
            "SLOWER" if change.slow else "",
            end_section=ends,
        )
    return table
