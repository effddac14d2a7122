"""What all figures share: runs on all cores with progress, a table, a picture and a paragraph."""

from __future__ import annotations

import csv
import math
import os
import statistics
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib
from omegaconf import DictConfig, OmegaConf

from privfed.config.composition import compose
from privfed.config.instantiation import build
from privfed.data.problems.synthetic import Synthetic
from privfed.experiment.wiring import Experiment

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
FOLDER = DOCS / "figures"
KEPT = 2 * 10**7
"""Numbers per problem up to which its users are kept in memory between runs."""
MANY = 50
"""Runs from which on loops are compiled, which takes as long as about twenty short runs."""
Row = dict[str, Any]
Metrics = dict[str, float]


@dataclass(frozen=True)
class Figure:
    """One reproduction.

    Attributes:
        title: title of the figure.
        make: seeds -> table, picture and paragraph.
        seeds: default number of runs per point.
        runs: file in which its runs are saved; empty if they are not.
    """

    title: str
    make: Callable[..., tuple[list[Row], plt.Figure, str]]
    seeds: int = 5
    runs: str = ""


@dataclass(frozen=True)
class Line:
    """One curve with its spread over seeds, or a horizontal line (one y, no x)."""

    name: str
    y: Sequence[float]
    x: Sequence[float] = ()
    spread: Sequence[float] = ()
    style: str = "o-"


def nobody(users: int = 0) -> Any:
    """Return None in place of validation users, for runs whose validation is not used."""
    return None


@cache
def settings(overrides: tuple[str, ...]) -> DictConfig:
    """Return the configuration of runs that differ in eps and seed only.

    It is cached, because composing takes a fifth of the time of a short run.
    """
    return compose([*overrides, "runtime.threads=1", "runtime.nodes=1"])


@lru_cache(maxsize=6)
def users_of(data: str, seed: int) -> Synthetic:
    """Return a synthetic problem whose users are kept for the next run with the same seed."""
    source: Synthetic = build(DictConfig(OmegaConf.create(data)), "data")(seed=seed)
    source.validation = nobody  # type: ignore[method-assign]
    if source.n * source.m * source.d <= KEPT:
        source.cohort = cache(source.cohort)  # type: ignore[method-assign]
    return source


def one(overrides: Sequence[str]) -> Metrics:
    """Return the metrics of one run, with the error of the initialiser's start if it has one.

    `agreed` is 0 if copies of a power method disagreed.
    """
    apart = {
        key: float(value)
        for key, _, value in (o.partition("=") for o in overrides)
        if key in ("eps", "seed")
    }
    cfg = settings(tuple(o for o in overrides if o.partition("=")[0] not in apart)).copy()
    cfg.eps, cfg.seed = apart.get("eps", cfg.eps), int(apart.get("seed", cfg.seed))
    synthetic = str(cfg.data._target_).endswith("synthetic.Synthetic")
    source = users_of(OmegaConf.to_yaml(cfg.data, resolve=True), cfg.seed) if synthetic else None
    experiment = Experiment(cfg, source=source)
    outcome = experiment.run()
    task = experiment.strategy.rounds_task
    start: Metrics = {"agreed": float("No half" not in str(experiment.federation.init.notes))}
    for name in ("dist", "frobenius"):
        before = [row for row in outcome.rows if row["task"] != task and name in row]
        start |= {"start": float(before[-1][name])} if before else {}
    return outcome.result["metrics"] | start | {"rounds_s": outcome.result["time"]["rounds_s"]}


def runs(
    cases: Mapping[Any, Sequence[str]], seeds: int | Iterable[int]
) -> dict[Any, list[Metrics]]:
    """Run all cases for all seeds, one run per core at a time; print progress and time left.

    Args:
        cases: overrides by key.
        seeds: number of seeds, or the seeds.

    Returns:
        Metrics per key, in the order of the seeds.
    """
    numbers = list(range(seeds) if isinstance(seeds, int) else seeds)
    jobs = [
        (key, [*overrides, f"seed={seed}"]) for key, overrides in cases.items() for seed in numbers
    ]
    results: dict[Any, list[Metrics]] = {key: [] for key in cases}
    started = time.perf_counter()
    if len(jobs) >= MANY:  # what pays for none of the runs pays for all of them
        os.environ.setdefault("PRIVFED_COMPILE", "always")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        for i, ((key, _), metrics) in enumerate(
            zip(jobs, pool.map(one, [job for _, job in jobs]), strict=True), 1
        ):
            results[key].append(metrics)
            if i % len(numbers) == 0:
                left = (time.perf_counter() - started) / i * (len(jobs) - i)
                print(
                    f"  {i}/{len(jobs)} runs, {left:.0f} s left; {key}: {summary(results[key])}",
                    flush=True,
                )
    return results


def summary(results: Sequence[Metrics]) -> str:
    error = next(name for name in ("mse", "risk", "frobenius") if name in results[0])
    return f"{error} {mean(results, error):.3e} +- {spread(results, error):.1e}"


def mean(results: Sequence[Metrics], name: str) -> float:
    return statistics.fmean(result[name] for result in results)


def spread(results: Sequence[Metrics], name: str) -> float:
    """Return the standard deviation over the seeds."""
    return statistics.stdev(result[name] for result in results) if len(results) > 1 else 0.0


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of the straight line that fits log y over log x best."""
    return statistics.linear_regression([math.log(a) for a in x], [math.log(b) for b in y]).slope


def draw(
    axes: plt.Axes,
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    title: str = "",
    log: str = "xy",
) -> None:
    """Draw curves with error bars of one standard deviation, and dashed horizontal lines.

    A standard deviation of 0, that of a single seed, gets no bar.
    """
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    for i, line in enumerate(lines):
        colour = colours[i % len(colours)]
        if not line.x:
            axes.axhline(line.y[0], linestyle="--", linewidth=1.2, color=colour, label=line.name)
            continue
        # On a logarithmic axis an error bar must not reach zero.
        up = [s or math.nan for s in line.spread]
        bars = [[min(s, 0.9 * y) for s, y in zip(up, line.y, strict=True)], up] if up else None
        axes.errorbar(
            line.x,
            line.y,
            bars,
            fmt=line.style,
            capsize=3,
            markersize=4,
            linewidth=1.5,
            color=colour,
            label=line.name,
        )
    if "x" in log:
        axes.set_xscale("log")
        values = sorted({x for line in lines for x in line.x})
        axes.set_xticks(values, [f"{x:g}" if x < 1e4 else f"{x / 1000:g}k" for x in values])
        axes.minorticks_off()
    if "y" in log:
        axes.set_yscale("log")
    axes.set(xlabel=x_label, ylabel=y_label, title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def write(
    name: str, figure: Figure, rows: list[Row], picture: plt.Figure, paragraph: str, seconds: float
) -> None:
    """Write docs/figures/NAME.csv, .png and .md."""
    parts = [part.strip() for part in paragraph.strip().split("\n\n")]
    paragraph = "\n\n".join(
        part
        if part[0] == "|"
        else textwrap.fill(" ".join(part.split()), 120, break_on_hyphens=False)
        for part in parts
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(
            file, list(dict.fromkeys(k for r in rows for k in r)), lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
    picture.tight_layout()
    picture.savefig(FOLDER / f"{name}.png", dpi=110)
    plt.close(picture)
    took = f"took {seconds:.0f} s of processor time"
    if figure.runs:
        hours = sum(row.get("seconds", 0.0) for row in rows) / 3600
        took = (
            f"goes on from [the runs there are](figures/{figure.runs}), which took {hours:.1f} "
            "hours, run by run"
        )
    command = f"`python scripts/reproduce.py {name}` {took}; [the numbers](figures/{name}.csv)."
    text = (
        f"## {figure.title}\n\n![{figure.title}](figures/{name}.png)\n\n{paragraph}\n\n{command}\n"
    )
    (FOLDER / f"{name}.md").write_text(text)
    print(f"\n{paragraph}\n\nwritten: docs/figures/{name}.csv, .png, .md; docs/results.md")


def assemble(names: Sequence[str]) -> None:
    """Write docs/results.md from the figures that have been made."""
    parts = [
        (FOLDER / f"{name}.md").read_text() for name in names if (FOLDER / f"{name}.md").exists()
    ]
    head = (
        "# Results\n\nEverything below is made by one command each, with the total budget charged "
        "(initialiser and private clip norms included), replace-one neighbours and delta 1e-6 "
        "unless said otherwise. Error bars are one standard deviation over the seeds. This page is "
        "put together by `scripts/reproduce.py`.\n"
    )
    (DOCS / "results.md").write_text("\n".join([head, *parts]))
