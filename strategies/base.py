"""What every strategy shares: a plan of steps, the server-side clip, the noise gate, the public divisor.

A run is a list of steps. Each step is one Flower round: announce, collect the nodes' sums, clip them again, add up, release
through the gate, and let the algorithm update its shared parameters from the released mean.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from privfed.errors import ConfigError, PrivfedError, check_whole
from privfed.federation import Federation, check_clip
from privfed.linalg import Array
from privfed.privacy import quantile
from privfed.privacy.mechanisms import clip

Reply = TypeVar("Reply", FitRes, EvaluateRes)


@dataclass(frozen=True)
class Step:
    """One Flower round. mu: cost of releasing the sum (0: not released); measure: cost of the next clip norm (0: kept)."""

    task: str
    round: int
    mu: float
    measure: float = 0.0

    @property
    def question(self) -> str:
        """How the clip norm is measured: from nothing before a task starts, from the last one while rounds go on."""
        return "" if not self.measure else "below" if self.mu else "histogram"


class PrivateStrategy(Strategy):
    """Base of all algorithms. One writes `task`, `shape` and `step`, and gets privacy, runtimes and reports."""

    task = "gradient"

    names: tuple[str, ...] = ("U",)
    """Names of the shared arrays in the published model."""
    uses_init = True
    """Whether the configured initialiser comes before the first round."""

    def __init__(self, federation: Federation, rounds: int, clip: float | str) -> None:
        self.federation, self.rounds = federation, check_whole("rounds", rounds)
        self.init: Any = federation.init if self.uses_init else None
        init = self.init
        asked = federation.privacy.clip
        self.clips: dict[str, float | str] = {self.task: check_clip("algo.clip", clip if asked is None else asked)}
        if init is not None and init.task is not None:
            self.clips[init.task] = quantile.AUTO if asked == quantile.AUTO else check_clip("init.clip", init.clip)
        self.shared = self.initial()
        self.plan = self.steps()
        self.sums: dict[str, Any] = {}
        self._started = 0.0
        costs = [mu for step in self.plan for mu in (step.mu, step.measure) if mu]
        federation.gate.ledger.check(costs, f"the {len(costs)} planned releases")

    # What an algorithm writes.

    def initial(self) -> list[Array]:
        """The shared parameters before anything is released: public."""
        return [] if self.init is None else self.init.before(self.federation)

    def shape(self) -> tuple[int, ...]:
        """Shape of a round's sum; anything else that arrives is dropped."""
        return self.shared[0].shape

    def step(self, t: int, mean: Array) -> None:
        """The server's update in round t = 1..T, from the released mean: sets `self.shared`."""
        raise TypeError(f"{type(self).__name__} does not say what a round does")

    # What all share.

    def steps(self) -> list[Step]:
        """Initialiser, then T rounds; before a task whose clip norm is `auto`, a step that only measures it."""
        settings, total = self.federation.privacy, self.federation.gate.ledger.budget.mu
        if settings.noise_multiplier is not None and math.isinf(total):
            raise ConfigError.of(
                "privacy.noise_multiplier", settings.noise_multiplier, "eps=inf asks for no noise; give one of them"
            )
        tasks = ([self.init.task] if self.init is not None and self.init.task else []) + [self.task]
        auto = [task for task in tasks if self.clips[task] == quantile.AUTO]
        # Every auto task is measured before it starts; rounds measure again while they run, but for the last. The first
        # measurements share one half of the clip norms' budget, the others the other half.
        again = self.rounds - 1 if self.task in auto else 0
        clip_share = settings.clip_share if auto else 0.0
        first_share = clip_share / 2 if again else clip_share
        init_share = (1 - clip_share) * settings.init_share if len(tasks) > 1 else 0.0

        def mu(share: float, releases: int) -> float:
            if settings.noise_multiplier is not None:
                return 1.0 / settings.noise_multiplier
            return total * math.sqrt(share / releases)

        steps = []
        for task in tasks:
            times, share = (self.rounds, 1 - clip_share - init_share) if task == self.task else (1, init_share)
            if task in auto:
                steps.append(Step(task, 0, 0.0, mu(first_share, len(auto))))
            for t in range(1, times + 1):
                measure = mu(clip_share - first_share, again) if task in auto and t < times else 0.0
                steps.append(Step(task, t if task == self.task else 0, mu(share, times), measure))
        return steps

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Wait for the whole registered population, then start from public parameters."""
        nodes = self.federation.nodes
        if not client_manager.wait_for(len(nodes), self.federation.join_timeout):
            raise PrivfedError(
                f"only {client_manager.num_available()} of {len(nodes)} nodes joined in time; nothing was released"
            )
        self.federation.ready = time.perf_counter()
        return ndarrays_to_parameters(self.shared)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Announce the step to every registered node: shared parameters, task, clip norm, seed."""
        if not self.plan:
            return []
        self._started = time.perf_counter()
        step = self.plan[server_round - 1]
        bound = self.clips[step.task]
        config: dict[str, Scalar] = {
            "task": step.task,
            "round": step.round,
            "seed": self.federation.seed,
            "clip": 0.0 if isinstance(bound, str) else float(bound),
            "release": step.mu > 0,
            "measure": step.question,
        }
        return [(node, FitIns(parameters, config)) for node in self._registered(client_manager)]

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters, dict[str, Scalar]]:
        """Clip again, add up, release, divide by the public n, update."""
        self._stop_on(failures)
        step, n, gate = self.plan[server_round - 1], self.federation.n, self.federation.gate
        row: dict[str, Any] = {"step": server_round, "task": step.task, "round": step.round}
        measure = quantile.MEASURES.get(step.question)
        shapes, bounds = [], []
        if step.mu:
            shapes.append(self.init.shape(self.federation) if step.task != self.task else self.shape())
            bounds.append(float(self.clips[step.task]))
        if measure is not None:
            shapes.append((measure.size,))
            bounds.append(measure.bound)
        totals, present = self._totals(results, shapes, bounds)
        if step.mu:
            row["clip"] = bounds[0]
            mean = gate.release(step.task, totals[0], bound=bounds[0], mu=step.mu, round=step.round) / n
            row["noise_std"] = gate.ledger.releases[-1].std / n
            if step.task == self.task:
                self.step(step.round, mean)
            else:
                self.shared = self.init.start(self.federation, mean)
        if measure is not None:
            counts = gate.release(f"{step.task} clip norm", totals[-1], bound=bounds[-1], mu=step.measure, round=step.round)
            last = bounds[0] if step.mu else 0.0
            self.clips[step.task] = measure.clip(counts, n, self.federation.privacy.quantile, last)
        if not all(np.isfinite(x).all() for x in self.shared):
            raise PrivfedError(f"the shared parameters stopped being finite in step {server_round} ({step.task})")
        row |= {"epsilon": gate.ledger.epsilon, "missing_users": n - present}
        row["seconds"] = time.perf_counter() - self._started
        if self.federation.validate is not None:
            row |= self.federation.validate(self.shared)
        self.federation.on_step(row)
        return ndarrays_to_parameters(self.shared), {}

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """After the last step of a simulation, ask every node for its users' summed errors (not private)."""
        if server_round < len(self.plan) or self.federation.U_star is None:
            return []
        config: dict[str, Scalar] = {"U_star": self.federation.U_star.tobytes()}
        return [(node, EvaluateIns(parameters, config)) for node in self._registered(client_manager)]

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Add up the simulation's errors."""
        self._stop_on(failures)
        for _, result in self._in_order(results):
            for name, value in {"users": result.num_examples, **result.metrics}.items():
                number = np.frombuffer(value) if isinstance(value, bytes) else value
                self.sums[name] = self.sums.get(name, 0) + number
        return None, {}

    def evaluate(self, server_round: int, parameters: Parameters) -> None:
        """Nothing here: fresh public users are judged in `aggregate_fit`, where the row of the step is written."""

    def _registered(self, client_manager: ClientManager) -> list[ClientProxy]:
        nodes = client_manager.all()
        return [nodes[cid] for cid in self.federation.nodes if cid in nodes]

    def _in_order(self, results: Sequence[tuple[ClientProxy, Reply]]) -> Iterator[tuple[int, Reply]]:
        """Registered users and first answer of every registered node, in a fixed order: arrival changes no last digit."""
        answers = {node.cid: result for node, result in reversed(results)}
        return ((users, answers[cid]) for cid, users in self.federation.nodes.items() if cid in answers)

    def _stop_on(self, failures: list[Any]) -> None:
        if failures and self.federation.strict:
            raise failures[0] if isinstance(failures[0], BaseException) else PrivfedError(str(failures[0]))

    def _totals(
        self, results: list[tuple[ClientProxy, FitRes]], shapes: list[tuple[int, ...]], bounds: list[float]
    ) -> tuple[list[Array], int]:
        """Sums over nodes, each clipped at (registered users) x (clip norm), and the number of users behind them.

        What has the wrong shape or is not finite is dropped: its users contribute zero.
        """
        totals = [np.zeros(shape) for shape in shapes]
        present = 0
        for users, result in self._in_order(results):
            arrays = parameters_to_ndarrays(result.parameters)
            fits = [a.shape for a in arrays] == shapes and all(a.dtype == np.float64 and np.isfinite(a).all() for a in arrays)
            if not fits:
                continue
            present += users
            for total, array, bound in zip(totals, arrays, bounds, strict=True):
                total += clip(array, users * bound)
        return totals, present
