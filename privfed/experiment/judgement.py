"""Judgement of all predictors of a simulation on the same held-out rows; not private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privfed.data.evaluation_metrics import Estimate, HeldOut, paired

if TYPE_CHECKING:
    from privfed.experiment.wiring import Experiment


def held_out(experiment: Experiment) -> dict[str, HeldOut]:
    """Return predictions for held-out rows by name of the predictor; empty without such rows.

    Rows have the same order in every experiment on the same data.

    Args:
        experiment: a finished simulation.
    """
    data = experiment.data
    client = experiment.factory.serving(data.cohort(0, data.n))
    pieces: dict[str, list[HeldOut]] = {}
    for block in client.judged():
        for name, told in client.judged_predictions(block, experiment.strategy.shared).items():
            if len(told.y):
                pieces.setdefault(name, []).append(told)
    return {name: _joined(parts) for name, parts in pieces.items()}


def _joined(parts: list[HeldOut]) -> HeldOut:
    return HeldOut(
        np.concatenate([part.user for part in parts]),
        np.concatenate([part.y for part in parts]),
        np.concatenate([part.answers for part in parts]),
        None if parts[0].P is None else np.concatenate([np.asarray(p.P) for p in parts]),
    )


@dataclass(frozen=True)
class Judgement:
    """What held-out rows say of all predictors.

    Attributes:
        metrics: metrics by name, `mae` of the run itself and `mae_global` of a rival.
        standard_errors: their standard errors over users, by the same names.
        differences: per rival, the error of the run less that of the rival, and the standard error
            of this difference, as `mean` and `error`.
    """

    metrics: dict[str, float]
    standard_errors: dict[str, float]
    differences: dict[str, dict[str, float]]

    @classmethod
    def of(cls, held: dict[str, HeldOut]) -> Judgement:
        """Judge predictors by name; that of the run itself is called ''."""
        found: dict[str, Estimate] = {}
        for name, told in held.items():
            end = f"_{name}" if name else ""
            found |= {f"{metric}{end}": value for metric, value in told.metrics().items()}
        gaps = {name: paired(held[""], other) for name, other in held.items() if name}
        return cls(
            {name: estimate.value for name, estimate in found.items()},
            {name: estimate.error for name, estimate in found.items()},
            {name: {"mean": gap.value, "error": gap.error} for name, gap in gaps.items()},
        )
