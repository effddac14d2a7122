"""Progress on the console; quick to import, so that the runs of a sweep start at once."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table

from privfed.privacy.statement import SIMULATION, claimed
from privfed.report.past_runs import Setting, shown
from privfed.report.wording import Row, error_in_words, error_of


class PatientConsole(Console):
    """Console whose reader may leave (`| head`): a run that has spent budget goes on silently."""

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def bar(console: Console, before: ProgressColumn, *after: ProgressColumn, width: int) -> Bar:
    """Return a progress bar with the time left; it is shown only on a terminal that is not quiet.

    Args:
        console: Where it is shown.
        before: Column before the bar.
        after: Columns after the bar.
        width: Width of the bar, in characters.
    """
    columns = (
        before,
        BarColumn(bar_width=width),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        *after,
    )
    return Bar(*columns, console=console, disable=console.quiet or not console.is_terminal)


class LiveDisplay:
    """Context manager that shows a bar while it is active."""

    bar: Bar

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()


class SweepProgress(LiveDisplay):
    """Shows the runs of a sweep: a bar with the time left on a terminal, else one line per run.

    Args:
        total: Number of runs.
        done: Number of runs that were done before.
        folder: Folder of the sweep.
        quiet: Show nothing.
    """

    def __init__(self, total: int, done: int, folder: Path, quiet: bool = False) -> None:
        self.console = PatientConsole(quiet=quiet, highlight=False)
        self.total, self.before, self.over, self.started = total, done, done, time.perf_counter()
        self.bar = bar(
            self.console, TextColumn("runs"), TextColumn("{task.fields[words]}"), width=20
        )
        self.task = self.bar.add_task("", total=total, completed=done, words="")
        kept = f", {done} of them done already" if done else ""
        self.console.print(f"sweep of {total} run(s){kept}, into {folder}", soft_wrap=True)

    def say(self, words: str) -> None:
        """Print a line."""
        self.console.print(f"  {words}", soft_wrap=True, markup=False)

    def done(self, name: str, result: Row | None, problem: str = "") -> None:
        """Show that one more run is over.

        Args:
            name: Name of the run.
            result: Its result; None if it failed.
            problem: Why it failed.
        """
        self.over += 1
        words = f"{name}: {problem}" if result is None else f"{name}: {describe_result(result)}"
        self.bar.update(self.task, advance=1, words="" if result is None else words)
        if result is None:
            print(f"privfed: {words}", file=sys.stderr, flush=True)
        elif self.bar.disable:
            left = (
                (time.perf_counter() - self.started)
                * (self.total - self.over)
                / (self.over - self.before)
            )
            self.say(f"{words}  ({self.over} of {self.total}, about {left:.0f} s left)")


def describe_result(result: Row) -> str:
    """Return a finished run in a few words."""
    spent, error = float(result["privacy"]["epsilon"]), error_of(result["metrics"])
    simulated = claimed(result["privacy"]) == SIMULATION
    cost = f"epsilon spent {spent:.4g}{' (simulation)' if simulated else ''}"
    cost = cost if math.isfinite(spent) else "no privacy"
    return f"{cost}  error {result['metrics'][error]:.3e}" if error else cost


def show_sweep(settings: Sequence[Setting]) -> None:
    """Print one line per setting: its error over the seeds, if it has one, and its cost."""
    judged = [setting.runs[0].result for setting in settings if not math.isnan(setting.error)]
    errors = " or ".join(sorted({error_in_words(result) for result in judged}))
    title = f"{errors} (simulation, not private)" if errors else "runs"
    table = Table(title=title, title_justify="left")
    keys = list(settings[0].line | settings[0].budget) or ["algo"]
    for column in keys:
        table.add_column(column)
    for column in ("seeds", *(("mean error", "std") if judged else ()), "epsilon spent"):
        table.add_column(column, justify="right")
    table.add_column("guarantee")
    for setting in settings:
        own = [shown(value) for value in (setting.line | setting.budget).values()] or [
            setting.runs[0].result["algo"]
        ]
        mean = "-" if math.isnan(setting.error) else f"{setting.error:.4g}"
        std = "-" if setting.spread is None else f"{setting.spread:.2g}"
        table.add_row(
            *own,
            str(len(setting.runs)),
            *((mean, std) if judged else ()),
            f"{setting.epsilon:.4g}",
            setting.claim,
        )
    PatientConsole(highlight=False).print(table)
