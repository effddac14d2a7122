"""Metrics on held-out rows of users, with standard errors over users, in simulations only.

A metric is a mean over held-out rows, or a smooth function of such means. Rows of one user depend
on each other, so users and not rows are what is drawn at random. If user i moves a metric by h_i to
first order (the sum of its rows' influences), the standard error is

    sqrt(n / (n - 1) sum_i h_i^2)        n the number of users with held-out rows

    metric                           influence h_i
    mean of losses l, N rows         sum_{j in i} (l_j - mean) / N
    R^2 = 1 - SSE / SST              -(SSE_i - (1 - R^2) SST_i) / SST
    AUC, n1 positive, n0 negative    sum_{j in i} (V_j - AUC) / (n1 if j is positive, else n0)

V_j is the share of rows of the other kind that row j is ranked rightly against (DeLong, DeLong and
Clarke-Pearson 1988; for clusters Obuchowski 1997). Of two predictors on the same rows the
difference of losses is a mean as well, and its standard error is that of the paired comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.linalg import Array

SMALLEST = 1e-12
"""Probabilities below this count as this in the log-loss."""
MOST = 1e80
"""Largest loss of a row, so that the square of a target like 1e300 hides no other row."""


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error over users; the latter is 0 for a single user."""

    value: float
    error: float


@dataclass(frozen=True)
class HeldOut:
    """Predictions for t held-out rows.

    Attributes:
        user: number (t,) of each row's user.
        y: true targets (t,), numbers or labels 0..C-1.
        answers: predicted targets (t,).
        P: probabilities (t, C) of labels; None if targets are numbers.
    """

    user: NDArray[np.int64]
    y: Array
    answers: Array
    P: Array | None = None

    def losses(self) -> Array:
        """Return the losses (t,) that predictors are compared by: squared, or 1 if wrong."""
        if self.P is not None:
            return (self.answers != self.y).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.fmin((self.answers - self.y) ** 2, MOST)

    def metrics(self) -> dict[str, Estimate]:
        """Return all metrics by name."""
        if self.P is None:
            with np.errstate(over="ignore", invalid="ignore"):
                absolute = np.fmin(np.abs(self.answers - self.y), MOST)
            found = {
                "mse": mean_loss(self.losses(), self.user),
                "mae": mean_loss(absolute, self.user),
            }
            r2 = explained(self.losses(), self.y, self.user)
            return found if r2 is None else found | {"r2": r2}
        wrong = mean_loss(self.losses(), self.user)
        chosen = np.take_along_axis(self.P, self.y.astype(np.int64)[:, None], axis=1)[:, 0]
        found = {
            "risk": wrong,
            "accuracy": Estimate(1.0 - wrong.value, wrong.error),
            "log_loss": mean_loss(-np.log(np.maximum(chosen, SMALLEST)), self.user),
        }
        auc = ranking(self.P, self.y, self.user)
        return found if auc is None else found | {"auc": auc}


def mean_loss(losses: Array, user: NDArray[np.int64]) -> Estimate:
    """Return the mean of losses (t,) over rows."""
    mean = float(np.mean(losses))
    return Estimate(mean, _error((losses - mean) / len(losses), user))


def paired(one: HeldOut, other: HeldOut) -> Estimate:
    """Return the mean loss of one predictor less that of another on the same rows."""
    return mean_loss(one.losses() - other.losses(), one.user)


def explained(squares: Array, y: Array, user: NDArray[np.int64]) -> Estimate | None:
    """Return R^2, the explained part of the variance of y; None if y does not vary."""
    with np.errstate(over="ignore"):
        gaps = (y - np.mean(y)) ** 2
    whole, rest = float(np.sum(gaps)), float(np.sum(squares))
    if not 0 < whole < np.inf:
        return None
    return Estimate(1.0 - rest / whole, _error((squares - rest / whole * gaps) / whole, user))


def ranking(P: Array, y: Array, user: NDArray[np.int64]) -> Estimate | None:
    """Return the AUC; with more than two labels, the mean over labels, each against all others.

    Args:
        P: probabilities (t, C).
        y: labels (t,).
        user: users (t,).

    Returns:
        None if all rows have the same label.
    """
    values, influences = [], np.zeros(len(y))
    labels = [1] if P.shape[1] == 2 else [c for c in range(P.shape[1]) if np.any(y == c)]
    for c in labels:
        right = y == c
        ones, zeros = int(right.sum()), int((~right).sum())
        if not ones or not zeros:
            continue
        _, place, counts = np.unique(P[:, c], return_inverse=True, return_counts=True)
        above = np.bincount(place, right, minlength=len(counts))
        below = counts - above
        # Rows of the other kind that are ranked rightly; ties count half.
        less = np.cumsum(below) - below / 2
        more = ones - np.cumsum(above) + above / 2
        V = np.where(right, less[place] / zeros, more[place] / ones)
        auc = float(np.mean(V[right]))
        values.append(auc)
        influences += (V - auc) / np.where(right, ones, zeros)
    if not values:
        return None
    return Estimate(float(np.mean(values)), _error(influences / len(values), user))


def _error(influences: Array, user: NDArray[np.int64]) -> float:
    """Return the standard error of what rows move by influences (t,)."""
    _, place = np.unique(user, return_inverse=True)
    moved = np.bincount(place, influences)
    n = len(moved)
    return float(np.sqrt(n / (n - 1) * np.sum(moved**2))) if n > 1 else 0.0
