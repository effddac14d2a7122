"""Texts about a run, for the console and the report."""

from __future__ import annotations

import math
from typing import Any

from privfed.privacy.statement import nothing_released

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

FURTHER = {"mae": "absolute", "r2": "R2", "log_loss": "log-loss", "auc": "AUC"}
"""Further metrics on held-out rows, as columns of a table."""

HELD_OUT = {
    "mse": "mean squared error on held-out rows",
    "risk": "share of wrong answers on held-out rows",
}
"""The same for errors on held-out rows of users."""


def error_in_words(result: Row, error: str = "") -> str:
    """Return the error of a result, or the named error, in words."""
    return (HELD_OUT if "judged" in result else ERRORS)[error or error_of(result["metrics"])]


def verdict(result: Row) -> str:
    """Return in one sentence which predictor is best; empty if there is nothing to compare.

    Predictors differ if the mean of their difference, user by user on the same rows, exceeds
    CLEAR standard errors over users.

    Args:
        result: Content of result.json.
    """
    metrics, gaps = result["metrics"], result.get("differences", {})
    error = error_of(metrics)
    others = {
        end: metrics[error + end]
        for end in ("_standalone", "_global", "_offset")
        if error + end in metrics
    }
    if len(others) < 3 or any(end[1:] not in gaps for end in others):
        return ""
    if nothing_released(result):
        return "Each user alone is best here: nothing was released, because noise would ruin it."
    own, end = metrics[error], min(others, key=others.__getitem__)
    best, name, gap = others[end], RIVALS[end], gaps[end[1:]]
    if all(_clearly_below(gaps[other[1:]]) for other in others):
        return (
            f"Personal models win: their error is {1 - own / best:.0%} below the best of the "
            f"others ({name}, {best:.4g}), by {_in_errors(gap)} over users."
        )
    if _clearly_below({"mean": -gap["mean"], "error": gap["error"]}):
        more = ["more users"]
        if not math.isinf(float(result["privacy"]["epsilon"])):
            more.append("a larger epsilon")
        more.append("public bounds of columns (data.bounds)")
        helps = ", ".join(more[:-1]) + f" or {more[-1]} may change that."
        return (
            f"Personal models do not pay here: the error of {name} is {1 - best / own:.0%} lower "
            f"({best:.4g}), by {_in_errors(gap)} over users. {helps[0].upper()}{helps[1:]}"
        )
    return (
        f"No clear winner: personal models ({own:.4g}) and {name} ({best:.4g}) differ by "
        f"{_in_errors(gap)} over users."
    )


CLEAR = 2.0
"""Standard errors beyond which a difference is clear."""


def _clearly_below(gap: Row) -> bool:
    return bool(gap["mean"] < -CLEAR * gap["error"])


def _in_errors(gap: Row) -> str:
    """Return a difference in standard errors, in words."""
    if not gap["error"]:
        return "nothing" if not gap["mean"] else "more than any standard error"
    return f"{abs(gap['mean']) / gap['error']:.1f} standard errors"


def error_of(metrics: Row) -> str:
    """Return the name of the error in a simulation's metrics; empty if there is none."""
    return next((key for key in ERRORS if key in metrics), "")


def comparison(result: Row) -> tuple[list[str], list[list[str]]]:
    """Return the evaluated predictors with their errors and further metrics.

    Args:
        result: Content of result.json.

    Returns:
        Head and rows of a table, the name of the predictor first; no rows without an error.
    """
    metrics, errors = result["metrics"], result.get("standard_errors", {})
    error = error_of(metrics)
    further = [key for key in FURTHER if key in metrics and error != "frobenius"]
    head = ["predictor", "error", *(FURTHER[key] for key in further)]
    if not error:
        return head, []
    if error == "frobenius":
        return head, [["this run", f"{metrics[error]:.4g}"]]
    rows = []
    for end, words in RIVALS.items():
        if error + end not in metrics:
            continue
        spread = f" ±{errors[error + end]:.2g}" if error + end in errors else ""
        others = [f"{metrics[key + end]:.3g}" if key + end in metrics else "" for key in further]
        rows.append([words, f"{metrics[error + end]:.4g}{spread}", *others])
    return head, rows
