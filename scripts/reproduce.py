"""Reproduce a figure: python scripts/reproduce.py NAME.

It writes docs/figures/NAME.csv, .png and .md, and docs/results.md. The runs of centaur-table and
centaur-figure take hours. Each run is saved as soon as it is finished, and the same command
continues after an interruption.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from figures import centaur, few_users, jl, networks, pmpr, rates, rgrad
from figures.common import Figure, assemble, write

FIGURES: dict[str, Figure] = {
    **pmpr.FIGURES,
    **rates.FIGURES,
    **few_users.FIGURES,
    **centaur.FIGURES,
    **networks.FIGURES,
    **jl.FIGURES,
    **rgrad.FIGURES,
}


def processor_seconds() -> float:
    """Return the processor time of this process and of its finished workers."""
    return sum(os.times()[:4])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=[*FIGURES, "all"], help="which figure, or all of them")
    parser.add_argument(
        "--seeds", type=int, default=None, help="runs a point; each figure has its own default"
    )
    long, default = (
        parser.add_argument_group("centaur-table and centaur-figure"),
        networks.EVERYTHING,
    )
    some: dict[str, Any] = {"action": "extend", "nargs": "+"}
    long.add_argument("--method", choices=networks.METHODS, help="run only these", **some)
    long.add_argument("--data", choices=networks.SIZES, help="run only on these", **some)
    long.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="runs at a time, each on a core; 1 takes all cores for one run",
    )
    long.add_argument(
        "--rounds",
        type=int,
        default=default.rounds,
        help=f"on CIFAR-10; {default.rounds} unless given",
    )
    long.add_argument(
        "--full", action="store_true", help="CIFAR-10 as in the paper: 200 rounds, 3 seeds, float32"
    )
    long.add_argument(
        "--assemble", action="store_true", help="run nothing, put together what there is"
    )
    options = parser.parse_args(arguments)
    choice = networks.Choice(
        options.method or default.methods, options.data or default.data,
        options.jobs, options.rounds, options.full, options.assemble,
    )  # fmt: skip
    for name in FIGURES if options.name == "all" else [options.name]:
        figure, started = FIGURES[name], processor_seconds()
        print(f"{name}: {figure.title}", flush=True)
        more = (choice,) if figure.runs else ()
        rows, picture, paragraph = figure.make(options.seeds or figure.seeds, *more)
        write(name, figure, rows, picture, paragraph, processor_seconds() - started)
    assemble(list(FIGURES))


if __name__ == "__main__":
    main()
