"""The base of all strategies: takes every step of an algorithm's plan through one Flower round.

Announce, collect the nodes' sums, clip them again, add up, release through the gate, and let the algorithm update its shared
parameters from the released mean over the public number of users.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    ndarrays_to_parameters,
)
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from privfed.algorithm.phases import Step
from privfed.algorithm.replies import judgements, totals_of
from privfed.algorithm.steps_of import Algorithm, Clip
from privfed.federation.federation import Federation
from privfed.foundation.errors import PrivfedError, RefutedError
from privfed.foundation.linalg import Array
from privfed.privacy.accounting import GaussianRelease, Release
from privfed.privacy.clip_norms import MEASURES

RESUME = "what was released is kept; go on with --resume"


class PrivateStrategy(Algorithm, Strategy):
    """A Flower strategy; what an algorithm writes is listed in `privfed/algorithm/steps_of.py`."""

    def __init__(
        self, federation: Federation, rounds: int, clip: Clip | Mapping[str, Clip]
    ) -> None:
        super().__init__(federation, rounds, clip)
        self.done = 0
        """Steps of the plan that are over, in this process or, when a run was resumed, before it."""
        self.sums: dict[str, Any] = {}
        self._clock = 0.0

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Wait for the whole registered population, then start from public parameters."""
        nodes = self.federation.nodes
        complete = client_manager.wait_for(len(nodes), math.ceil(self.federation.join_timeout))
        # A resumed run may go on without those it had lost before; its steps look for a quorum themselves.
        if not complete and not (
            self.done
            and self._present(client_manager) >= self.federation.quorum * self.federation.n
        ):
            raise PrivfedError(
                f"only {client_manager.num_available()} of {len(nodes)} nodes joined within "
                f"{self.federation.join_timeout:g} s; {RESUME if self.done else 'nothing was released'}"
            )
        self.federation.ready = time.perf_counter()
        return ndarrays_to_parameters(self.shared)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Announce the step to every registered node that has users to ask: parameters, task, clip norms, seed."""
        if self.done >= len(self.plan):
            return []
        self._clock = time.perf_counter()
        step = self.plan[self.done]
        asked = self.federation.asked(self.groups, step.group)
        self._wait_for_quorum(client_manager, asked)
        ins = FitIns(ndarrays_to_parameters(self.announced(step)), self.announcement(step))
        return [(node, ins) for node in self._registered(client_manager) if asked[node.cid]]

    def announcement(self, step: Step) -> dict[str, Scalar]:
        """The settings of a step, as users are told them."""
        bounds = [self.clips[name] for name in self.sums_of(step)]
        config: dict[str, Scalar] = {
            "step": self.done + 1,
            "task": step.task,
            "round": step.round,
            "seed": self.federation.seed,
            "clip": np.array(
                [0.0 if isinstance(bound, str) else float(bound) for bound in bounds]
            ).tobytes(),
            "release": step.releases,
            "measure": step.question,
        }
        if step.group is not None:
            config |= {"users": self.federation.n, "groups": self.groups, "group": step.group}
        return config

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters, dict[str, Scalar]]:
        """Clip again, add up, release, divide by the public number of users, update."""
        self._stop_on(failures)
        step, ledger = self.plan[self.done], self.federation.gate.ledger
        asked = self.federation.asked(self.groups, step.group)
        n = sum(asked.values())
        parts = self.sums_of(step)
        measure = MEASURES.get(step.question)
        wanted = (
            [(shape, float(self.clips[name])) for name, shape in parts.items()]
            if step.releases
            else []
        )
        if measure is not None:
            wanted += [((measure.size,), measure.bound)] * len(parts)
        totals, present = totals_of(results, wanted, asked, self.bounded, self.done + 1)
        if present < self.federation.quorum * n:
            raise PrivfedError(
                f"only {present} of {n} users answered in step {self.done + 1}; it was not released, {RESUME}"
            )
        row: dict[str, Any] = {
            "step": self.done + 1,
            "task": step.task,
            "round": step.round,
            "users": n,
        }
        if step.releases:
            made = len(ledger.releases)
            self._update(step, dict(zip(parts, totals, strict=False)), n)
            first = self._charged(step, ledger.releases[made:])
            if isinstance(first, GaussianRelease):
                row |= {"clip": first.clip, "noise_std": first.std / (first.sampling * n)}
        if measure is not None:
            self._measure(step, dict(zip(parts, totals[-len(parts) :], strict=True)), n)
        if not all(np.isfinite(x).all() for x in self.shared):
            raise PrivfedError(
                f"the shared parameters stopped being finite in step {self.done + 1} ({step.task})"
            )
        self._finish(row | {"epsilon": ledger.epsilon, "missing_users": n - present})
        return ndarrays_to_parameters(self.shared), {}

    def _update(self, step: Step, sums: dict[str, Array], n: int) -> None:
        """The algorithm's own step, or the initialiser's."""
        if step.task == self.task:
            self.step(step.round, *self.release(step, sums, n))
            return
        mean = self.init.release(
            self.federation, step, sums[step.task], float(self.clips[step.task]), n
        )
        self.shared = self.init.step(self.federation, step.round, self.shared, mean)
        self.started = step.round == self.init.rounds

    def _charged(self, step: Step, releases: Sequence[Release]) -> Release | None:
        """The first of the releases that a step made; one that made none has taken what was not paid for."""
        if not releases:
            raise RefutedError(
                f"step {self.done + 1} ({step.task}) used users' data without a release in the ledger; stopped"
            )
        return releases[0]

    def _measure(self, step: Step, counts: dict[str, Array], n: int) -> None:
        """The next clip norms, from the released counts of contribution norms."""
        measure, mu = MEASURES[step.question], self._mu(step.measure, list(counts))
        for name, count in counts.items():
            answer = self.federation.gate.release(
                f"{name} clip norm",
                count,
                bound=measure.bound,
                mu=mu,
                round=step.round,
                group=step.group,
            )
            last = float(self.clips[name]) if step.releases else 0.0
            self.clips[name] = measure.clip(answer, n, self.federation.privacy.quantile, last)

    def _finish(self, row: dict[str, Any]) -> None:
        """The step is over: judge what is published, and tell whoever keeps the record."""
        row["seconds"] = time.perf_counter() - self._clock
        self.done += 1
        if self.federation.validate is not None and self.started:
            row |= self.federation.validate(self.shared)
        self.federation.on_step(row)

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """After the last step: send the published model, and in a simulation ask for the users' summed errors (not private)."""
        judged, sent = self.federation.personal, self.federation.publish
        if self.done < len(self.plan) or not (judged or sent):
            return []
        ins = EvaluateIns(ndarrays_to_parameters(self.shared), {"judge": judged})
        return [(node, ins) for node in self._registered(client_manager)]

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Add up the simulation's errors."""
        self._stop_on(failures)
        if self.federation.personal:
            self.sums = judgements(results, self.federation.asked(0, None))
        return None, {}

    def evaluate(self, server_round: int, parameters: Parameters) -> None:
        """Nothing here: fresh public users are judged in `aggregate_fit`, where the row of the step is written."""

    def _registered(self, client_manager: ClientManager) -> list[ClientProxy]:
        nodes = client_manager.all()
        return [nodes[cid] for cid in self.federation.nodes if cid in nodes]

    def _present(self, client_manager: ClientManager) -> int:
        """Users behind the nodes that are connected."""
        return sum(
            len(self.federation.nodes[node.cid]) for node in self._registered(client_manager)
        )

    def _wait_for_quorum(self, client_manager: ClientManager, asked: dict[str, int]) -> None:
        """Nobody is asked before enough users can answer; who stays away too long stops the run, with nothing lost."""
        enough = self.federation.quorum * sum(asked.values())
        deadline = time.monotonic() + self.federation.rejoin_timeout

        def present() -> int:
            return sum(asked[node.cid] for node in self._registered(client_manager))

        while present() < enough or not present():
            if time.monotonic() > deadline:
                raise PrivfedError(
                    f"only {present()} of {sum(asked.values())} users are connected; {RESUME}"
                )
            time.sleep(0.05)

    def _stop_on(self, failures: list[Any]) -> None:
        """Stop on any failure if strict, otherwise on what a runtime has found to be a mistake and no lost node."""
        grave = (
            failures
            if self.federation.strict
            else [failure for failure in failures if isinstance(failure, PrivfedError)]
        )
        if grave:
            raise grave[0] if isinstance(grave[0], BaseException) else PrivfedError(str(grave[0]))
