"""Tables of users for tests: as files, and as cohorts of rows that no file could hold."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from privfed.data.evaluation_bins import LOGARITHMIC, UNIT
from privfed.data.tables.ragged_cohort import RaggedCohort, TableRows
from privfed.data.tables.schema import Categorical, Hashed, Numeric, Schema, Target
from privfed.data.tables.table_source import TableTruth
from privfed.models.table_heads import families
from privfed.models.table_model import TableModel

LABELS = {"number": None, "two": ("no", "yes"), "three": ("a", "b", "c")}
"""Kinds of targets."""


def schema_of(kind: str = "number", missing: str = "mean", buckets: int = 2) -> Schema:
    """Two numbers without bounds, one with, and two choices; with many buckets one is of items."""
    features = (
        Numeric("age"),
        Numeric("size"),
        Numeric("share", (0.0, 1.0)),
        Categorical("city", ("A", "B", "C")),
        Hashed("tag", buckets),
    )
    return Schema("user", Target("y", LABELS[kind]), features, missing=missing, declared=True)


def rows_of(schema: Schema, m: int, rng: np.random.Generator, gaps: float = 0.1) -> TableRows:
    """A user with m rows, some values missing."""
    numbers = np.column_stack([rng.normal(40, 10, m), rng.normal(0, 0.01, m), rng.random(m)])
    numbers[rng.random(numbers.shape) < gaps] = np.nan
    codes = rng.integers(-1, schema.sizes, (m, len(schema.sizes))).astype(np.int32)
    y = (
        rng.integers(schema.classes, size=m).astype(np.float64)
        if schema.classes
        else rng.normal(1000, 50, m)
    )
    return TableRows(numbers, codes, y)


def cohort_of(schema: Schema, users: list[TableRows], held: int = 0) -> RaggedCohort:
    """Users with these rows; held: how many of a user's first rows, if any, also judge it."""
    starts = np.concatenate([[0], np.cumsum([len(user) for user in users])])
    judges = [user[:held] for user in users]
    edges = np.concatenate([[0], np.cumsum([len(user) for user in judges])])
    truth = TableTruth(UNIT if schema.classes else LOGARITHMIC) if held else None
    return RaggedCohort(
        np.arange(len(users)),
        joined(users),
        starts,
        joined(judges),
        edges,
        schema.width,
        schema,
        truth,
    )


def joined(parts: list[TableRows]) -> TableRows:
    return TableRows(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("numbers", "codes", "y")
        )
    )


def people(schema: Schema, sizes: list[int], seed: int = 0, held: int = 0) -> RaggedCohort:
    """Users with these numbers of rows."""
    rng = np.random.default_rng(seed)
    return cohort_of(schema, [rows_of(schema, m, rng) for m in sizes], held)


def model_of(schema: Schema, k: int = 2, seed: int = 1) -> TableModel:
    """Something that could have been released."""
    rng = np.random.default_rng(seed)
    d, C = schema.d, schema.outputs
    centre, spread = np.array([38.0, 0.001, 0.5, 990.0]), np.array([9.0, 0.008, 0.3, 60.0])
    U = np.linalg.qr(rng.standard_normal((d, k)))[0]
    w, scale = 0.3 * rng.standard_normal((d + 1, C)), np.linspace(1.0, 0.4, k)
    if schema.classes:
        centre[-1], spread[-1] = 0.0, 1.0
    effects = np.zeros((d + 1, 3))
    effects[np.concatenate([[0], 1 + schema.dense])] = 0.4 * rng.standard_normal(
        (1 + len(schema.dense), 3)
    )
    within, none = np.zeros(len(centre)), np.zeros(0)
    model = TableModel(schema, centre, spread, within, w, U, scale, effects, none)
    K = sum(len(family) for family in families(model))
    return replace(model, evidence=0.1 * rng.standard_normal(K))


def write(path: Path, header: list[str], lines: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return path


def shared_table(path: Path, n: int = 200, kind: str = "number", seed: int = 0, d: int = 5) -> Path:
    """Users of 1 to 300 rows whose targets follow two shared directions, differently per user."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.standard_normal((d, 2)))[0]
    lines: list[list[object]] = []
    for user in range(n):
        m = int(rng.choice([1, 2, 6, 9, 12])) if user else 300
        X, v = rng.standard_normal((m, d)), rng.standard_normal(2)
        y = X @ U @ v + 0.1 * rng.standard_normal(m)
        target = {
            "number": y,
            "two": np.where(y > 0, "yes", "no"),
            "three": np.array(["a", "b", "c"])[(y > -0.5) * 1 + (y > 0.5)],
        }
        for x, t in zip(X, target[kind], strict=True):
            lines.append(
                [
                    f"u{user}",
                    *(f"{100 * value:.4f}" for value in x),
                    f"{t:.5f}" if kind == "number" else t,
                ]
            )
    return write(path, ["user", *(f"x{j}" for j in range(d)), "target"], lines)


def item_table(path: Path, n: int = 300, items: int = 12, seed: int = 0) -> Path:
    """Users who rated some items once each: tastes in one shared direction, some popular items."""
    rng = np.random.default_rng(seed)
    liked, taste = rng.standard_normal(items), rng.standard_normal(items)
    lines: list[list[object]] = []
    for user in range(n):
        v = 2 * rng.standard_normal()
        for item in rng.permutation(items)[: rng.integers(5, items + 1)]:
            lines.append(
                [
                    user,
                    item + 100,
                    f"{3 + liked[item] + v * taste[item] + 0.2 * rng.standard_normal():.4f}",
                ]
            )
    return write(path, ["user", "item", "target"], lines)
