"""Config -> data, pair, runtime -> result. The only place that wires things together."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from privfed.config.composition import CONF, LINEAR, TABLE, kind_of
from privfed.config.instantiation import build
from privfed.data.cohort import Cohort
from privfed.experiment import checkpoint
from privfed.experiment.result import Outcome, peak_rss_mb, versions
from privfed.federation.client_factory import ClientFactory
from privfed.federation.federation import Federation, PrivacySettings
from privfed.federation.roster import Roster
from privfed.federation.user_state import PRIVATE, keep_fingerprint
from privfed.foundation.errors import ConfigError, check_whole
from privfed.foundation.linalg import Array
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.noise import noise_source
from privfed.runtimes.runtime import Runtime

RIVALS = {
    "own": "",
    "alone": "standalone",
    "oracle": "oracle",
    "random": "random",
    "offset": "offset",
}
"""Predictors that are judged at the end, and what their errors are called in the result."""


class Experiment:
    """One configured run: build it (cheap, checks everything; of data only a table is looked at), then `run` it.

    roster: who may take part, where that is not simply the simulated users spread over `runtime.nodes`. source: data that were
    read before.
    """

    def __init__(self, cfg: DictConfig, roster: Roster | None = None, source: Any = None) -> None:
        self.cfg = cfg
        self.rows: list[dict[str, Any]] = []
        self.started = time.perf_counter()
        self.budget = Budget(cfg.eps, cfg.delta, cfg.neighbouring)
        self.runtime: Runtime = build(cfg.runtime, "runtime")()
        self.factory = ClientFactory.of(cfg, source)
        self.data = self.factory.source
        k = dimension(cfg, self.data.d)
        self.roster = roster or Roster.of_simulated(
            self.data.n, self.runtime.nodes_for(self.data.n)
        )
        self.nodes = self.roster.nodes
        if self.roster.users != self.data.n:
            raise ConfigError.of(
                "data.n", self.data.n, f"but {self.roster.users} users are registered"
            )
        self.simulated = self.data.simulated and self.roster.simulated
        """No real user takes part: errors may be told, and noise may be repeatable."""
        if not self.simulated and math.isinf(self.budget.epsilon):
            raise ConfigError.of(
                "eps", "inf", "releases real users' sums without noise; it is for simulations only"
            )
        privacy = {key: value for key, value in cfg.privacy.items() if key != "noise"}
        settings, source = (
            PrivacySettings(**privacy),
            noise_source(cfg.privacy.noise, cfg.seed, self.simulated),
        )
        self.ledger = Ledger(self.budget)
        self.federation = Federation(
            nodes=self.nodes,
            d=self.data.d,
            k=k,
            seed=cfg.seed,
            gate=NoiseGate(self.ledger, source),
            privacy=settings,
            init=build(cfg.init.strategy, "init")(),
            error=self.data.error,
            personal=self.simulated and self.data.personal,
            publish=not self.simulated,
            schema=getattr(self.data, "schema", None),
            U_star=getattr(self.data, "U_star", None) if self.simulated else None,
            **vars(self.runtime.patience),
        )
        self.strategy = build(cfg.algo.strategy, "algo")(federation=self.federation)
        nobody = (
            self.data.empty()
            if hasattr(self.data, "empty")
            else Cohort.empty(self.data.m, self.data.d)
        )
        trial = self.factory.serving(nobody)  # settings are checked before anything is written
        self.remembers = trial.memory is not None
        """Whether users keep something from round to round."""

    def run(
        self,
        folder: Path | None = None,
        on_step: Callable[[dict[str, Any]], None] = lambda row: None,
        resume: bool = False,
    ) -> Outcome:
        """Train, judge, and collect everything that is to be written; ledger and checkpoint go to the folder as they grow.

        resume: go on with the interrupted run in the folder instead of starting anew.
        """

        written: list[str] = []

        def record(row: dict[str, Any]) -> None:
            row["seconds"] = self._told(row["seconds"])
            self.rows.append(row)
            if folder is not None:
                written.append(json.dumps(row))
                checkpoint.save(folder, self.strategy, written)
            on_step(row)

        if folder is not None and hasattr(self.data, "fingerprint"):
            keep_fingerprint(folder, self.data.fingerprint, resume)
        if folder is not None and resume:
            self.rows = checkpoint.restore(folder, self.strategy)
            written = [json.dumps(row) for row in self.rows]
        elif folder is not None:
            self.ledger.open(folder / "ledger.jsonl")
        if folder is not None and self.remembers and self.simulated:
            self.factory = self.factory.keeping(folder / PRIVATE)
        if self.data.simulated:
            self.federation.validate = self._validation()
        self.federation.on_step = record
        steps = max(1, len(self.strategy.plan) - self.strategy.done)
        try:
            self.runtime.run(self.strategy, self.factory, self.roster, steps)
        finally:
            self.ledger.close()
        if not self.strategy.sums.get("judged", 1):  # nobody has a row to be judged by
            self.strategy.sums = {}
        histograms = {
            name.removeprefix("histogram_"): counts
            for name, counts in self.strategy.sums.items()
            if name.startswith("histogram_")
        }
        scale = self.data.scale if histograms else None
        split = (
            self.data.describe_split()
            if self.simulated and hasattr(self.data, "describe_split")
            else None
        )
        by_size = (
            self.strategy.sums["by_size"].reshape(-1, 4)
            if "by_size" in self.strategy.sums
            else None
        )
        return Outcome(
            self.result(self._metrics()),
            self._model(),
            self.rows,
            histograms,
            scale,
            split,
            by_size,
            self.federation.schema,
        )

    def _validation(self) -> Callable[[list[Array]], dict[str, float]]:
        """Error on fresh users of the same population: public, so it may be shown after every step."""
        fresh = self.data.validation() if self.data.personal else None
        if fresh is None:
            return lambda shared: self.data.compare(self._model())
        client = self.factory.serving(fresh)
        if client.memory is not None and self.factory.private is not None:
            client.memory.keep_in(Path(self.factory.private), "fresh")

        def validate(shared: list[Array]) -> dict[str, float]:
            if client.memory is not None:
                client.memory.begin(self.strategy.done)
            errors, weights = [], []
            for block in client.judged():
                errors.append(client.own_errors(block, shared))
                weights.append(getattr(block, "judging", np.ones(len(block))))
            if client.memory is not None:
                client.memory.end()
            mean = float(np.average(np.concatenate(errors), weights=np.concatenate(weights)))
            return {self.data.error: mean + self.data.floor, **self.data.compare(self._model())}

        return validate

    def result(self, metrics: dict[str, float]) -> dict[str, Any]:
        """What result.json says of the steps taken so far, with these metrics."""
        cfg, n = self.cfg, self.data.n
        rounds = [
            row for row in self.rows if row["task"] == self.strategy.task and row["round"] > 0
        ]
        rounds_s = sum(row["seconds"] for row in rounds)
        guarantee = (
            "none"
            if math.isinf(self.ledger.epsilon)
            else self.strategy.guarantee or cfg.algo.guarantee
        )
        notes = [*self.strategy.notes, *getattr(self.data, "notes", []), *self._absences()]
        # Without a guarantee no number may look like one, whatever the ledger holds.
        relations = (
            self.strategy.neighbourings
            if guarantee in ("none", "worst-case")
            else (self.budget.neighbouring,)
        )
        cost = {
            name: math.inf if guarantee == "none" else self.ledger.epsilon_under(name)
            for name in relations
        }
        return {
            "algo": cfg.algo.name,
            "runtime": self.runtime.name,
            "seed": cfg.seed,
            "n_users": n,
            "n_nodes": len(self.nodes),
            "rounds": len(rounds),
            "metrics": metrics,
            **self._judged(),
            **({"notes": notes} if notes else {}),
            **({} if self.data.personal else {"heads": False}),
            "privacy": {
                "epsilon": cost[self.budget.neighbouring],
                "delta": self.ledger.delta,
                "target_epsilon": self.budget.epsilon,
                "neighbouring": self.budget.neighbouring,
                "guarantee": guarantee,
                "noise": self.federation.gate.source.name,
                "releases": len(self.ledger.releases),
                "epsilon_by_neighbouring": cost,
            },
            "time": {
                "total_s": self._told(time.perf_counter() - self.started),
                "setup_s": self._told(self.federation.ready - self.started),
                "rounds_s": rounds_s,
                **(
                    {"user_rounds_per_s": sum(row["users"] for row in rounds) / rounds_s}
                    if rounds and self.simulated
                    else {}
                ),
            },
            "peak_rss_mb": self._told_memory(peak_rss_mb()),
            "versions": versions(),
        }

    def _judged(self) -> dict[str, Any]:
        """How many held-out rows of how many users the metrics are means over, where rows judge."""
        sums = self.strategy.sums
        return (
            {"judged": {"rows": int(sums["judged"]), "users": int(sums["judged_users"])}}
            if "judged" in sums
            else {}
        )

    def _told(self, seconds: float) -> float:
        """A time as it is written down: how long real users' data take is not to be read off, so whole seconds for them."""
        return seconds if self.simulated else float(math.ceil(seconds))

    def _told_memory(self, megabytes: float) -> float:
        """The same of memory, which tells how many rows real users have: the next power of two."""
        return megabytes if self.simulated else 2.0 ** math.ceil(math.log2(megabytes))

    def _absences(self) -> list[str]:
        """Whether everybody was there, as a count."""
        missing = [row["missing_users"] for row in self.rows if row["missing_users"]]
        if not missing:
            return []
        return [
            f"Users were missing in {len(missing)} of {len(self.rows)} steps, at most {max(missing)} of {self.data.n} at a "
            "time: they contributed nothing, and noise and divisor stayed as planned."
        ]

    def _metrics(self) -> dict[str, float]:
        """Errors in the simulation, summed over all users at the end (not private, and marked so in the report)."""
        if not self.simulated:
            return {}
        metrics = {}
        sums = self.strategy.sums
        if sums:
            name, floor = self.data.error, self.data.floor
            mean = {
                key: sums[key] / sums.get("judged", sums["users"]) for key in RIVALS if key in sums
            }
            metrics = {name: mean["own"] + floor}
            if "oracle" in mean:
                metrics["excess"] = mean["own"] - mean["oracle"]
            metrics |= {f"{name}_{RIVALS[key]}": mean[key] + floor for key in mean if key != "own"}
            if name == "risk":
                metrics["accuracy"] = 1.0 - metrics["risk"]
            for rival in self.cfg.algo.get("rivals", {}):
                metrics |= self._rival(rival)
        return metrics | self.data.compare(self._model()) | self.strategy.diagnostics(self.data)

    def _rival(self, name: str) -> dict[str, float]:
        """Errors of what personal models are compared with, trained on the same rows with the whole budget; nothing is kept."""
        cfg = self.cfg.copy()
        cfg.algo, cfg.runtime = (
            cfg.algo.rivals[name],
            OmegaConf.load(CONF / "runtime" / "inprocess.yaml"),
        )
        metrics = Experiment(cfg, source=self.data).run().result["metrics"]
        error = self.data.error
        return {f"{error}_{name}": metrics[error]} | {
            key: value for key, value in metrics.items() if key.startswith(f"{error}_")
        }

    def _model(self) -> dict[str, Array]:
        """The published model by name; empty before there is one."""
        return (
            dict(zip(self.strategy.names, self.strategy.shared, strict=False))
            if self.strategy.started
            else {}
        )


def dimension(cfg: DictConfig, d: int) -> int:
    """k, the dimension of the representation: configured for a linear one; a network has what its layers have."""
    if kind_of(cfg) not in (LINEAR, TABLE) or cfg.model.k == "auto":
        return 1
    k: int = check_whole("model.k", cfg.model.k)
    if k > d:
        raise ConfigError.of("model.k", k, f"cannot be larger than the number of features, {d}")
    return k
