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
from privfed.linalg import Array, dist
from privfed.models.linear import population_error
from privfed.privacy.ledger import SENSITIVITY, Budget, Ledger
from privfed.privacy.mechanisms import NoiseGate
from privfed.privacy.noise import noise_source


@dataclass
class Outcome:
    """What a run leaves behind, before it is written."""

    result: dict[str, Any]
    model: dict[str, Array]
    rows: list[dict[str, Any]] = field(default_factory=list)
    histograms: dict[str, Array] = field(default_factory=dict)


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
        self.ranges = {str(i): users for i, users in enumerate(spread(self.data.n, self.runtime.nodes_for(self.data.n)))}
        privacy = {key: value for key, value in cfg.privacy.items() if key != "noise"}
        settings, source = PrivacySettings(**privacy), noise_source(cfg.privacy.noise, cfg.seed)
        self.ledger = Ledger(self.budget)
        self.federation = Federation(
            nodes={cid: last - first for cid, (first, last) in self.ranges.items()},
            d=self.data.d,
            k=k,
            seed=cfg.seed,
            gate=NoiseGate(self.ledger, source),
            privacy=settings,
            init=build(cfg.init.strategy)(),
            U_star=self.data.U_star if self.data.simulated else None,
        )
        self.strategy = build(cfg.algo.strategy)(federation=self.federation)
        self._client(Cohort.empty(self.data.m, self.data.d))  # a client's settings are checked before anything is written

    def make_client(self, cid: str) -> NumPyClient:
        """The client of one node, with only its own users' data."""
        prepare()
        return self._client(self.data.cohort(*self.ranges[cid]))

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
        self.runtime.run(self.strategy, self.make_client, list(self.ranges), steps)
        sums = self.strategy.sums
        histograms = {name: sums[f"histogram_{name}"] for name in ("own", "alone") if f"histogram_{name}" in sums}
        return Outcome(self._result(), self._model(), self.rows, histograms)

    def _validation(self) -> Callable[[list[Array]], dict[str, float]]:
        """Error on fresh users of the same population: public, so it may be shown after every step."""
        fresh = self.data.validation()
        client = self._client(fresh)

        def validate(shared: list[Array]) -> dict[str, float]:
            if not shared:
                return {}
            error = population_error(client.weights(fresh, shared), fresh.W_star)
            return {"mse": float(error.mean()) + self.data.R**2, **self._distance()}

        return validate

    def _result(self) -> dict[str, Any]:
        cfg, n = self.cfg, self.data.n
        rounds = [row for row in self.rows if row["round"] > 0]
        rounds_s = sum(row["seconds"] for row in rounds)
        guarantee = "none" if math.isinf(self.ledger.epsilon) else cfg.algo.guarantee
        # Without a guarantee no number may look like one, whatever the ledger holds.
        cost = {name: math.inf if guarantee == "none" else self.ledger.epsilon_under(name) for name in SENSITIVITY}
        return {
            "algo": cfg.algo.name,
            "runtime": self.runtime.name,
            "seed": cfg.seed,
            "n_users": n,
            "n_nodes": len(self.ranges),
            "rounds": len(rounds),
            "metrics": self._metrics(),
            "privacy": {
                "epsilon": cost[self.budget.neighbouring],
                "delta": self.budget.delta,
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
                **({"user_rounds_per_s": n * len(rounds) / rounds_s} if rounds else {}),
            },
            "peak_rss_mb": peak_rss_mb(),
            "versions": {"python": python_version()}
            | {name: version(name) for name in ("privfed", "flwr", "numpy", "scipy", "hydra-core")},
        }

    def _metrics(self) -> dict[str, float]:
        """Errors in the simulation, summed over all users at the end (not private, and marked so in the report)."""
        sums = self.strategy.sums
        if not sums:
            return {}
        noise = self.data.R**2
        own, alone, oracle = (sums[name] / sums["users"] for name in ("own", "alone", "oracle"))
        metrics = {
            "mse": own + noise,
            "excess": own - oracle,
            "mse_standalone": alone + noise,
            "mse_oracle": oracle + noise,
        }
        return metrics | self._distance()

    def _model(self) -> dict[str, Array]:
        """The published model by name."""
        return dict(zip(self.strategy.names, self.strategy.shared, strict=False))

    def _distance(self) -> dict[str, float]:
        """Principal-angle distance to the true representation, where both exist."""
        U = self._model().get("U")
        return {} if U is None or not self.data.simulated else {"dist": dist(U, self.data.U_star)}


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
