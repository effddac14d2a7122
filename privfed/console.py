"""What a person sees while a run goes on and when it is done."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from privfed.experiment import Experiment
from privfed.words import METRICS, Row, describe_step, guarantee_in_words, name_step


class PatientConsole(Console):
    """A console whose reader may leave (`| head`): a run that has spent budget goes on in silence."""

    def on_broken_pipe(self) -> None:
        """Say nothing more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Progress:
    """A bar on a terminal, plain lines elsewhere."""

    def __init__(self, experiment: Experiment, quiet: bool = False) -> None:
        self.console = PatientConsole(quiet=quiet, highlight=False)
        self.rounds = experiment.strategy.rounds
        self.steps = len(experiment.strategy.plan)
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}"),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )
        self.task = self.bar.add_task("preparing", total=max(1, self.steps), words="")
        data = experiment.data
        self.console.print(
            f"{experiment.cfg.algo.name}: {data.n:,} users on {len(experiment.ranges)} node(s), {data.m} examples of "
            f"{data.d} features each, epsilon {experiment.budget.epsilon:g}, delta {experiment.budget.delta:g}, "
            f"{experiment.budget.neighbouring}",
            soft_wrap=True,
        )

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def step(self, row: Row) -> None:
        """One more step is done."""
        name = name_step(row, self.rounds)
        self.bar.update(self.task, advance=1, description=name, words=describe_step(row, short=True))
        if self.bar.disable:
            self.console.print(f"  {name:<14} {describe_step(row)}", soft_wrap=True)


def show_summary(result: Row, folder: Path) -> None:
    """The end of a run, in plain words."""
    console = PatientConsole(highlight=False)
    metrics = result["metrics"]
    if metrics:
        table = Table(title="population mean squared error (simulation, not private)", title_justify="left")
        table.add_column("predictor")
        table.add_column("error", justify="right")
        for key, name in METRICS.items():
            table.add_row(name, f"{metrics[key]:.4g}")
        console.print(table)
    if "dist" in metrics:
        console.print(f"distance of the learnt from the true representation: {metrics['dist']:.3g}")
    console.print(guarantee_in_words(result))
    spent = result["time"]
    speed = f", {spent['user_rounds_per_s'] / 1e6:.2f} million user-rounds a second" if "user_rounds_per_s" in spent else ""
    console.print(f"{spent['total_s']:.1f} s in all{speed}, {result['peak_rss_mb']:.0f} MB at most.")
    console.print(f"written to {folder}: result.json, report.html, model.npz, ledger.jsonl, rounds.csv, config.yaml")


def show_plan(experiment: Experiment) -> None:
    """The releases a run would make, and what each costs."""
    table = Table(title="planned releases", title_justify="left")
    for column in ("release", "times", "cost mu each", "share of the budget"):
        table.add_column(column, justify="left" if column == "release" else "right")
    costs: dict[str, list[float]] = {}
    for step in experiment.strategy.plan:
        for name, mu in ((step.task, step.mu), (f"{step.task} clip norm", step.measure)):
            if mu:
                costs.setdefault(name, []).append(mu)
    total = sum(mu * mu for mus in costs.values() for mu in mus)
    for name, mus in costs.items():
        share = f"{sum(mu * mu for mu in mus) / total:.1%}" if math.isfinite(total) else "-"
        each = f"{min(mus):.3g}" if min(mus) == max(mus) else f"{min(mus):.3g} to {max(mus):.3g}"
        table.add_row(name, str(len(mus)), each, share)
    console = Console(highlight=False)
    console.print(table)
    budget = experiment.budget
    console.print(f"budget: epsilon {budget.epsilon:g}, delta {budget.delta:g}, {budget.neighbouring}; nothing was released")
