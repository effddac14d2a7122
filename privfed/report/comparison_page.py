"""Page that compares several runs: errors, convergence, budgets, guarantees and settings."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from privfed.foundation.errors import PrivfedError
from privfed.privacy.accounting import paid_by_one_user
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.statement import guarantee_in_words
from privfed.report.comparison_charts import (
    COLOURS,
    LEVELS,
    convergence_picture,
    error_picture,
    gains_picture,
)
from privfed.report.past_runs import Run, Setting, differing, settings_of, shown
from privfed.report.run_totals import several_in_words
from privfed.report.templating import Figure, Page, Picture, TextTable, render
from privfed.report.wording import error_in_words


@dataclass(frozen=True)
class RunLine:
    """One line of the table of all runs.

    Attributes:
        folder: Folder of the run.
        report: Address of the run's page; may be empty.
        setting: Name of the setting.
        seed: Seed.
        error: Error.
        epsilon: Epsilon spent.
        time: Time taken.
    """

    folder: str
    report: str
    setting: str
    seed: str
    error: str
    epsilon: str
    time: str


@dataclass(frozen=True, kw_only=True)
class ComparisonPage(Page):
    """Content of comparison.html.

    Attributes:
        pictures: Charts, in the order in which they are shown.
        settings: Error and cost of each setting.
        budgets: Share of the budget of each release, by setting.
        colours: Colour of each release in `budgets`.
        guarantees: Names of the settings with the same guarantee, by the guarantee in words.
        warning: What holds for users who take part in several of the runs; empty for simulations.
        differences: Values of the keys in which the configurations differ.
        runs: All runs.
    """

    pictures: Sequence[Picture]
    settings: TextTable
    budgets: Mapping[str, Mapping[str, float]]
    colours: Mapping[str, str]
    guarantees: Mapping[str, Sequence[str]]
    warning: str
    differences: TextTable | None
    runs: Sequence[RunLine]


def comparison_page(runs: Sequence[Run], folder: Path, title: str = "") -> str:
    """Return the HTML of the page that compares runs.

    Args:
        runs: At least one finished run.
        folder: Folder of the page; links to the runs' own pages are relative to it.
        title: First words of the heading.
    """
    settings = settings_of(runs)
    budgets = {s.name: shares for s in settings if (shares := budget_shares(s.runs[0]))}
    releases = dict.fromkeys(name for shares in budgets.values() for name in shares)
    users = sorted({run.result["n_users"] for run in runs})
    return render(
        "comparison.html.md",
        ComparisonPage(
            title=f"{title or 'comparison'}: {len(runs):,} run{'' if len(runs) == 1 else 's'}",
            subtitle=(
                f"{' or '.join(f'{n:,}' for n in users[:4])}"
                f"{' or more' if len(users) > 4 else ''} users"
            ),
            figures=_figures(settings),
            versions=runs[0].result["versions"],
            pictures=_pictures(settings),
            settings=_settings(settings),
            budgets=budgets,
            colours={name: COLOURS[i % len(COLOURS)] for i, name in enumerate(releases)},
            guarantees=_guarantees(settings),
            warning=several_in_words(runs),
            differences=_differences(settings),
            runs=[_line(run, setting, folder) for setting in settings for run in setting.runs],
        ),
    )


def mean_and_spread(setting: Setting) -> str:
    """Return the mean error and its standard deviation over seeds, as `0.00129 ± 2e-05`."""
    if math.isnan(setting.error):
        return "-"
    return f"{setting.error:.4g}" + ("" if setting.spread is None else f" ± {setting.spread:.2g}")


def budget_shares(run: Run) -> dict[str, float]:
    """Return the share of each kind of release in the cost of one user.

    Args:
        run: A finished run.

    Returns:
        The shares by name of the release; empty if nothing was spent, if the cost is infinite, or
            if no ledger can be read.
    """
    ledger = Ledger(Budget(run.config["eps"], run.config["delta"], run.config["neighbouring"]))
    try:
        ledger.verify(run.folder / "ledger.jsonl")
    except PrivfedError:
        return {}
    costs = {
        name: paid_by_one_user([r for r in ledger.releases if r.name == name])
        for name in dict.fromkeys(r.name for r in ledger.releases)
    }
    total = sum(costs.values())
    return {name: cost / total for name, cost in costs.items()} if 0 < total < math.inf else {}


def _figures(settings: Sequence[Setting]) -> list[Figure]:
    seeds = sorted({len(setting.runs) for setting in settings})
    each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    figures = [Figure("settings", f"{len(settings)}", f"{each} seed(s) each")]
    judged = [setting for setting in settings if not math.isnan(setting.error)]
    if len({error_in_words(setting.runs[0].result) for setting in judged}) == 1:
        private = [setting for setting in judged if 0 < setting.epsilon < math.inf]
        best = min(private or judged, key=lambda setting: setting.error)
        figures.append(Figure("lowest error", f"{best.error:.3g}", best.name))
    spent = sorted(setting.epsilon for setting in settings)
    low, high = f"{spent[0]:.3g}", f"{spent[-1]:.3g}"
    cost = f"ε {low}" if low == high else f"ε {low} to {high}"
    claims = " or ".join(dict.fromkeys(setting.claim for setting in settings))
    return [*figures, Figure("privacy spent by a run", cost, f"{claims}; see below")]


def _pictures(settings: Sequence[Setting]) -> list[Picture]:
    """Return charts; settings whose errors are of the same kind share a chart."""
    kinds: dict[str, list[Setting]] = {}
    for setting in settings:
        if not math.isnan(setting.error):
            kinds.setdefault(error_in_words(setting.runs[0].result), []).append(setting)
    return [
        picture
        for judged in kinds.values()
        for draw in (error_picture, convergence_picture, gains_picture)
        if (picture := draw(judged)) is not None
    ]


def _settings(settings: Sequence[Setting]) -> TextTable:
    ends = [
        end for end in LEVELS if any(run.rival(end) is not None for s in settings for run in s.runs)
    ]
    judged = any(not math.isnan(s.error) for s in settings)
    rows = []
    for s in settings:
        rivals = [
            [value for run in s.runs if (value := run.rival(end)) is not None] for end in ends
        ]
        means = [f"{fmean(values):.4g}" if values else "" for values in rivals]
        error = [mean_and_spread(s)] if judged else []
        rows.append([s.name, str(len(s.runs)), *error, f"{s.epsilon:.4g}", s.claim, *means])
    head = ["setting", "seeds", *(["error"] if judged else []), "epsilon spent", "guarantee"]
    head += [LEVELS[end] for end in ends]
    return TextTable(head, rows)


def _guarantees(settings: Sequence[Setting]) -> dict[str, list[str]]:
    """Return the settings by the guarantee of their run that spent most."""
    said: dict[str, list[str]] = {}
    for setting in settings:
        most = max(setting.runs, key=lambda run: run.epsilon)
        said.setdefault(guarantee_in_words(most.result), []).append(setting.name)
    return said


def _differences(settings: Sequence[Setting]) -> TextTable | None:
    rows = [
        [key, *(shown(setting.runs[0].config.get(key, "-")) for setting in settings)]
        for key in differing(settings)
    ]
    head = ["key", *(setting.name for setting in settings)]
    return TextTable(head, rows, text_columns=len(head)) if rows else None


def _line(run: Run, setting: Setting, folder: Path) -> RunLine:
    path = Path(os.path.relpath(run.folder, folder))
    has_page = (run.folder / "report.html").exists()
    return RunLine(
        folder=str(path),
        report=quote(str(path / "report.html")) if has_page else "",
        setting=setting.name,
        seed=str(run.result["seed"]),
        error="-" if math.isnan(run.error) else f"{run.error:.4g}",
        epsilon=f"{run.epsilon:.4g}",
        time=f"{run.result['time']['total_s']:.1f} s" if "time" in run.result else "-",
    )
