"""Measure how cost grows: python benchmarks/bench_curves.py [--quick].

A training round costs O(n m d k). Its time against each of the four on logarithmic axes should be a
line of slope 1, and so should the time of a whole run against its number of rounds. A slope is that
of the straight line that fits best, over a range in which constant costs (messages, the release,
set-up; in k the reading of the examples) hardly matter. k is far below d, because Gram matrices
cost m k^2 in addition.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_table import Column, Effort, Row, Section
from rich.console import Console

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment


@dataclass(frozen=True)
class Curve:
    """One quantity that grows while others stay fixed.

    Attributes:
        over: name of the quantity.
        key: setting that holds it.
        values: values to measure.
        quick: fewer and smaller values, for a quick look.
        others: the fixed quantities.
    """

    over: str
    key: str
    values: Sequence[int]
    quick: Sequence[int]
    others: tuple[str, ...]


CURVES = (
    Curve(
        "n",
        "data.n",
        (100_000, 200_000, 400_000, 800_000),
        (20_000, 40_000, 80_000),
        ("d=50", "k=2", "m=10"),
    ),
    Curve("d", "data.d", (400, 800, 1600, 3200), (200, 400, 800), ("n=8000", "k=2", "m=10")),
    Curve("k", "data.k", (9, 18, 36, 72), (8, 16, 32), ("n=1000", "d=1000", "m=80")),
    Curve("m", "data.m", (40, 80, 160, 320), (40, 80, 160), ("n=20000", "d=50", "k=2")),
    Curve(
        "rounds",
        "rounds",
        (200, 400, 800, 1600),
        (100, 200, 400),
        ("n=5000", "d=50", "k=2", "m=10"),
    ),
)


def round_seconds(overrides: Sequence[str], rounds: int) -> float:
    """Return the median seconds of a training round of one run."""
    experiment = Experiment(compose(["init=random", f"rounds={rounds}", *overrides]))
    # There would be more fresh users than training users, and no round needs them.
    experiment.watches = False
    outcome = experiment.run()
    return statistics.median(row["seconds"] for row in outcome.rows if row["task"] == "gradient")


def run_seconds(overrides: Sequence[str]) -> float:
    """Return the seconds of a whole run: data, initialiser, ledger and checkpoints included."""
    with tempfile.TemporaryDirectory() as folder:
        total: float = Experiment(compose(overrides)).run(Path(folder)).result["time"]["total_s"]
    return total


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the straight line that fits log y over log x best."""
    return statistics.linear_regression([math.log(a) for a in x], [math.log(b) for b in y]).slope


def curve(wanted: Curve, values: Sequence[int], repetitions: int, rounds: int = 10) -> Row:
    """Return the best of several times per value, with all values in turn, and the slope."""
    times: dict[int, list[float]] = {value: [] for value in values}
    others = [f"data.{other}" for other in wanted.others]
    for _ in range(repetitions):
        for value in values:
            overrides = [*others, f"{wanted.key}={value}"]
            spent = (
                run_seconds(overrides)
                if wanted.key == "rounds"
                else round_seconds(overrides, rounds)
            )
            times[value].append(spent)
    seconds = [min(each) for each in times.values()]
    return {
        "over": wanted.over,
        "others": ", ".join(wanted.others),
        "values": list(values),
        "seconds": seconds,
        "first": values[0],
        "last": values[-1],
        "first_s": seconds[0],
        "last_s": seconds[-1],
        "slope": slope(values, seconds),
        "expected": 1,
    }


def curves(effort: Effort) -> list[Row]:
    """Return one row per quantity."""
    round_seconds(["data.n=1000"], 2)  # compile and load before anything is timed
    return [
        curve(
            each,
            each.quick if effort.quick else each.values,
            effort.few if each.key == "rounds" else effort.repetitions,
        )
        for each in CURVES
    ]


SECTION = Section(
    "curves",
    "How cost grows",
    "growth of the cost of a training round, and for rounds of the whole run (slope on "
    "logarithmic axes)",
    "The time of a round against n, d, k and m, and of a whole run (data, initialiser, rounds, "
    "heads; ledger and checkpoints on disk) against its number of rounds. Theory says slope 1 for "
    "all, in k as long as it is far below d: the users' Gram matrices cost m k^2 besides. Ranges "
    "begin where what does not grow hardly matters; below them growth is slower than linear. They "
    "were chosen after looking, at kernels slower than today's: with a round's fixed milliseconds "
    "in them slopes were 0.87 for n from 50,000 to 400,000, 0.79 for d from 200 to 1,600 at "
    "n=4,000 (0.87 at n=20,000), 0.84 and 0.89 for k from 8 to 64 at n=200 and n=1,000. With k "
    "above m heads are not unique, and a slower way is taken. A time is the best of five tries, "
    "and of three whole runs; with fewer tries slopes of n were 0.92, 0.95 and 0.87 on one day, "
    "and those of rounds 0.98 and 0.87.",
    curves,
    [
        Column("over", "over"),
        Column("at", "others"),
        Column("from", "first", ",d"),
        Column("to", "last", ",d"),
        Column("ms at first", "first_s", ",.1f", 1e3, "s", "lower"),
        Column("ms at last", "last_s", ",.1f", 1e3, "s", "lower"),
        Column("slope", "slope", ".2f", better="near", relative=True),
        Column("expected", "expected", "d"),
    ],
    ["over"],
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller sizes, once")
    Console(highlight=False).print(SECTION.table(curves(Effort(parser.parse_args().quick))))


if __name__ == "__main__":
    os.environ.setdefault("PRIVFED_COMPILE", "always")
    main()
