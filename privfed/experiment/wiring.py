"""Wiring: from a configuration to data, strategy, clients and runtime, in this one place."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from privfed.algorithm.plan_for_nodes import plan_for_nodes
from privfed.config.composition import LINEAR, TABLE, model_kind
from privfed.config.instantiation import algorithm_settings, build, filled
from privfed.data.source import DataSource
from privfed.experiment import checkpoint
from privfed.experiment.evaluation import Evaluation
from privfed.experiment.judgement import Judgement
from privfed.experiment.result import Outcome, result_of
from privfed.experiment.run_account import Outside, RunAccount, account_of, keep_account_path
from privfed.experiment.secure_terms import nodes_noise, secure_terms
from privfed.experiment.theory import follow_theory
from privfed.federation.client_factory import BY_TOKEN, SEEDED, ClientFactory
from privfed.federation.federation import Federation
from privfed.federation.roster import Roster
from privfed.federation.step_record import StepRecord
from privfed.federation.user_state import PRIVATE, keep_fingerprint, keep_run
from privfed.foundation.errors import ConfigError, PrivfedError, check_whole
from privfed.foundation.linalg import Array
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.noise import NoiseSource, noise_source
from privfed.privacy.settings import NOBODY, TRUSTED, PrivacySettings, check_delta
from privfed.runtimes.runtime import Runtime

Row = dict[str, Any]


class Experiment:
    """One configured run.

    Building it is cheap and checks everything; of the data, only a table is read. Then `run` it.

    Args:
        cfg: resolved configuration.
        roster: registered users; None spreads simulated users over `runtime.nodes`.
        source: data that were read before; None makes them from the configuration.

    Raises:
        ConfigError: the configuration is not allowed.
    """

    def __init__(
        self, cfg: DictConfig, roster: Roster | None = None, source: DataSource | None = None
    ) -> None:
        self.cfg = cfg
        self.rows: list[Row] = []
        self.seconds: list[float] = []
        """Time of each step of this process, which tells how many rows users have."""
        self.started = time.perf_counter()
        self.budget = Budget(cfg.eps, cfg.delta, cfg.neighbouring)
        cfg.neighbouring = self.budget.neighbouring  # an alias is neither saved nor shown
        self.runtime: Runtime = build(cfg.runtime, "runtime")()
        said: list[str] = []
        if cfg.get("theory") is not None:
            source = source or build(cfg.data, "data")(seed=cfg.seed)
            said = follow_theory(cfg, source, representation_dimension(cfg, source.d))
        self.factory = ClientFactory.of(cfg, source)
        self.data = self.factory.source
        k = representation_dimension(cfg, self.data.d)
        self.roster = roster or Roster.of_simulated(
            self.data.n, self.runtime.nodes_for(self.data.n)
        )
        self.nodes = self.roster.nodes
        if self.roster.users != self.data.n:
            allowed = f"but {self.roster.users} users are registered"
            raise ConfigError.of("data.n", self.data.n, allowed)
        self.simulated = self.data.simulated and self.roster.simulated
        """Whether no real user takes part: errors may be published, and noise may be repeatable."""
        if not self.simulated and math.isinf(self.budget.epsilon):
            allowed = "releases real users' sums without noise; it is for simulations only"
            raise ConfigError.of("eps", "inf", allowed)
        self.real = self.data.real or not self.roster.simulated
        """Whether rows are those of real users, even if this run is a simulation with them."""
        keep_account_path(cfg)
        privacy = PrivacySettings(
            **{str(key): value for key, value in cfg.privacy.items() if key != "noise"}
        )
        noise = noise_source(cfg.privacy.noise, cfg.seed, self.simulated)
        terms = None
        if privacy.trust != TRUSTED:
            if self.runtime.launches and privacy.trust == NOBODY:
                allowed = f"is not for runtime={self.runtime.name}; use inprocess, ray or grpc"
                raise ConfigError.of("privacy.trust", NOBODY, allowed)
            terms = secure_terms(self.roster, privacy, cfg.seed, noise)
            noise = nodes_noise(noise, terms, privacy)
        self.ledger = Ledger(self.budget, dated=self.simulated)
        self.federation = Federation(
            nodes=self.nodes,
            d=self.data.d,
            k=k,
            seed=cfg.seed,
            gate=NoiseGate(self.ledger, noise),
            privacy=privacy,
            identities=self.roster.identities(self.data.named),
            init=self._make_init(),
            error=self.data.error,
            personal=self.simulated and self.data.personal,
            publish=not self.simulated,
            schema=self.data.schema,
            U_star=self.data.U_star if self.simulated else None,
            secure=terms if privacy.trust == NOBODY else None,
            **vars(self.runtime.patience),
        )
        self.strategy = self._make_strategy(self.federation)
        self.notes = [*said, *self._delta_notes()]
        self.account: RunAccount = Outside("nothing was released to anybody")
        """Account of all releases from these data; opened when the run starts."""
        self.charged = True
        """Whether releases are those of a run, rather than a checker's repetitions."""
        self.factory = self.factory.planned(plan_for_nodes(self.strategy))
        if self.federation.secure is not None:
            how = SEEDED if noise.repeatable else BY_TOKEN
            self.factory = replace(self.factory, secure=how, given_source=self.data)
        self.watches = True
        """Whether fresh public users are judged after every step, where data are simulated."""
        # Settings of clients are checked before anything is written.
        trial = self.factory.serving(self.data.empty())
        check_tasks(self.strategy, trial)
        self.takes_rows: bool = trial.takes_rows
        """Whether real users can take part, who bring rows of tables."""
        self.remembers = trial.memory is not None
        """Whether users keep state from round to round."""

    def _make_init(self) -> Any:
        return build(filled(self.cfg.init.strategy, self.cfg.init), "init")()

    def _make_strategy(self, federation: Federation) -> Any:
        settings = filled(self.cfg.algo.strategy, algorithm_settings(self.cfg))
        strategy = build(settings, "algo")(federation=federation)
        strategy.prepare()
        return strategy

    def _delta_notes(self) -> list[str]:
        """Return a note on a large delta, or refuse it, if delta is a part of the claim."""
        costs = [cost for step in self.strategy.plan for _, cost in self.strategy.costs(step)]
        if math.isinf(self.budget.epsilon) or not any(cost.mu > 0 for cost in costs):
            return []
        return check_delta(self.budget.delta, self.data.n, self.federation.privacy.force_delta)

    @property
    def exposes(self) -> bool:
        """Whether the published model would be a simulation on the rows of real users."""
        return self.real and self.federation.gate.source.repeatable and bool(self.strategy.plan)

    def renewed(self, source: NoiseSource | None = None) -> Experiment:
        """Return the same experiment with its own ledger, gate and strategy.

        Settings, data and roster are shared. Nothing was released yet.

        Args:
            source: source of noise; None takes this experiment's.
        """
        twin = copy.copy(self)
        twin.rows, twin.seconds, twin.charged = [], [], False
        twin.ledger = Ledger(self.budget, dated=self.simulated)
        gate = NoiseGate(twin.ledger, source or self.federation.gate.source)
        twin.federation = replace(self.federation, gate=gate, init=self._make_init())
        twin.strategy = self._make_strategy(twin.federation)
        return twin

    def run(
        self,
        folder: Path | None = None,
        on_step: Callable[[Row], None] = lambda row: None,
        resume: bool = False,
    ) -> Outcome:
        """Train, evaluate, and return everything that has to be written.

        Args:
            folder: folder of the run, for ledger and checkpoint; None keeps none.
            on_step: called with the record of each step.
            resume: continue the interrupted run in the folder.
        """
        written: list[str] = []

        def keep(record: StepRecord) -> None:
            self.seconds.append(float(record.seconds or 0.0))
            if not self.simulated:
                record.seconds = None
            row = record.as_row()
            self.rows.append(row)
            if folder is not None:
                written.append(json.dumps(row))
                checkpoint.save(folder, self.strategy, written)
            on_step(row)

        if folder is not None and not self.simulated:
            self.factory = replace(self.factory, run=keep_run(folder, self.factory.run, resume))
        if folder is not None and self.data.fingerprint is not None:
            keep_fingerprint(folder, self.data.fingerprint, resume)
        try:
            if folder is not None and resume:
                self.rows = checkpoint.restore(folder, self.strategy)
                written = [json.dumps(row) for row in self.rows]
            elif folder is not None:
                self.ledger.open(folder / "ledger.jsonl")
            if self.charged:
                self.account = account_of(self, folder)
                self.account.reserve()
                self.ledger.on_charge = self.account.record
            if folder is not None and self.remembers and self.simulated:
                self.factory = self.factory.keeping(folder / PRIVATE)
            if self.federation.secure is not None and not self.federation.gate.source.repeatable:
                terms = replace(self.federation.secure, run=self.factory.run)
                self.federation.secure = terms
            if self.federation.secure is not None:
                told = self.federation.secure.to_json()
                self.factory = replace(self.factory, terms=told, given_source=self.data)
            evaluation = Evaluation(self)
            if self.data.simulated and self.watches:
                self.federation.validate = evaluation.validator()
            self.federation.on_step = keep
            if folder is not None:
                place = folder
                self.federation.before_release = lambda size: checkpoint.reserve(
                    place, self.strategy, written, size
                )
            steps = max(1, len(self.strategy.plan) - self.strategy.done)
            self.runtime.run(self.strategy, self.factory, self.roster, steps)
        finally:
            self.ledger.close()
        return evaluation.outcome()

    def result(
        self, metrics: dict[str, float], judgement: Judgement | None = None
    ) -> dict[str, Any]:
        """Return what result.json says of the steps taken so far, with these metrics."""
        return result_of(self, metrics, judgement).as_dict()

    def keep_record(self, record: StepRecord) -> None:
        """Add the record of a step to those of the run."""
        self.rows.append(record.as_row())

    def model(self) -> dict[str, Array]:
        """Return the published model by name; empty if there is none yet."""
        if not self.strategy.started:
            return {}
        return dict(zip(self.strategy.publishes, self.strategy.shared, strict=False))


def representation_dimension(cfg: DictConfig, d: int) -> int:
    """Return k, the dimension of the representation; 1 if layers or the data determine it."""
    if model_kind(cfg) not in (LINEAR, TABLE) or cfg.model.k == "auto":
        return 1
    k: int = check_whole("model.k", cfg.model.k)
    if k > d:
        raise ConfigError.of("model.k", k, f"cannot be larger than the number of features, {d}")
    return k


def check_tasks(strategy: Any, client: Any) -> None:
    """Raise unless the client has a task for every phase of the strategy."""
    known = client.tasks()
    for task in dict.fromkeys(step.task for step in strategy.plan):
        if task not in known:
            names = ", ".join(sorted(known)) or "none"
            raise PrivfedError(
                f"{type(strategy).__name__} asks for task {task!r}, but {type(client).__name__} "
                f"has {names}; mark the method with @task"
            )
