"""CENTAUR's Table 1 and Figure 1: six ways to personalise networks on images, at the same budget.

Runs are long. So each is saved in docs/figures/centaur-runs.jsonl as soon as it is finished, by its
settings, and is never repeated. Parts can be run one after the other. Tables are assembled from the
finished runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from figures.common import Figure, Line, Metrics, Row, draw, mean, plt, spread
from figures.kept import FILE, keep, kept, results
from privfed.config.composition import compose
from privfed.config.instantiation import build
from privfed.privacy.accounting import gaussian_mu

METHODS = ("standalone", "fedavg_ft", "pmtl_ft", "ppsgd", "centaur", "headmean")
ALGORITHMS = {"standalone": "network/standalone", "centaur": "network/centaur"}
"""Values of `algo` for methods that linear models have as well; others are named as shown."""
RELATIONS = ("replace-one", "zero-out")
SIZES = {"fashion": ("1000", "2000"), "cifar10": ("500",)}
TITLES = {"fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
SOURCES = {"fashion": "fashion_mnist", "cifar10": "cifar10"}
CURVES = ("centaur", "fedavg_ft", "headmean")
"""Methods that the figure shows, beside users alone."""
EPSILONS = ("0.125", "0.25", "0.5", "1", "2", "4")


@dataclass(frozen=True)
class Choice:
    """Which of the missing runs are run.

    Attributes:
        methods: methods to run.
        data: data sets to run on.
        jobs: runs at a time.
        rounds: rounds on CIFAR-10.
        full: whether CIFAR-10 is run as in the paper.
        assemble: whether nothing is run, and the finished runs are only assembled.
    """

    methods: Sequence[str] = METHODS
    data: Sequence[str] = tuple(SIZES)
    jobs: int = 1
    rounds: int = 20
    full: bool = False
    assemble: bool = False


EVERYTHING = Choice()


@dataclass(frozen=True)
class Case:
    """A cell of the table or a point of the figure; users alone have no relation and no epsilon."""

    data: str
    n: str
    method: str
    relation: str = "-"
    eps: str = "-"

    def overrides(self, choice: Choice) -> list[str]:
        """Return the settings as on the command line."""
        if self.method == "headmean":
            made = [f"data={SOURCES[self.data]}", "algo=headmean", f"data.n={self.n}"]
            return [*made, f"eps={self.eps}", f"neighbouring={self.relation}"]
        algorithm = ALGORITHMS.get(self.method, self.method)
        made = [f"preset=centaur-{self.data}", f"algo={algorithm}", f"data.n={self.n}"]
        if self.method != "standalone":
            made += [f"eps={self.eps}", f"neighbouring={self.relation}"]
        if self.data == "cifar10" and not choice.full:
            made += [
                "model.precision=bfloat16",
                *([f"rounds={choice.rounds}"] if self.method != "standalone" else []),
            ]
        return made

    def chosen(self, choice: Choice) -> bool:
        """Return whether the case is to be run."""
        return self.method in choice.methods and self.data in choice.data


def runs(
    cases: Mapping[Case, Sequence[str]], seeds: int, choice: Choice = EVERYTHING
) -> dict[Case, list[Metrics]]:
    """Run the chosen cases that are missing; return the finished runs of all cases."""
    wanted = [
        [*overrides, f"seed={seed}"]
        for case, overrides in cases.items()
        if case.chosen(choice)
        for seed in range(seeds)
    ]
    done = kept()
    todo = (
        []
        if choice.assemble
        else [list(run) for run in dict.fromkeys(map(tuple, wanted)) if run not in done]
    )
    started = time.perf_counter()
    for i, (overrides, found) in enumerate(results(todo, choice.jobs), 1):
        keep(overrides, found)
        left = (time.perf_counter() - started) / i * (len(todo) - i)
        print(
            f"  {i}/{len(todo)} runs, {left:.0f} s left; {' '.join(overrides)}: "
            f"{found['accuracy']:.2%}",
            flush=True,
        )
    done = kept()
    known = {
        case: [done.get((*overrides, f"seed={seed}")) for seed in range(seeds)]
        for case, overrides in cases.items()
    }
    return {case: [run for run in found if run is not None] for case, found in known.items()}


def rows_of(found: Mapping[Case, Sequence[Metrics]]) -> list[Row]:
    """Return means over the seeds, in per cent; empty if a case has no runs.

    Seconds are counted once if several cases share runs.
    """
    rows, counted = [], set()
    for case, some in found.items():
        row: Row = {
            "data": case.data,
            "n": case.n,
            "method": case.method,
            "neighbouring": case.relation,
            "eps": case.eps,
            "accuracy": "",
            "sd": "",
            "validation": "",
            "alone": "",
            "seeds": len(some),
            "seconds": 0.0,
        }
        if some:
            fresh = [run for run in some if run.get("validation_accuracy") is not None]
            alone = [run for run in some if run.get("alone") is not None]
            row |= {
                "accuracy": round(100 * (1 - mean(some, "risk")), 3),
                "sd": round(100 * spread(some, "risk"), 3),
                "validation": round(100 * mean(fresh, "validation_accuracy"), 3) if fresh else "",
                "alone": round(100 * mean(alone, "alone"), 3) if alone else "",
                "seconds": round(
                    sum(run.get("seconds", 0.0) for run in some if id(run) not in counted), 1
                ),
            }
            counted |= {id(run) for run in some}
        rows.append(row)
    return rows


def cases(data: str) -> Iterator[Case]:
    """Yield the cells of the table."""
    for n in SIZES[data]:
        for method in METHODS:
            for relation in RELATIONS if method != "standalone" else ("-",):
                yield Case(data, n, method, relation, "-" if method == "standalone" else "1")


def table(seeds: int, choice: Choice = EVERYTHING) -> tuple[list[Row], plt.Figure, str]:
    """Make the table: accuracy of all methods on all data at epsilon 1."""
    found: dict[Case, list[Metrics]] = {}
    for data in SIZES:
        networks = {
            case: case.overrides(choice) for case in cases(data) if case.method != "headmean"
        }
        found |= runs(networks, seeds if data == "fashion" or choice.full else 1, choice)
        found |= runs(
            {case: case.overrides(choice) for case in cases(data) if case.method == "headmean"},
            seeds,
            choice,
        )
    bare = Case("fashion", "1000", "centaur", "replace-one", "inf")
    rows = rows_of(found | runs({bare: bare.overrides(choice)}, 1, choice))
    how = (
        "as in the paper"
        if choice.full
        else f"shortened to {choice.rounds} rounds, in bfloat16, with one seed"
    )
    return (
        rows,
        bars(rows),
        f"{words(rows)} Runs of networks on CIFAR-10 are {how}.\n\n{grid(rows)}",
    )


def at(rows: Sequence[Row], **wanted: str) -> Row:
    """Return the row with these entries."""
    return next(
        row
        for row in rows
        if row["eps"] != "inf" and all(row[key] in (value, "-") for key, value in wanted.items())
    )


def cell(row: Row) -> str:
    if not row["seeds"]:
        return "-"
    return f"{row['accuracy']:.1f}" + (f" ({row['sd']:.1f})" if row["seeds"] > 1 else "")


def grid(rows: Sequence[Row]) -> str:
    """Return the Markdown table; the last column is users alone with headmean's features."""
    lines = [
        f"| data | neighbours | {' | '.join(METHODS)} | alone, same features |",
        "|---" * (3 + len(METHODS)) + "|",
    ]
    for data, sizes in SIZES.items():
        for n in sizes:
            for relation in RELATIONS:
                some = [
                    at(rows, method=method, data=data, n=n, neighbouring=relation)
                    for method in METHODS
                ]
                alone = f"{some[-1]['alone']:.1f}" if some[-1]["alone"] != "" else "-"
                lines.append(
                    f"| {TITLES[data]}, n={n} | {relation} | {' | '.join(map(cell, some))} | "
                    f"{alone} |"
                )
    return "\n".join(lines)


def bars(rows: Sequence[Row]) -> plt.Figure:
    """Draw one panel per data set and size, with one bar per method and relation."""
    panels = [(data, n) for data, sizes in SIZES.items() for n in sizes]
    picture, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 4.4))
    for axis, (data, n) in zip(axes, panels, strict=True):
        for i, relation in enumerate(RELATIONS):
            some = [
                at(rows, data=data, n=n, method=method, neighbouring=relation) for method in METHODS
            ]
            x = [j + 0.4 * (i - 0.5) for j, row in enumerate(some) if row["seeds"]]
            height = [row["accuracy"] for row in some if row["seeds"]]
            error = [row["sd"] if row["seeds"] > 1 else math.nan for row in some if row["seeds"]]
            axis.bar(x, height, 0.4, yerr=error, capsize=2, label=relation, color=f"C{i}")
        axis.set_xticks(range(len(METHODS)), METHODS, fontsize=7)
        axis.set(
            title=f"{TITLES[data]}, n={n}",
            ylabel="accuracy, %",
            ylim=(0, 100),
            xlim=(-0.6, len(METHODS) - 0.4),
        )
        axis.grid(alpha=0.3, axis="y")
    axes[0].legend(fontsize=8, loc="upper left", ncols=2)
    return picture


def words(rows: Sequence[Row]) -> str:
    """Return the paragraph about the table."""
    made, seeds = sum(bool(row["seeds"]) for row in rows), max(row["seeds"] for row in rows)
    return f"""
Accuracy in per cent on each user's own test images, epsilon 1, delta 1e-5, S=5 classes a user: mean
over up to {seeds} seeds (standard deviation; one seed where none is told). Networks have the
paper's settings (presets `centaur-fashion` and `centaur-cifar10`). {made} of {len(rows)} cells are
known. Users alone release nothing. {" ".join(ranks(rows))}

What stands in the way of networks is their number of parameters. Under replace-one the noise of a
single round is {noise_length(1000, 40, "fashion"):.0f} times as long as the mean update can be with
the MLP and n=1000 ({noise_length(2000, 40, "fashion"):.0f} times with n=2000), and
{noise_length(500, 200, "cifar10"):.0f} times with LeNet, n=500 and the paper's 200 rounds. The
representation becomes one with large random weights.{quieter(rows)} `headmean` releases 1,400
numbers once instead: its noise is {2 * math.sqrt(1400) / (gaussian_mu(1, 1e-5) * 500):.2f} times as
long as the mean can be with n=500.
"""


def ranks(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the order of the paper's methods, for all settings in which all of them were run."""
    for data, sizes in SIZES.items():
        for n in sizes:
            for relation in RELATIONS:
                some = [
                    at(rows, method=method, data=data, n=n, neighbouring=relation)
                    for method in METHODS[:5]
                ]
                if all(row["seeds"] for row in some):
                    order = sorted(some, key=lambda row: -row["accuracy"])
                    yield (
                        f"{TITLES[data]}, n={n}, {relation}: "
                        f"{' > '.join(row['method'] for row in order)}."
                    )


def quieter(rows: Sequence[Row]) -> str:
    """Return what CENTAUR reaches on Fashion-MNIST, n=1000, with less noise, if it was run."""
    without = next(row for row in rows if row["eps"] == "inf")
    both = [
        at(rows, method="centaur", data="fashion", n="1000", neighbouring=relation)
        for relation in RELATIONS
    ]
    if not all(row["seeds"] for row in (without, *both)):
        return ""
    full, half = map(cell, both)
    return (
        " Less noise is no help, as heads hardly learn on the small features of a fresh network: "
        f"on Fashion-MNIST with n=1000 CENTAUR is at {full} under replace-one, at {half} with "
        f"zero-out's half of that noise, at {cell(without)} with none."
    )


def noise_length(n: int, rounds: int, data: str) -> float:
    """Return the length of a round's noise in units of the clip norm.

    It is that of replace-one and epsilon 1, with CENTAUR's networks.
    """
    cfg = compose([f"preset=centaur-{data}"])
    parameters = sum(math.prod(size) for size in build(cfg.model)().sizes(whole=False))
    return 2 * math.sqrt(rounds * parameters) / (gaussian_mu(1, 1e-5) * n)


def curve(seeds: int, choice: Choice = EVERYTHING) -> tuple[list[Row], plt.Figure, str]:
    """Make the figure: accuracy against epsilon on Fashion-MNIST, n=2000."""
    points = [
        Case("fashion", "2000", method, "replace-one", eps) for method in CURVES for eps in EPSILONS
    ]
    points.append(Case("fashion", "2000", "standalone"))
    rows = rows_of(runs({case: case.overrides(choice) for case in points}, seeds, choice))
    known = [row for row in rows if row["seeds"]]
    lines = []
    for method in dict.fromkeys(row["method"] for row in known):
        some = [row for row in known if row["method"] == method]
        x = [float(row["eps"]) for row in some if row["eps"] != "-"]
        lines.append(
            Line(method, [row["accuracy"] for row in some], x, [row["sd"] for row in some])
        )
    picture, axes = plt.subplots(figsize=(7, 4.6))
    if lines:
        draw(
            axes,
            lines,
            "epsilon",
            "accuracy, %",
            "Fashion-MNIST, n=2000, S=5, replace-one",
            log="x",
        )
    return rows, picture, curve_words(rows)


def curve_words(rows: Sequence[Row]) -> str:
    """Return the paragraph about the figure."""
    said, seeds = [], max(row["seeds"] for row in rows)
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = [cell(row) for row in rows if row["method"] == method]
        said.append(f"{method} {', '.join(cells)}")
    return f"""
Fashion-MNIST, n=2000, S=5, delta 1e-5, replace-one, up to {seeds} seeds (one where no deviation is
told). Accuracy in per cent (standard deviation) at epsilon {", ".join(EPSILONS)}:
{"; ".join(said)}. Users alone release nothing, so theirs is one level.
"""


FIGURES = {
    "centaur-table": Figure(
        "Networks on images: six ways to personalise", table, seeds=3, runs=FILE
    ),
    "centaur-figure": Figure(
        "Networks on images: accuracy against epsilon", curve, seeds=3, runs=FILE
    ),
}
