"""A page that holds several runs next to each other: error against epsilon, convergence, budget, guarantees, settings."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from privfed.foundation.errors import PrivfedError
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.noise import SeededNoise
from privfed.report.comparison_charts import (
    COLOURS,
    LEVELS,
    convergence_card,
    error_card,
    gains_card,
)
from privfed.report.console import paid
from privfed.report.past_runs import Run, Setting, differing, settings_of, shown
from privfed.report.run_page import card, details, figure_cards, whole_page
from privfed.report.wording import error_in_words, guarantee_in_words

SEVERAL = (
    "The noise of these runs is not seeded, as for real users: for those who take part in several runs budgets add up, and "
    "choosing settings or results by comparing runs is not covered by the guarantee of any one of them."
)


def comparison_page(runs: Sequence[Run], folder: Path, title: str = "") -> str:
    """The page of these runs, to be kept in this folder."""
    settings = settings_of(runs)
    kinds: dict[str, list[Setting]] = {}
    for setting in settings:
        if not math.isnan(setting.error):
            kinds.setdefault(error_in_words(setting.runs[0].result), []).append(setting)
    cards = [
        made
        for judged in kinds.values()
        for made in (error_card(judged), convergence_card(judged), gains_card(judged))
    ]
    cards += [_settings_card(settings), _budget_card(settings), _guarantees_card(settings)]
    keys = differing(settings)
    if keys:
        cards.append(details("What differs in the configurations", _differences(settings, keys)))
    cards.append(details("All runs", _runs(settings, folder)))
    users = sorted({run.result["n_users"] for run in runs})
    where = (
        f"{' or '.join(f'{n:,}' for n in users[:4])}{' or more' if len(users) > 4 else ''} users"
    )
    heading = f"{title or 'comparison'}: {_counted(len(runs), 'run')}"
    return whole_page(
        heading, where, _figures(settings), [c for c in cards if c], runs[0].result["versions"]
    )


def add_up(runs: Sequence[Run]) -> bool:
    """Whether these are several runs with noise that cannot be repeated, as real users get it."""
    real = [
        run
        for run in runs
        if run.result["privacy"]["releases"] and run.result["privacy"]["noise"] != SeededNoise.name
    ]
    return len(real) > 1


def mean_and_spread(setting: Setting) -> str:
    """`0.00129 ± 2e-05`, over the seeds."""
    if math.isnan(setting.error):
        return "-"
    return f"{setting.error:.4g}" + ("" if setting.spread is None else f" ± {setting.spread:.2g}")


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _figures(settings: Sequence[Setting]) -> str:
    seeds = sorted({len(setting.runs) for setting in settings})
    each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    figures = [("settings", f"{len(settings)}", f"{each} seed(s) each")]
    judged = [setting for setting in settings if not math.isnan(setting.error)]
    if len({error_in_words(setting.runs[0].result) for setting in judged}) == 1:
        private = [setting for setting in judged if 0 < setting.epsilon < math.inf]
        best = min(private or judged, key=lambda setting: setting.error)
        figures.append(("lowest error", f"{best.error:.3g}", best.name))
    spent = sorted(setting.epsilon for setting in settings)
    low, high = f"{spent[0]:.3g}", f"{spent[-1]:.3g}"
    figures.append(
        (
            "privacy spent by a run",
            f"ε {low}" if low == high else f"ε {low} to {high}",
            "see the guarantees below",
        )
    )
    return figure_cards(figures)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table of cells that are HTML already; it scrolls inside its card."""
    kinds = [' class="n"' if i in numbers else "" for i in range(len(head))]
    top = "".join(f"<th{kind}>{escape(text)}</th>" for text, kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{k}>{cell}</td>" for cell, k in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" role="region" aria-label="table" tabindex="0">{table}</div>'


def _settings_card(settings: Sequence[Setting]) -> str:
    ends = [
        end for end in LEVELS if any(run.rival(end) is not None for s in settings for run in s.runs)
    ]
    rows = []
    for s in settings:
        rivals = [
            [value for run in s.runs if (value := run.rival(end)) is not None] for end in ends
        ]
        means = [f"{fmean(values):.4g}" if values else "" for values in rivals]
        rows.append(
            [escape(s.name), str(len(s.runs)), mean_and_spread(s), f"{s.epsilon:.4g}", *means]
        )
    head = ["setting", "seeds", "error", "epsilon spent", *(LEVELS[end] for end in ends)]
    return card("All settings", _table(head, rows, range(1, len(head))), wide=True)


def _budget_card(settings: Sequence[Setting]) -> str:
    shares = {s.name: share for s in settings if (share := budget_shares(s.runs[0]))}
    if not shares:
        return ""
    names = list(dict.fromkeys(name for share in shares.values() for name in share))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    rows = []
    for setting, share in shares.items():
        bar = "".join(
            f'<i class="{colour[name]}" style="width:{100 * part:.1f}%"></i>'
            for name, part in share.items()
        )
        parts = [f"{share[name]:.1%}" if name in share else "" for name in names]
        rows.append([escape(setting), f'<div class="stack" aria-hidden="true">{bar}</div>', *parts])
    legend = "".join(f'<li><i class="key {colour[name]}"></i>{escape(name)}</li>' for name in names)
    table = _table(["setting", "", *names], rows, range(2, 2 + len(names)))
    note = '<p class="soft">Shares of what one user pays, in the quantity that adds up: mu², or epsilon of selections.</p>'
    return card("Budget by release", f'{table}<ul class="legend">{legend}</ul>{note}', wide=True)


def budget_shares(run: Run) -> dict[str, float]:
    """What part of a user's cost each kind of release is; empty where there is no cost, or no ledger that can be read."""
    ledger = Ledger(Budget(run.config["eps"], run.config["delta"], run.config["neighbouring"]))
    try:
        ledger.verify(run.folder / "ledger.jsonl")
    except PrivfedError:
        return {}
    costs = {
        name: paid([r for r in ledger.releases if r.name == name])
        for name in dict.fromkeys(r.name for r in ledger.releases)
    }
    total = sum(costs.values())
    return {name: cost / total for name, cost in costs.items()} if 0 < total < math.inf else {}


def _guarantees_card(settings: Sequence[Setting]) -> str:
    said: dict[str, list[str]] = {}
    for setting in settings:
        said.setdefault(
            guarantee_in_words(max(setting.runs, key=lambda run: run.epsilon).result), []
        ).append(setting.name)
    several = (
        f"<p>{escape(SEVERAL)}</p>" if add_up([run for s in settings for run in s.runs]) else ""
    )
    words = "".join(
        f"<p><b>{escape('; '.join(names))}</b><br>{escape(text)}</p>"
        for text, names in said.items()
    )
    if len(said) <= 2:
        return card("What each run guarantees", several + words, wide=True)
    return (
        card("Several runs on the same users", several, wide=True) if several else ""
    ) + details("What each run guarantees", words)


def _differences(settings: Sequence[Setting], keys: Sequence[str]) -> str:
    rows = []
    for key in keys:
        values = [setting.runs[0].config.get(key, "-") for setting in settings]
        rows.append([escape(key), *(escape(shown(value)) for value in values)])
    return _table(["key", *(setting.name for setting in settings)], rows)


def _runs(settings: Sequence[Setting], folder: Path) -> str:
    rows = []
    for setting in settings:
        for run in setting.runs:
            path = Path(os.path.relpath(run.folder, folder))
            report = run.folder / "report.html"
            name = escape(str(path))
            link = (
                f'<a href="{quote(str(path / "report.html"))}">{name}</a>'
                if report.exists()
                else name
            )
            error = "-" if math.isnan(run.error) else f"{run.error:.4g}"
            seconds = f"{run.result['time']['total_s']:.1f} s"
            rows.append(
                [
                    link,
                    escape(setting.name),
                    str(run.result["seed"]),
                    error,
                    f"{run.epsilon:.4g}",
                    seconds,
                ]
            )
    return _table(["run", "setting", "seed", "error", "epsilon spent", "time"], rows, range(2, 6))
