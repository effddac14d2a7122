"""Console output while a run goes on, and at its end."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, Protocol

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.progress import TextColumn
from rich.table import Table

from privfed.data.source import DataSource
from privfed.federation.client_factory import ClientFactory
from privfed.foundation.atomic_files import write_atomically
from privfed.privacy.accounting import Planned, paid_by_one_user
from privfed.privacy.ledger import Budget
from privfed.privacy.statement import account_in_words, guarantee_in_words
from privfed.report.sweep_console import LiveDisplay, PatientConsole, bar
from privfed.report.wording import (
    FIGURES,
    Row,
    comparison,
    describe_step,
    error_in_words,
    error_of,
    name_step,
    speed_in_words,
    verdict,
)

PATIENCE = 10.0
"""Seconds after which the remaining time is shown."""


class RunView(Protocol):
    """Part of an experiment that the console shows."""

    cfg: DictConfig
    data: DataSource
    nodes: dict[str, range]
    budget: Budget
    strategy: Any
    notes: list[str]


class RunProgress(LiveDisplay):
    """Shows a bar on a terminal, and plain lines elsewhere.

    Args:
        experiment: The experiment.
        quiet: Show nothing.
    """

    def __init__(self, experiment: RunView, quiet: bool = False) -> None:
        self.console = PatientConsole(quiet=quiet, highlight=False)
        self.rounds, self.main = experiment.strategy.planned_rounds, experiment.strategy.rounds_task
        self.steps = len(experiment.strategy.plan)
        self.tasks = [step.task for step in experiment.strategy.plan]
        self.started = self.before = time.perf_counter()
        self.spent: dict[str, list[float]] = {}
        self.bar = bar(
            self.console,
            TextColumn("{task.description}"),
            TextColumn("{task.fields[words]}"),
            width=10,
        )
        self.task = self.bar.add_task("preparing", total=max(1, self.steps), words="")
        data = experiment.data
        self.console.print(
            f"{experiment.cfg.algo.name}: {data.n:,} users on {len(experiment.nodes)} node(s), "
            f"{data.examples}, "
            f"epsilon {experiment.budget.epsilon:g}, delta {experiment.budget.delta:g}, "
            f"{experiment.budget.neighbouring}",
            soft_wrap=True,
        )

    def step(self, row: Row) -> None:
        """Show that one more step is done."""
        name = name_step(row, self.main, self.rounds)
        self.bar.update(
            self.task, advance=1, description=name, words=describe_step(row, short=True)
        )
        if self.bar.disable:
            self.console.print(
                f"  {name:<14} {describe_step(row)}{self._left(row)}", soft_wrap=True
            )

    def _left(self, row: Row) -> str:
        """Return the remaining time in words; empty if it is short or unknown.

        The first step of a task may include preparations, and tasks differ. So the time of a step
        is the median of the task's later steps. The result is empty as long as a remaining task has
        none.
        """
        now = time.perf_counter()
        self.spent.setdefault(row["task"], []).append(now - self.before)
        self.before = now
        usual = {task: sorted(times[1:]) for task, times in self.spent.items() if times[1:]}
        others = self.tasks[int(row["step"]) :]
        if now - self.started <= PATIENCE or any(task not in usual for task in others):
            return ""
        left = sum(usual[task][len(usual[task]) // 2] for task in others)
        return f"  about {left:.0f} s left" if left >= 1 else ""


def show_summary(result: Row, folder: Path) -> None:
    """Print the results of a run.

    Args:
        result: Content of result.json.
        folder: Folder of the run.
    """
    console = PatientConsole(highlight=False)
    metrics = result["metrics"]
    if error_of(metrics):
        table = Table(
            title=f"{error_in_words(result)} (simulation, not private)", title_justify="left"
        )
        head, rows = comparison(result)
        for name in head:
            table.add_column(name, justify="left" if name == "predictor" else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
        if words := verdict(result):
            console.print(words)
    for key, words in FIGURES.items():
        if key in metrics:
            console.print(f"{words}: {metrics[key]:.3g}")
    for note in result.get("notes", []):
        console.print(f"Note: {escape(note)}")
    console.print(guarantee_in_words(result))
    if words := account_in_words(result):
        console.print(words)
    if "time" in result:  # in simulations
        spent = result["time"]
        speed = (
            f", {speed_in_words(spent['user_rounds_per_s'])} user-rounds a second"
            if "user_rounds_per_s" in spent
            else ""
        )
        console.print(
            f"{spent['total_s']:.1f} s in all{speed}, {result['peak_rss_mb']:.0f} MB at most."
        )
    also = ", schema.yaml" if (folder / "schema.yaml").exists() else ""
    console.print(
        f"written to {folder}: result.json, report.html, model.npz, ledger.jsonl, rounds.csv, "
        f"config.yaml{also}"
    )


def show_table(cfg: DictConfig) -> None:
    """Print how a table is understood, and write its schema to the folder `out`, if given."""
    from privfed.data.tables.schema_report import describe_table
    from privfed.data.tables.table_source import Table as TableSource

    data = ClientFactory.of(cfg).source
    assert isinstance(data, TableSource)
    print(describe_table(data.schema, data.frame), flush=True)
    if cfg.out is not None:
        path = Path(str(cfg.out)) / "schema.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data.schema.to_yaml().encode())
        print(f"schema written to {path}")


def show_plan(experiment: RunView) -> None:
    """Print the planned releases of a run, and their costs."""
    table = Table(title="planned releases", title_justify="left")
    for column in ("release", "times", "cost each", "share of the budget"):
        table.add_column(column, justify="left" if column == "release" else "right")
    costs: dict[str, list[Planned]] = {}
    for step in experiment.strategy.plan:
        for name, cost in experiment.strategy.costs(step):
            costs.setdefault(name, []).append(cost)
    pure = all(cost.epsilon for mine in costs.values() for cost in mine)
    shares = {name: paid_by_one_user(mine) for name, mine in costs.items()}
    for name, mine in costs.items():
        share = (
            f"{shares[name] / sum(shares.values()):.1%}"
            if math.isfinite(sum(shares.values()))
            else "-"
        )
        each = [cost.epsilon if pure else cost.mu for cost in mine]
        amount = (
            f"{min(each):.3g}" if min(each) == max(each) else f"{min(each):.3g} to {max(each):.3g}"
        )
        grouped = sum(cost.group is not None for cost in mine)
        alone = str(len(mine) - grouped) if len(mine) > grouped else ""
        times = " + ".join(
            filter(None, [alone, f"{grouped} in disjoint groups" if grouped else ""])
        )
        table.add_row(name, times, f"{'epsilon' if pure else 'mu'} {amount}", share)
    console = Console(highlight=False)
    console.print(table)
    budget = experiment.budget
    console.print(
        f"budget: epsilon {budget.epsilon:g}, delta {budget.delta:g}, {budget.neighbouring}; "
        "nothing was released"
    )
    for line in experiment.strategy.forecast():
        console.print(line)
    for note in experiment.notes:
        console.print(f"Note: {note}")
