"""Reproduce a figure: python scripts/reproduce.py NAME [--seeds N] writes docs/NAME.csv and docs/NAME.svg, prints a table."""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any

from privfed.charts import Series, line_chart, standalone_svg
from privfed.config import compose
from privfed.experiment import Experiment

DOCS = Path(__file__).resolve().parent.parent / "docs"


def run(*overrides: str) -> dict[str, Any]:
    return Experiment(compose(overrides)).run().result


def fedrep_epsilon(seeds: int) -> None:
    """Population MSE of Private FedRep against epsilon on PMPR's problem, beside its baselines."""
    methods = {
        "fedrep": (),
        "fedrep, S0 trains and S1 fits heads": ("algo.train=s0", "algo.heads=s1"),
        "fedrep, private clip norms": ("privacy.clip=auto",),
        "the paper's settings": ("preset=pmpr",),
        "the paper's settings, eta 0.25": ("preset=pmpr", "algo.eta=0.25"),
    }
    grid = ["0.1", "0.25", "0.5", "1", "2", "4", "8", "inf"]
    rows = []
    for method, overrides in methods.items():
        for eps in grid:
            results = [run(f"eps={eps}", f"seed={seed}", *overrides) for seed in range(seeds)]
            errors = [result["metrics"]["mse"] for result in results]
            spread = statistics.stdev(errors) if seeds > 1 else 0.0
            rows.append({"method": method, "eps": eps, "mse": statistics.fmean(errors), "std": spread, "seeds": seeds})
            print(f"{method:<40} eps={eps:<5} mse {rows[-1]['mse']:.3e} +- {spread:.1e}", flush=True)
    levels = {name: run(f"algo={name}")["metrics"]["mse"] for name in ("standalone", "oracle")}
    rows += [{"method": name, "eps": "", "mse": value, "std": "", "seeds": 1} for name, value in levels.items()]
    series = [
        Series(method, [r["mse"] for r in mine], [float(r["eps"]) for r in mine], colour)
        for method, colour in zip(("fedrep", "the paper's settings, eta 0.25"), ("c1", "c4"), strict=True)
        for mine in [[r for r in rows if r["method"] == method and r["eps"] != "inf"]]
    ]
    series += [
        Series("each user alone", [levels["standalone"]], colour="c2"),
        Series("oracle", [levels["oracle"]], colour="c3"),
    ]
    chart = line_chart(series, "epsilon (total, replace-one, delta 1e-6)", "population MSE", log_y=True, log_x=True)
    write("fedrep-epsilon", rows, standalone_svg(chart, series))


def write(name: str, rows: list[dict[str, Any]], svg: str) -> None:
    DOCS.mkdir(exist_ok=True)
    with (DOCS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (DOCS / f"{name}.svg").write_text(svg)
    print(f"written: docs/{name}.csv, docs/{name}.svg")


FIGURES = {"fedrep-epsilon": fedrep_epsilon}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(FIGURES))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    FIGURES[options.name](options.seeds)


if __name__ == "__main__":
    main()
