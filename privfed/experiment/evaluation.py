"""Evaluation of a simulation: on fresh users after every step, and on all users at the end.

Fresh users never take part, so their errors cost no privacy. Errors of the users themselves are not
private; they are reported in simulations only, and marked so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf

from privfed.config.option_groups import CONF
from privfed.data.evaluation_metrics import HeldOut
from privfed.experiment.judgement import Judgement, held_out
from privfed.experiment.result import Effort, Outcome
from privfed.experiment.run_account import NONE
from privfed.experiment.saved_rows import saved_files
from privfed.foundation.linalg import Array

if TYPE_CHECKING:
    from privfed.experiment.wiring import Experiment

RIVALS = {
    "own": "",
    "alone": "standalone",
    "oracle": "oracle",
    "random": "random",
    "offset": "offset",
}
"""Predictors that are evaluated at the end, and the names of their errors in the result."""


class Evaluation:
    """Evaluates one experiment."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.held: dict[str, HeldOut] = {}
        """Predictions for held-out rows by predictor, '' for the run itself."""
        self.judgement: Judgement | None = None

    def validator(self) -> Callable[[list[Array]], dict[str, float]]:
        """Return a function that evaluates shared parameters on fresh users."""
        experiment = self.experiment
        data, factory = experiment.data, experiment.factory
        fresh = data.validation() if data.personal else None
        if fresh is None:
            return lambda shared: data.compare(experiment.model())
        client = factory.serving(fresh)
        if client.memory is not None and factory.private is not None:
            client.memory.keep_in(Path(factory.private), "fresh")

        def validate(shared: list[Array]) -> dict[str, float]:
            if client.memory is not None:
                client.memory.begin(experiment.strategy.done)
            errors, weights = [], []
            for block in client.judged():
                errors.append(client.own_errors(block, shared))
                judging = block.judging
                weights.append(np.ones(len(block)) if judging is None else judging)
            if client.memory is not None:
                client.memory.end()
            mean = float(np.average(np.concatenate(errors), weights=np.concatenate(weights)))
            return {data.error: mean + data.floor, **data.compare(experiment.model())}

        return validate

    def metrics(self) -> dict[str, float]:
        """Return the errors of the simulation: means over all users, or over held-out rows."""
        experiment = self.experiment
        if not experiment.simulated:
            return {}
        data, strategy, sums = experiment.data, experiment.strategy, self.sums()
        metrics: dict[str, float] = {}
        if sums:
            name, floor = data.error, data.floor
            judged = sums.get("judged", sums["users"])
            mean = {key: sums[key] / judged for key in RIVALS if key in sums}
            metrics = {name: mean["own"] + floor}
            if "oracle" in mean:
                metrics["excess"] = mean["own"] - mean["oracle"]
            metrics |= {f"{name}_{RIVALS[key]}": mean[key] + floor for key in mean if key != "own"}
            if name == "risk":
                metrics["accuracy"] = 1.0 - metrics["risk"]
            if data.held_out:
                self.held = {RIVALS[key]: told for key, told in held_out(experiment).items()}
            for rival in experiment.cfg.algo.get("rivals", {}):
                metrics |= self.rival(rival)
            if self.held:
                self.judgement = Judgement.of(self.held)
                metrics = self.judgement.metrics | metrics
        return metrics | data.compare(experiment.model()) | strategy.diagnostics(data)

    def sums(self) -> dict[str, Any]:
        """Return the summed errors of all users; empty if no user has a held-out row."""
        sums = self.experiment.strategy.sums
        return sums if sums.get("judged", 1) else {}

    def rival(self, name: str) -> dict[str, float]:
        """Return the errors of a rival of personal models.

        The rival is trained on the same rows, with the whole budget; nothing of it is kept.

        Args:
            name: name of the rival in `algo.rivals`.
        """
        experiment = self.experiment
        cfg = experiment.cfg.copy()
        cfg.algo = cfg.algo.rivals[name]
        # Of the rival only an error is told, which is marked as not private in any case.
        cfg.privacy.account = NONE
        cfg.runtime = OmegaConf.load(CONF / "runtime" / "inprocess.yaml")
        outcome = type(experiment)(cfg, source=experiment.data).run()
        self.held |= {end or name: told for end, told in outcome.held.items()}
        metrics, error = outcome.result["metrics"], experiment.data.error
        return {f"{error}_{name}": metrics[error]} | {
            key: value for key, value in metrics.items() if key.startswith(f"{error}_")
        }

    def outcome(self) -> Outcome:
        """Return everything that a finished run leaves behind."""
        experiment, sums = self.experiment, self.sums()
        data = experiment.data
        histograms = {
            name.removeprefix("histogram_"): counts
            for name, counts in sums.items()
            if name.startswith("histogram_")
        }
        split = data.describe_split() if experiment.simulated else None
        metrics = self.metrics()
        return Outcome(
            result=experiment.result(metrics, self.judgement),
            held=self.held,
            saved=saved_files(experiment, self.held),
            model=experiment.model(),
            rows=experiment.rows,
            histograms=histograms,
            scale=data.scale if histograms else None,
            split=split,
            by_size=sums["by_size"].reshape(-1, 4) if "by_size" in sums else None,
            schema=experiment.federation.schema,
            operator=None if experiment.simulated else asdict(Effort.of(experiment)),
        )
