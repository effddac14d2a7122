"""Config -> data, pair, runtime -> result. The only place that wires things together."""

from __future__ import annotations

import inspect
import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

from flwr.client import NumPyClient
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from privfed.data.cohort import Cohort, spread
from privfed.errors import ConfigError, check_whole
from privfed.federation import Federation, PrivacySettings
from privfed.kernels import prepare
from privfed.linalg import Array
from privfed.models.errors import Scale
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.mechanisms import NoiseGate
from privfed.privacy.noise import noise_source

RIVALS = {"own": "", "alone": "standalone", "oracle": "oracle", "random": "random"}
"""Predictors that are judged at the end, and what their errors are called in the result."""


@dataclass
class Outcome:
    """What a run leaves behind, before it is written."""

    result: dict[str, Any]
    model: dict[str, Array]
    rows: list[dict[str, Any]] = field(default_factory=list)
    histograms: dict[str, Array] = field(default_factory=dict)
    scale: Scale | None = None


class Experiment:
    """One configured run: build it (cheap, checks everything, touches no data), then `run` it."""

    def __init__(self, cfg: DictConfig) -> None:
        self.cfg = cfg
        self.rows: list[dict[str, Any]] = []
        self.started = time.perf_counter()
        self.budget = Budget(cfg.eps, cfg.delta, cfg.neighbouring)
        self.runtime = build(cfg.runtime)()
        self.data = build(cfg.data)(seed=cfg.seed)
        k = check_whole("model.k", cfg.model.k)
        if k > self.data.d:
            raise ConfigError.of("model.k", k, f"cannot be larger than the number of features, {self.data.d}")
        self.nodes = {str(i): users for i, users in enumerate(spread(self.data.n, self.runtime.nodes_for(self.data.n)))}
        privacy = {key: value for key, value in cfg.privacy.items() if key != "noise"}
        settings, source = PrivacySettings(**privacy), noise_source(cfg.privacy.noise, cfg.seed)
        self.ledger = Ledger(self.budget)
        self.federation = Federation(
            nodes=self.nodes,
            d=self.data.d,
            k=k,
            seed=cfg.seed,
            gate=NoiseGate(self.ledger, source),
            privacy=settings,
            init=build(cfg.init.strategy)(),
            error=self.data.error,
            personal=self.data.simulated and self.data.personal,
            U_star=getattr(self.data, "U_star", None) if self.data.simulated else None,
        )
        self.strategy = build(cfg.algo.strategy)(federation=self.federation)
        self._client(Cohort.empty(self.data.m, self.data.d))  # a client's settings are checked before anything is written

    def make_client(self, cid: str) -> NumPyClient:
        """The client of one node, with only its own users' data."""
        prepare()
        users = self.nodes[cid]
        return self._client(self.data.cohort(users.start, users.stop))

    def _client(self, cohort: Cohort) -> Any:
        init = None if self.cfg.init.client is None else build(self.cfg.init.client)()
        return build(self.cfg.algo.client)(cohort=cohort, init=init)

    def run(self, folder: Path | None = None, on_step: Callable[[dict[str, Any]], None] = lambda row: None) -> Outcome:
        """Train, judge, and collect everything that is to be written; the ledger goes to the folder as it grows."""

        def record(row: dict[str, Any]) -> None:
            self.rows.append(row)
            on_step(row)

        if folder is not None:
            self.ledger.open(folder / "ledger.jsonl")
        if self.data.simulated:
            self.federation.validate = self._validation()
        self.federation.on_step = record
        steps = max(1, len(self.strategy.plan))
        self.runtime.run(self.strategy, self.make_client, list(self.nodes), steps)
        histograms = {
            name.removeprefix("histogram_"): counts
            for name, counts in self.strategy.sums.items()
            if name.startswith("histogram_")
        }
        scale = self.data.scale if histograms else None
        return Outcome(self._result(), self._model(), self.rows, histograms, scale)

    def _validation(self) -> Callable[[list[Array]], dict[str, float]]:
        """Error on fresh users of the same population: public, so it may be shown after every step."""
        if not self.data.personal:
            return lambda shared: self.data.compare(self._model())
        fresh = self.data.validation()
        client = self._client(fresh)

        def validate(shared: list[Array]) -> dict[str, float]:
            errors = fresh.truth.errors(client.weights(fresh, shared))
            return {self.data.error: float(errors.mean()) + self.data.floor, **self.data.compare(self._model())}

        return validate

    def _result(self) -> dict[str, Any]:
        cfg, n = self.cfg, self.data.n
        rounds = [row for row in self.rows if row["task"] == self.strategy.task and row["round"] > 0]
        rounds_s = sum(row["seconds"] for row in rounds)
        guarantee = "none" if math.isinf(self.ledger.epsilon) else self.strategy.guarantee or cfg.algo.guarantee
        # Without a guarantee no number may look like one, whatever the ledger holds.
        relations = self.strategy.neighbourings if guarantee in ("none", "worst-case") else (self.budget.neighbouring,)
        cost = {name: math.inf if guarantee == "none" else self.ledger.epsilon_under(name) for name in relations}
        return {
            "algo": cfg.algo.name,
            "runtime": self.runtime.name,
            "seed": cfg.seed,
            "n_users": n,
            "n_nodes": len(self.nodes),
            "rounds": len(rounds),
            "metrics": self._metrics(),
            **({"notes": self.strategy.notes} if self.strategy.notes else {}),
            **({} if self.data.personal else {"heads": False}),
            "privacy": {
                "epsilon": cost[self.budget.neighbouring],
                "delta": self.ledger.delta,
                "target_epsilon": self.budget.epsilon,
                "neighbouring": self.budget.neighbouring,
                "guarantee": guarantee,
                "noise": cfg.privacy.noise,
                "releases": len(self.ledger.releases),
                "epsilon_by_neighbouring": cost,
            },
            "time": {
                "total_s": time.perf_counter() - self.started,
                "setup_s": self.federation.ready - self.started,
                "rounds_s": rounds_s,
                **({"user_rounds_per_s": sum(row["users"] for row in rounds) / rounds_s} if rounds else {}),
            },
            "peak_rss_mb": peak_rss_mb(),
            "versions": {"python": python_version()}
            | {name: version(name) for name in ("privfed", "flwr", "numpy", "scipy", "hydra-core")},
        }

    def _metrics(self) -> dict[str, float]:
        """Errors in the simulation, summed over all users at the end (not private, and marked so in the report)."""
        if not self.data.simulated:
            return {}
        metrics = {}
        sums = self.strategy.sums
        if sums:
            name, floor = self.data.error, self.data.floor
            mean = {key: sums[key] / sums["users"] for key in RIVALS if key in sums}
            metrics = {name: mean["own"] + floor, "excess": mean["own"] - mean["oracle"]}
            metrics |= {f"{name}_{RIVALS[key]}": mean[key] + floor for key in mean if key != "own"}
            if name == "risk":
                metrics["accuracy"] = 1.0 - metrics["risk"]
        return metrics | self.data.compare(self._model()) | self.strategy.diagnostics(self.data)

    def _model(self) -> dict[str, Array]:
        """The published model by name; empty before there is one."""
        return dict(zip(self.strategy.names, self.strategy.shared, strict=False)) if self.strategy.started else {}


def peak_rss_mb() -> float:
    """Most memory this process has held; Linux knows it since the last exec, elsewhere since the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def build(node: DictConfig) -> Callable[..., Any]:
    """The constructor named by `_target_` with the configured arguments; what does not fit is a ConfigError."""
    try:
        factory = instantiate(node, _partial_=True)
    except InstantiationException as error:
        raise ConfigError(
            f"{node.get('_target_')}: cannot be made: {' '.join(str(error.__cause__ or error).split())}"
        ) from error
    if not callable(factory):
        raise ConfigError(f"{OmegaConf.to_container(node)}: has no _target_ to say what to make")

    def make(**more: Any) -> Any:
        try:
            inspect.signature(factory.func).bind(**factory.keywords, **more)
        except TypeError as error:
            raise ConfigError(f"{node._target_}: its settings do not fit: {error}") from error
        return factory(**more)

    return make
