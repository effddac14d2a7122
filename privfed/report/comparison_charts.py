"""Charts of a comparison of runs: error against epsilon, error after every step, gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from privfed.data.evaluation_tally import RATIOS
from privfed.report.charts import Series, line_chart
from privfed.report.gain_chart import gain_label
from privfed.report.past_runs import Setting, settings_in_words, spread
from privfed.report.templating import Picture
from privfed.report.wording import error_in_words, error_of

COLOURS = [f"c{i}" for i in range(1, 9)]
LEVELS = {
    "standalone": "alone",
    "global": "global model",
    "offset": "global and offset",
    "oracle": "oracle",
}
"""Predictors that runs are compared with, by the end of their metric's name."""


def _lines(settings: Sequence[Setting]) -> dict[str, list[Setting]]:
    """Return the settings that are points of one line, by the line's name."""
    lines: dict[str, list[Setting]] = {}
    for setting in settings:
        lines.setdefault(
            settings_in_words(setting.line) or setting.runs[0].result["algo"], []
        ).append(setting)
    return lines


def _places(settings: Sequence[Setting]) -> tuple[str, dict[Setting, float]]:
    """Return the x axis: epsilon, or the one number in which the settings differ.

    Args:
        settings: Settings that are drawn in one chart.

    Returns:
        The name of the axis, and the place on it of each setting that has one.
    """
    private = [s for s in settings if 0 < s.epsilon < math.inf]
    spent = {s: s.epsilon for s in private}
    if len({f"{epsilon:.3g}" for epsilon in spent.values()}) > 1 or len(settings) == 1:
        return "epsilon", spent
    keys = [key for key in settings[0].line if all(_is_number(s.line[key]) for s in settings)]
    if len(keys) == 1 and len(settings[0].line) == 1:
        return keys[0], {s: float(s.line[keys[0]]) for s in settings}
    return "epsilon", spent


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def error_picture(settings: Sequence[Setting]) -> Picture | None:
    """Return a chart of the error against epsilon, or against the one number that varies.

    Args:
        settings: Settings whose errors are of the same kind; those that differ only in their place
            on the x axis are points of one line.

    Returns:
        The picture; None if no setting has a place on the x axis.
    """
    x_label, places = _places(settings)
    y_label, log = _error(settings)
    lines = (
        _lines(settings)
        if x_label == "epsilon"
        else {settings[0].runs[0].result["algo"]: list(settings)}
    )
    series, apart = [], []
    for (name, members), colour in zip(lines.items(), COLOURS, strict=False):
        points = sorted((s for s in members if s in places), key=lambda s: places[s])
        if points:
            low, high = ([s.error + sign * (s.spread or 0.0) for s in points] for sign in (-1, 1))
            x = [places[s] for s in points]
            series.append(Series(name, [s.error for s in points], x, colour, whiskers=(low, high)))
        # A setting that spends nothing, or has no privacy, is a level, since its error is mostly
        # the same for every budget.
        without = {f"{s.error:.3g}": s.name if points else name for s in members if s not in places}
        apart += [
            Series(f"{words} (dashed)", [float(error)], colour=colour)
            for error, words in without.items()
        ]
    xs = [x for s in series for x in s.x]
    if not xs:
        return None
    wide = min(xs) > 0 and max(xs) > 3 * min(xs)
    chart = line_chart(
        [*_references(settings, places), *apart, *series], x_label, y_label, log, wide
    )
    many = (
        f" {len(lines) - len(COLOURS)} more are in the table only."
        if len(lines) > len(COLOURS)
        else ""
    )
    note = "Means over seeds; whiskers are one standard deviation. Simulation, not private." + many
    return Picture(f"Error against {x_label}", chart, note)


def _error(settings: Sequence[Setting]) -> tuple[str, bool]:
    """Return the name of the settings' error, and whether its scale is logarithmic."""
    result = settings[0].runs[0].result
    return error_in_words(result), error_of(result["metrics"]) != "risk"


def _references(settings: Sequence[Setting], places: dict[Setting, float]) -> list[Series]:
    """Return the predictors that the settings are compared with, each without a colour.

    Args:
        settings: Settings that are drawn in one chart.
        places: Place of each setting on the x axis.

    Returns:
        A level per predictor whose error is the same everywhere, within 20%; a line if it is the
            same for all settings at one place; nothing for a predictor that differs there.
    """
    found = []
    for end, words in LEVELS.items():
        at: dict[float, list[float]] = {}
        for s in settings:
            known = [value for run in s.runs if (value := run.rival(end)) is not None]
            if known and s in places:
                at.setdefault(places[s], []).append(fmean(known))
        if not all(max(values) <= 1.2 * min(values) for values in at.values()):
            continue
        y = [fmean(at[x]) for x in sorted(at)]
        if y and max(y) <= 1.2 * min(y):
            found.append(Series(words, [fmean(y)], colour=""))
        elif y:
            found.append(Series(words, y, sorted(at), colour=""))
    return found


def convergence_picture(settings: Sequence[Setting]) -> Picture | None:
    """Return a chart of the error after every step, with one curve per setting.

    Args:
        settings: Settings whose errors are of the same kind.

    Returns:
        The picture; None if no setting was evaluated after several steps.
    """
    error, (y_label, log) = error_of(settings[0].runs[0].result["metrics"]), _error(settings)
    series: list[Series] = []
    drawn = _shown_curves(settings)
    for setting in drawn:
        curves = [[row[error] for row in run.rows if error in row] for run in setting.runs]
        steps = [row["step"] for row in setting.runs[0].rows if error in row]
        length = min(len(curve) for curve in curves)
        if length < 2:
            continue
        at = [[curve[i] for curve in curves] for i in range(length)]
        mean, std = [fmean(values) for values in at], [spread(values) or 0.0 for values in at]
        band = (
            [m - s for m, s in zip(mean, std, strict=True)],
            [m + s for m, s in zip(mean, std, strict=True)],
        )
        series.append(Series(setting.name, mean, steps[:length], COLOURS[len(series)], band))
    if not series:
        return None
    few = f" {len(series)} of {len(settings)} settings." if len(drawn) < len(settings) else ""
    whose = (
        "Held-out rows of some users"
        if "judged" in drawn[0].runs[0].result
        else "On fresh users where heads are personal"
    )
    note = f"{whose}; bands are one standard deviation over seeds.{few}"
    return Picture("Error after every step", line_chart(series, "step", y_label, log), note)


def gains_picture(settings: Sequence[Setting]) -> Picture | None:
    """Return a chart of users by their gain over learning alone, with one curve per setting.

    Args:
        settings: Settings whose errors are of the same kind.

    Returns:
        The picture, over all seeds of each setting; None if no run counted gains.
    """
    series: list[Series] = []
    ratio = error_of(settings[0].runs[0].result["metrics"]) != "risk"
    middles = [(a + b) / 2 for a, b in pairwise(RATIOS.edges)]
    for setting in _shown_curves(settings):
        told = [
            run.details["histograms"]["gain"]
            for run in setting.runs
            if "gain" in run.details.get("histograms", {})
        ]
        users = sum(sum(counts) for counts in told)
        if users:
            shares = [sum(counts[i] for counts in told) / users for i in range(len(middles))]
            x = [10**middle for middle in middles] if ratio else middles
            series.append(Series(setting.name, shares, x, COLOURS[len(series)]))
    if not series:
        return None
    note = "To the right of the middle a user gains. Not private: simulations only."
    chart = line_chart(series, gain_label(ratio), "share of users", log_x=ratio)
    return Picture("Who gains by a personal model", chart, note)


def _shown_curves(settings: Sequence[Setting]) -> Sequence[Setting]:
    """Return at most one setting per colour.

    Args:
        settings: Settings whose errors are of the same kind.

    Returns:
        All settings if there are enough colours; otherwise those of one budget: the middle one
            among the budgets with most settings.
    """
    if len(settings) <= len(COLOURS):
        return settings
    budgets: dict[str, list[Setting]] = {}
    for setting in settings:
        budgets.setdefault(settings_in_words(setting.budget), []).append(setting)
    by_size = sorted(budgets.values(), key=len)
    most = [members for members in by_size if len(members) == len(by_size[-1])]
    return most[len(most) // 2][: len(COLOURS)]
