"""Small tables of users, and finished runs on them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from privfed.commands.run import main

HEADER = ("user", "age", "size", "city", "target")
KINDS = ("number", "two", "three")


def write_table(path: Path, kind: str, users: int = 60, rows: int = 8) -> list[dict[str, str]]:
    """A table of users who differ; user u0 has one row, some ages are missing."""
    rng = np.random.default_rng(5)
    lines = []
    for user in range(users):
        a, b = rng.normal(size=2)
        for _ in range(1 if user == 0 else rows + user % 3):
            age, size, city = rng.normal(40, 10), rng.normal(), rng.integers(4)
            y = 2 * a * size + b * (city == 1) + 0.05 * age + 0.1 * rng.normal()
            label = {
                "two": str(int(y > 2)),
                "three": ("low", "mid", "high")[int(y > 1.5) + int(y > 2.5)],
            }.get(kind, f"{y:.4f}")
            there = f"{age:.1f}" if rng.random() > 0.1 else ""
            lines.append(
                dict(
                    zip(
                        HEADER, (f"u{user}", there, f"{size:.3f}", "ABCD"[city], label), strict=True
                    )
                )
            )
    write_lines(path, lines)
    return lines


def write_lines(path: Path, lines: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return path


def read_lines(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def columns(lines: list[dict[str, str]]) -> tuple[dict[str, list[str]], list[str]]:
    """X and y of these lines, all of it text."""
    return {name: [line[name] for line in lines] for name in HEADER[1:4]}, [
        line["target"] for line in lines
    ]


def finished(folder: Path, *overrides: str) -> Path:
    """The folder of a run that is done."""
    assert main([*overrides, f"out={folder}", "--quiet"]) == 0
    return folder


def table_run(folder: Path, kind: str, *overrides: str) -> tuple[Path, list[dict[str, str]]]:
    """A run on a table of this kind, and the table's lines."""
    path = folder / f"{kind}.csv"
    lines = write_table(path, kind)
    settings = (
        "data=table",
        f"data.path={path}",
        "data.target=target",
        "eps=inf",
        "rounds=2",
        "data.categorical=[city]",
    )
    return finished(folder / f"{kind}-run", *settings, *overrides), lines
