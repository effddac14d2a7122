"""Tables of users who take part from machines of their own, and the same rows in one file."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

SCHEMA = """
user: who
target: {column: y, kind: numeric, bounds: [-20, 20]}
missing: indicator
columns:
  age: {kind: numeric, bounds: [0, 100]}
  size: {kind: numeric}
  city: {kind: categorical, values: [Rome, Oslo, Lima]}
  tag: {kind: hashed, buckets: 5}
"""
FEATURES = ["age", "size", "city", "tag"]


def rows_of(name: str, count: int, broken: bool = False) -> list[list[str]]:
    """Rows of one user with gaps and unknown categories; broken: cells that fit no schema."""
    rng = np.random.default_rng([ord(letter) for letter in name])
    w, rows = rng.normal(size=2), []
    for _ in range(count):
        age, size = rng.uniform(0, 100), rng.normal(0, 3)
        city = str(rng.choice(["Rome", "Oslo", "Lima", "Atlantis"]))
        y = w[0] * age / 50 + w[1] * size + rng.normal()
        cells = [repr(float(age)), repr(float(size)), city, f"t{rng.integers(9)}", repr(float(y))]
        cells = ["" if rng.random() < 0.1 and i < 3 else cell for i, cell in enumerate(cells)]
        rows.append(["one", "NaN", "\x00", "", "inf"] if broken else cells)
    return rows


def write_table(path: Path, users: dict[str, list[list[str]]], named: bool = True) -> None:
    """Write the rows of users; a file of one user needs no column with its name."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*(["who"] if named else []), *FEATURES, "y"])
        for name, rows in users.items():
            for row in rows:
                out.writerow([*([name] if named else []), *row])


def write_federation(
    folder: Path, singles: dict[str, int], clinic: int, extra: int
) -> tuple[str, ...]:
    """Write a file per single user, one of a clinic, one of simulated users, one of everybody.

    Returns:
        Arguments of `privfed roster` after the file.
    """
    (folder / "schema.yaml").write_text(SCHEMA)
    alone = {name: rows_of(name, count) for name, count in singles.items()}
    for name, rows in alone.items():
        write_table(folder / f"{name}.csv", {name: rows}, named=False)
    patients = {f"patient {i}": rows_of(f"p{i}", 3 + i % 7, i == 1) for i in range(clinic)}
    crowd = {f"crowd {i}": rows_of(f"c{i}", 2 + i % 9) for i in range(extra)}
    write_table(folder / "clinic.csv", patients)
    write_table(folder / "crowd.csv", crowd)
    write_table(folder / "all.csv", alone | patients | crowd)
    return (*singles, f"clinic={clinic}", "--simulated", f"crowd={extra}")
