"""report.html: page of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.data.evaluation_bins import Scale
from privfed.foundation.linalg import Array
from privfed.privacy.statement import (
    SIMULATION,
    account_in_words,
    claimed,
    guarantee_in_words,
    nothing_released,
)
from privfed.report.charts import Series, heat_map, histogram_chart, line_chart
from privfed.report.gain_chart import gain_picture
from privfed.report.templating import Figure, Page, Picture, TextTable, render
from privfed.report.wording import (
    ERRORS,
    FIGURES,
    Row,
    comparison,
    error_in_words,
    error_of,
    name_step,
    speed_in_words,
    verdict,
)

LEVELS = (
    ("standalone", "each user alone", "c2"),
    ("oracle", "oracle", "c3"),
    ("global", "global private model", "c3"),
    ("offset", "and personal offset", "c4"),
)
"""Errors that a run is compared with: end of the metric's name, name on the page, colour."""
SHOWN = 60
"""Largest number of users whose examples are drawn in the picture of a split."""


@dataclass(frozen=True, kw_only=True)
class RunPage(Page):
    """Content of run.html.

    Attributes:
        verdict: Best predictor, in one sentence; may be empty.
        errors: Error of each predictor, and further figures of a simulation.
        guarantee: What was guaranteed, in words.
        notes: Further notes on the guarantee.
        pictures: Charts, in the order in which they are shown.
        steps: Cost and error of each step.
        config: The configuration as YAML.
    """

    verdict: str
    errors: TextTable | None
    guarantee: str
    notes: Sequence[str]
    pictures: Sequence[Picture]
    steps: TextTable | None
    config: str


def report_page(
    result: Row,
    rows: Sequence[Row],
    histograms: dict[str, Array],
    scale: Scale | None,
    config: str,
    split: NDArray[np.int64] | None = None,
    by_size: Array | None = None,
) -> str:
    """Return the HTML of the page of one run.

    Args:
        result: Content of result.json.
        rows: One entry per step, as in rounds.csv.
        histograms: Users per bin of their error, by predictor; "gain" is on the bins of RATIOS.
        scale: Bins of the histograms of errors; None for real users.
        config: The configuration as YAML.
        split: Examples per user and class, shape (users, classes).
        by_size: Users by their number of rows, see `privfed.report.gain_chart.size_table`.
    """
    privacy = result["privacy"]
    epsilon = (
        privacy["epsilon"] if isinstance(privacy["epsilon"], str) else f"{privacy['epsilon']:.4g}"
    )
    return render(
        "run.html.md",
        RunPage(
            title=f"{result['algo']}: {_cost(result, epsilon)}",
            subtitle=(
                f"{result['n_users']:,} users on {result['n_nodes']} node(s), "
                f"{result['runtime']}, seed {result['seed']}"
            ),
            figures=_figures(result, epsilon),
            versions=result["versions"],
            verdict=verdict(result),
            errors=_errors(result),
            guarantee=guarantee_in_words(result),
            notes=[*filter(None, [account_in_words(result)]), *result.get("notes", [])],
            pictures=_pictures(result, rows, histograms, scale, split, by_size),
            steps=_steps(rows, rows[-1]["task"], result["rounds"]) if rows else None,
            config=config,
        ),
    )


def _cost(result: Row, epsilon: str) -> str:
    if result["privacy"]["guarantee"] == "none":
        return "no privacy"
    if nothing_released(result):
        return "nothing released"
    simulated = claimed(result["privacy"]) == SIMULATION
    return f"{'simulation of ' if simulated else ''}epsilon {epsilon}"


def _figures(result: Row, epsilon: str) -> list[Figure]:
    metrics, spent, privacy = result["metrics"], result.get("time", {}), result["privacy"]
    figures = []
    error = error_of(metrics)
    if error:
        whose = "error of the matrix" if error == "frobenius" else "error of the personal models"
        figures.append(Figure(whose, f"{metrics[error]:.3g}", error_in_words(result)))
    if f"{error}_standalone" in metrics and not nothing_released(result):
        alone = metrics[f"{error}_standalone"]
        ratio = _ratio(metrics[error], alone)
        figures.append(Figure("against each user alone", ratio, f"alone: {alone:.3g}"))
    note = f"δ {privacy['delta']:g}, {privacy['neighbouring']}, {claimed(privacy)}"
    figures.append(Figure("privacy spent", f"ε {epsilon}", note))
    if "user_rounds_per_s" in spent:
        speed = speed_in_words(spent["user_rounds_per_s"])
        note = f"{spent['total_s']:.1f} s in all, {result['peak_rss_mb']:.0f} MB"
        figures.append(Figure("user-rounds a second", speed, note))
    return figures


def _ratio(own: float, alone: float) -> str:
    """Return an error compared with that of users alone; either may be 0."""
    low, high = sorted((own, alone))
    if low == high:
        return "equal"
    word = "lower" if own < alone else "higher"
    if low == 0:
        return word
    return f"{high / low:,.3g}x {word}" if high < 10 * low else f"{high / low:,.0f}x {word}"


def _errors(result: Row) -> TextTable | None:
    metrics = result["metrics"]
    if not error_of(metrics):
        return None
    (_, _, *further), rows = comparison(result)
    empty = [""] * len(further)
    rows += [
        [words, f"{metrics[key]:.4g}", *empty] for key, words in FIGURES.items() if key in metrics
    ]
    head = [f"{error_in_words(result)} (simulation, not private)", "", *further]
    return TextTable(head, rows)


def _pictures(
    result: Row,
    rows: Sequence[Row],
    histograms: dict[str, Array],
    scale: Scale | None,
    split: NDArray[np.int64] | None,
    by_size: Array | None,
) -> list[Picture]:
    """Return the charts of a run; users who learnt alone are not compared with themselves."""
    pictures = []
    judged = [row for row in rows if any(name in row for name in ERRORS)]
    if len(judged) > 1:
        pictures.append(_error_picture(judged, result))
    if rows and math.isfinite(rows[-1]["epsilon"]):
        pictures.append(_budget_picture(rows, result["privacy"]["target_epsilon"]))
    if "gain" in histograms:
        pictures.append(gain_picture(histograms["gain"], by_size, result["metrics"]))
    elif scale is not None and not nothing_released(result):
        pictures.append(_benefit_picture(histograms, scale, result))
    if split is not None:
        pictures.append(_split_picture(split))
    return pictures


def _error_picture(rows: Sequence[Row], result: Row) -> Picture:
    metrics, held_out = result["metrics"], "judged" in result
    error = next(name for name in ERRORS if name in rows[0])
    personal = error != "frobenius"
    name = "this run, on fresh users" if personal and not held_out else "this run"
    series = [Series(name, [row[error] for row in rows], [row["step"] for row in rows], "c1")]
    for end, words, colour in LEVELS:
        if f"{error}_{end}" in metrics:
            series.append(Series(words, [metrics[f"{error}_{end}"]], colour=colour))
    if not personal:
        note = ""
    elif held_out:
        note = (
            "Held-out rows of some of the users, as training goes on. Not private: shown because "
            "this is a simulation."
        )
    else:
        note = "Fresh users never take part, so looking at their error costs no privacy."
    chart = line_chart(series, "step", error_in_words(result, error), log_y=error != "risk")
    return Picture("Error after every step", chart, note)


def _budget_picture(rows: Sequence[Row], target: float) -> Picture:
    spent, steps = [row["epsilon"] for row in rows], [row["step"] for row in rows]
    series = [
        Series("spent", [0.0, *spent], [0, *steps], "c4"),
        Series("budget", [target], colour="c2"),
    ]
    note = (
        "The initialiser and private clip norms are charged like any other release; all compose "
        "exactly."
    )
    return Picture("Budget after every step", line_chart(series, "step", "epsilon"), note)


def _benefit_picture(histograms: dict[str, Array], scale: Scale, result: Row) -> Picture:
    metrics = result["metrics"]
    series = [Series("own head, shared representation", list(histograms["own"]), colour="c1")]
    if "alone" in histograms:
        series.append(Series("alone", list(histograms["alone"]), colour="c2"))
    label = "excess error of a user" if scale.log else "error of a user"
    chart = histogram_chart(list(scale.edges), series, label, "users", scale.log)
    own, alone = metrics[error_of(metrics)], metrics.get(f"{error_of(metrics)}_standalone")
    if alone is None:
        title, against = "Error from user to user", ""
    else:
        title = "What a head gains over learning alone"
        against = f", {'lower' if own < alone else 'not lower'} than alone: {alone:.3g}"
    note = f"Mean error {own:.3g}{against}. Not private: shown because this is a simulation."
    return Picture(title, chart, note)


def _split_picture(split: NDArray[np.int64]) -> Picture:
    shown = min(len(split), SHOWN)
    kinds, sizes = np.count_nonzero(split, axis=1), split.sum(axis=1)
    whose = "All" if shown == len(split) else f"The first {shown} of {len(split):,}"
    note = (
        f"{_range_of(sizes)} training examples of {_range_of(kinds)} classes a user; the darker, "
        f"the more examples. {whose} users. Not private: this is a simulation."
    )
    chart = heat_map(split[:shown].T, "user", "class")
    return Picture("How examples are split over users", chart, note)


def _range_of(numbers: NDArray[np.int64]) -> str:
    """Return the smallest and the largest number, or one number if they agree."""
    low, high = int(numbers.min()), int(numbers.max())
    return str(low) if low == high else f"{low} to {high}"


def _steps(rows: Sequence[Row], task: str, rounds: int) -> TextTable:
    names = {"clip": "clip norm", "noise_std": "noise std", "epsilon": "epsilon spent"}
    names |= {name: "error" for name in ERRORS} | {"dist": "distance"}
    columns = {key: name for key, name in names.items() if any(key in row for row in rows)}
    cells = [
        [name_step(row, task, rounds)]
        + [f"{row[key]:.4g}" if key in row else "" for key in columns]
        for row in rows
    ]
    return TextTable(["step", *columns.values()], cells)
