"""Reproduce a figure: python scripts/reproduce.py NAME writes docs/figures/NAME.csv, .png and .md, and docs/results.md."""

from __future__ import annotations

import argparse
import time

from figures import centaur, jl, pmpr, rgrad
from figures.common import Figure, assemble, write

FIGURES: dict[str, Figure] = {**pmpr.FIGURES, **centaur.FIGURES, **jl.FIGURES, **rgrad.FIGURES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*FIGURES, "all"], help="which figure, or all of them")
    parser.add_argument("--seeds", type=int, default=None, help="runs a point; each figure has its own default")
    options = parser.parse_args()
    for name in FIGURES if options.name == "all" else [options.name]:
        figure, started = FIGURES[name], time.perf_counter()
        print(f"{name}: {figure.title}", flush=True)
        rows, picture, paragraph = figure.make(options.seeds or figure.seeds)
        write(name, figure, rows, picture, paragraph, time.perf_counter() - started)
    assemble(list(FIGURES))


if __name__ == "__main__":
    main()
