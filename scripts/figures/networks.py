"""CENTAUR's Table 1 and Figure 1: five ways to personalise networks on images, at the same budget.

Runs are long, so each is kept in docs/figures/centaur-runs.jsonl as soon as it is over, by its settings, and never repeated:
parts can be run one after the other, and tables are put together from what there is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from figures.common import Figure, Line, Metrics, Row, draw, mean, plt, spread
from figures.kept import FILE, keep, kept, results

METHODS = ("standalone", "fedavg_ft", "pmtl_ft", "ppsgd", "centaur")
RELATIONS = ("replace-one", "add-remove")
SIZES = {"fashion": ("1000", "2000"), "cifar10": ("500",)}
TITLES = {"fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
OURS: dict[str, dict[str, tuple[str, ...]]] = {
    "fashion": {method: ("algo.head_lr=0.1",) for method in ("fedavg_ft", "pmtl_ft", "centaur")},
    "cifar10": {method: ("algo.head_lr=0.1",) for method in ("fedavg_ft", "pmtl_ft", "centaur")},
}
"""Our settings, by data and method: what differs from the paper's."""
SETTINGS = ("paper", "ours")
CURVES = ("paper",)
"""The settings that the figure shows."""
EPSILONS = ("0.125", "0.25", "0.5", "1", "2", "4")


@dataclass(frozen=True)
class Choice:
    """What is run of what is missing; nothing with `assemble`. rounds: on CIFAR-10; full: there as in the paper."""

    methods: Sequence[str] = METHODS
    data: Sequence[str] = tuple(SIZES)
    settings: Sequence[str] = SETTINGS
    jobs: int = 1
    rounds: int = 20
    full: bool = False
    assemble: bool = False


EVERYTHING = Choice()


@dataclass(frozen=True)
class Case:
    """A cell of the table or a point of the figure; users alone have neither relation nor epsilon."""

    settings: str
    data: str
    n: str
    method: str
    relation: str = "-"
    eps: str = "-"

    def overrides(self, choice: Choice) -> list[str]:
        """As on the command line."""
        made = [f"preset=centaur-{self.data}", f"algo={self.method}", f"data.n={self.n}"]
        if self.method != "standalone":
            made += [f"eps={self.eps}", f"neighbouring={self.relation}"]
        if self.data == "cifar10" and not choice.full:
            made += ["model.precision=bfloat16", *([f"rounds={choice.rounds}"] if self.method != "standalone" else [])]
        return made + list(OURS[self.data].get(self.method, ()) if self.settings == "ours" else ())

    def chosen(self, choice: Choice) -> bool:
        """Whether it is to be run."""
        return self.method in choice.methods and self.data in choice.data and self.settings in choice.settings


def runs(cases: Mapping[Case, Sequence[str]], seeds: int, choice: Choice = EVERYTHING) -> dict[Case, list[Metrics]]:
    """What is known of all cases, after running those that are chosen."""
    wanted = [[*overrides, f"seed={seed}"] for case, overrides in cases.items() if case.chosen(choice) for seed in range(seeds)]
    done = kept()
    todo = [] if choice.assemble else [list(run) for run in dict.fromkeys(map(tuple, wanted)) if run not in done]
    started = time.perf_counter()
    for i, (overrides, found) in enumerate(results(todo, choice.jobs), 1):
        keep(overrides, found)
        left = (time.perf_counter() - started) / i * (len(todo) - i)
        print(f"  {i}/{len(todo)} runs, {left:.0f} s left; {' '.join(overrides)}: {found['accuracy']:.2%}", flush=True)
    done = kept()
    known = {case: [done.get((*overrides, f"seed={seed}")) for seed in range(seeds)] for case, overrides in cases.items()}
    return {case: [run for run in found if run is not None] for case, found in known.items()}


def rows_of(found: Mapping[Case, Sequence[Metrics]]) -> list[Row]:
    """Means over the seeds, in per cent; empty where nothing is known. Seconds are counted once, where cases share runs."""
    rows, counted = [], set()
    for case, some in found.items():
        row: Row = {
            "settings": case.settings, "data": case.data, "n": case.n, "method": case.method, "neighbouring": case.relation,
            "eps": case.eps, "accuracy": "", "sd": "", "validation": "", "seeds": len(some), "seconds": 0.0,
        }  # fmt: skip
        if some:
            fresh = [run for run in some if run.get("validation_accuracy") is not None]
            row |= {
                "accuracy": round(100 * (1 - mean(some, "risk")), 3), "sd": round(100 * spread(some, "risk"), 3),
                "validation": round(100 * mean(fresh, "validation_accuracy"), 3) if fresh else "",
                "seconds": round(sum(run.get("seconds", 0.0) for run in some if id(run) not in counted), 1),
            }  # fmt: skip
            counted |= {id(run) for run in some}
        rows.append(row)
    return rows


def cases(data: Iterable[str], settings: Iterable[str]) -> Iterator[Case]:
    """The cells of the table."""
    for name in settings:
        for source in data:
            for n in SIZES[source]:
                for method in METHODS:
                    for relation in RELATIONS if method != "standalone" else ("-",):
                        yield Case(name, source, n, method, relation, "-" if method == "standalone" else "1")


def table(seeds: int, choice: Choice = EVERYTHING) -> tuple[list[Row], plt.Figure, str]:
    """Accuracy of all methods on all data at epsilon 1."""
    found: dict[Case, list[Metrics]] = {}
    for data in SIZES:
        some = {case: case.overrides(choice) for case in cases([data], SETTINGS)}
        found |= runs(some, seeds if data == "fashion" or choice.full else 1, choice)
    rows = rows_of(found)
    how = "as in the paper" if choice.full else f"shortened to {choice.rounds} rounds, in bfloat16, with one seed"
    return rows, bars(rows), f"{words(rows)} Runs on CIFAR-10 are {how}.\n\n{grid(rows)}"


def at(rows: Sequence[Row], **wanted: str) -> Row:
    """The row with these entries."""
    return next(row for row in rows if all(row[key] in (value, "-") for key, value in wanted.items()))


def cell(row: Row) -> str:
    if not row["seeds"]:
        return "-"
    return f"{row['accuracy']:.1f}" + (f" ({row['sd']:.1f})" if row["seeds"] > 1 else "")


def grid(rows: Sequence[Row]) -> str:
    """The markdown table."""
    lines = [f"| settings | data | neighbours | {' | '.join(METHODS)} |", "|---" * (3 + len(METHODS)) + "|"]
    for settings in SETTINGS:
        for data, sizes in SIZES.items():
            for n in sizes:
                for relation in RELATIONS:
                    one = {"settings": settings, "data": data, "n": n, "neighbouring": relation}
                    cells = [cell(at(rows, method=method, **one)) for method in METHODS]
                    lines.append(f"| {settings} | {TITLES[data]}, n={n} | {relation} | {' | '.join(cells)} |")
    return "\n".join(lines)


def bars(rows: Sequence[Row]) -> plt.Figure:
    """A panel for each data set and size, a bar for each setting and relation."""
    panels = [(data, n) for data, sizes in SIZES.items() for n in sizes]
    picture, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 4.4))
    kinds = [(settings, relation) for settings in SETTINGS for relation in RELATIONS]
    for axis, (data, n) in zip(axes, panels, strict=True):
        for i, (settings, relation) in enumerate(kinds):
            some = [at(rows, settings=settings, data=data, n=n, method=method, neighbouring=relation) for method in METHODS]
            x = [j + 0.2 * (i - 1.5) for j, row in enumerate(some) if row["seeds"]]
            height, error = ([row[key] for row in some if row["seeds"]] for key in ("accuracy", "sd"))
            axis.bar(x, height, 0.2, yerr=error, capsize=2, label=f"{settings}, {relation}")
        axis.set_xticks(range(len(METHODS)), METHODS, fontsize=8)
        axis.set(title=f"{TITLES[data]}, n={n}", ylabel="accuracy, %", ylim=(0, 100))
        axis.grid(alpha=0.3, axis="y")
    axes[0].legend(fontsize=8, loc="lower left")
    return picture


def words(rows: Sequence[Row]) -> str:
    """What the table says."""
    made, seeds = sum(bool(row["seeds"]) for row in rows), max(row["seeds"] for row in rows)
    return f"""
Accuracy in per cent on each user's own test images, epsilon 1, delta 1e-5, S=5 classes a user: mean over up to {seeds} seeds
(standard deviation). "paper" are the presets `centaur-fashion` and `centaur-cifar10`; "ours" differ in what `OURS` in
`scripts/figures/networks.py` says. {made} of {len(rows)} cells are known. Users alone release nothing.
"""


def curve(seeds: int, choice: Choice = EVERYTHING) -> tuple[list[Row], plt.Figure, str]:
    """Accuracy against epsilon on Fashion-MNIST, n=2000."""
    points = [
        Case(name, "fashion", "2000", method, "replace-one", eps)
        for name in CURVES for method in ("centaur", "fedavg_ft") for eps in EPSILONS
    ]  # fmt: skip
    points += [Case(name, "fashion", "2000", "standalone") for name in CURVES]
    rows = rows_of(runs({case: case.overrides(choice) for case in points}, seeds, choice))
    known = [row for row in rows if row["seeds"]]
    lines = []
    for name, method in dict.fromkeys((row["settings"], row["method"]) for row in known):
        some = [row for row in known if (row["settings"], row["method"]) == (name, method)]
        x = [float(row["eps"]) for row in some if row["eps"] != "-"]
        lines.append(Line(f"{method}, {name}", [row["accuracy"] for row in some], x, [row["sd"] for row in some]))
    picture, axes = plt.subplots(figsize=(7, 4.6))
    if lines:
        draw(axes, lines, "epsilon", "accuracy, %", "Fashion-MNIST, n=2000, S=5, replace-one", log="x")
    return rows, picture, curve_words(rows)


def curve_words(rows: Sequence[Row]) -> str:
    """What the figure says."""
    said = []
    for name, method in dict.fromkeys((row["settings"], row["method"]) for row in rows):
        cells = [cell(row) for row in rows if (row["settings"], row["method"]) == (name, method)]
        said.append(f"{method} ({name}) {', '.join(cells)}")
    return f"""
Fashion-MNIST, n=2000, S=5, delta 1e-5, replace-one, {max(row["seeds"] for row in rows)} seeds. Accuracy in per cent (standard
deviation) at epsilon {", ".join(EPSILONS)}: {"; ".join(said)}. Users alone release nothing, so theirs is one level.
"""


FIGURES = {
    "centaur-table": Figure("Networks on images: five ways to personalise", table, seeds=3, runs=FILE),
    "centaur-figure": Figure("Networks on images: accuracy against epsilon", curve, seeds=3, runs=FILE),
}
