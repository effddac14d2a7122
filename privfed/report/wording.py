"""Texts about a run, for the console and the report."""

from __future__ import annotations

import math
from typing import Any

Row = dict[str, Any]


def describe_step(row: Row, short: bool = False) -> str:
    """Return one step in words: epsilon spent, and error on fresh users, who are public.

    Args:
        row: Record of the step.
        short: Fit into a terminal's line.
    """
    parts = [
        f"epsilon spent {row['epsilon']:.4f}" if math.isfinite(row["epsilon"]) else "no privacy"
    ]
    error = next((key for key in ERRORS if key in row), None)
    if error is not None:
        parts.append(f"error {row[error]:.3e}")
    if "dist" in row and not short:
        parts.append(f"distance {row['dist']:.2e}")
    if row["missing_users"]:
        parts.append(f"{row['missing_users']} users missing")
    return "  ".join(parts)


def name_step(row: Row, task: str, rounds: int) -> str:
    """Return `round 3/25`, or the name of a preparing step."""
    if row["round"] and row["task"] == task:
        return f"round {row['round']}/{rounds}"
    if not row["round"]:
        return f"{row['task']} clip"
    return str(row["task"]) if row["round"] == 1 else f"{row['task']} {row['round']}"


def speed_in_words(users: float) -> str:
    """Return user-rounds per second, in millions if they are many."""
    return f"{users / 1e6:.2f} million" if users >= 1e5 else f"{users:,.0f}"


ERRORS = {
    "mse": "population mean squared error",
    "risk": "0-1 risk on fresh examples",
    "frobenius": "Frobenius error of the matrix",
}
"""Errors of a simulation in words, by their names in the result."""

RIVALS = {
    "": "personal models (this run)",
    "_standalone": "each user alone",
    "_global": "one global private model",
    "_offset": "global private model and personal offset",
    "_random": "own heads on an uninformed random representation",
    "_oracle": "oracle that knows the true representation",
}

FIGURES = {
    "accuracy": "accuracy of the personal models",
    "dist": "distance of the learnt from the true representation",
    "distortion": (
        "distortion of the sketch (root mean square error of inner products of unit vectors)"
    ),
    "relative": "Frobenius error relative to the true matrix",
}
"""Further figures of a simulation."""


HELD_OUT = {
    "mse": "mean squared error on held-out rows",
    "risk": "share of wrong answers on held-out rows",
}
"""The same for errors on held-out rows of users."""


def error_in_words(result: Row, error: str = "") -> str:
    """Return the error of a result, or the named error, in words."""
    return (HELD_OUT if "judged" in result else ERRORS)[error or error_of(result["metrics"])]


def verdict(metrics: Row) -> str:
    """Return in one sentence which predictor is best; empty if there is nothing to compare."""
    error = error_of(metrics)
    others = {
        end: metrics[error + end]
        for end in ("_standalone", "_global", "_offset")
        if error + end in metrics
    }
    if len(others) < 3:
        return ""
    own, end = metrics[error], min(others, key=others.__getitem__)
    best, name = others[end], RIVALS[end]
    if own < best and own <= 0.99 * best:
        return (
            f"Personal models win: their error is {1 - own / best:.0%} below the best of the "
            f"others ({name}, {best:.4g})."
        )
    if best < own and best <= 0.99 * own:
        return (
            f"Personal models do not pay here: the error of {name} is {1 - best / own:.0%} lower "
            f"({best:.4g}). More users, a "
            "larger epsilon or public bounds of columns (data.bounds) may change that."
        )
    return f"Personal models hardly pay here: {name} is as good ({best:.4g}), within 1%."


def error_of(metrics: Row) -> str:
    """Return the name of the error in a simulation's metrics; empty if there is none."""
    return next((key for key in ERRORS if key in metrics), "")


def comparison(metrics: Row) -> list[tuple[str, float]]:
    """Return the evaluated predictors with their errors."""
    error = error_of(metrics)
    if not error:
        return []
    if error == "frobenius":
        return [("this run", metrics[error])]
    return [
        (words, metrics[error + end]) for end, words in RIVALS.items() if error + end in metrics
    ]
