"""The server side of every algorithm: takes each step of the plan through one Flower round.

Announce the step, collect the sums of the nodes, clip them again, add them up, release the total
through the noise gate, and let the phase update the shared parameters with what was released.

What an algorithm writes (nothing else is meant to be overridden):

    publishes      names of the arrays of the published model
    relations      neighbouring relations for which its sensitivities are known
    guarantee      what the guarantee rests on, where that depends on settings
    start()        the shared parameters before anything is released: public
    phases()       what is asked, what is released, and how the model is updated, in order
    notes()        what a reader of the result should know besides the numbers
    forecast()     what public settings alone let expect of the run
    memory()       what later rounds need besides the shared parameters: public arrays by name
    recall()       restores the memory of an interrupted run
    diagnostics()  further figures of a simulation
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
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

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.initialiser import Initialiser
from privfed.algorithm.masked_steps import MaskedSteps, check_maskable
from privfed.algorithm.phases import (
    EACH,
    LAST,
    GaussianStatistic,
    Phase,
    Step,
    configured_clips,
    current,
    plan,
)
from privfed.algorithm.replies import check_shapes, judgements, totals_of
from privfed.federation.federation import Federation
from privfed.federation.step_record import StepRecord
from privfed.foundation.errors import (
    ConfigError,
    PrivfedError,
    RefutedError,
    TooFewAnswersError,
)
from privfed.foundation.linalg import Array
from privfed.privacy.accounting import GaussianRelease, Planned, Release
from privfed.privacy.adaptive_clipping import AUTO, MEASURES
from privfed.privacy.bounds import Bound
from privfed.privacy.clipping import PROJECTIONS, clamp, clip
from privfed.privacy.neighbouring import REPLACE_ONE, ZERO_OUT
from privfed.privacy.settings import Clip

RESUME = "what was released is kept; go on with --resume"


class PrivateStrategy(Strategy):
    """Runs the phases of an algorithm under the federation's privacy budget.

    A subclass stores its settings in its constructor, in any order, and describes the algorithm in
    `phases`. `prepare` is called once afterwards, before the first round.
    """

    publishes: tuple[str, ...] = ("U",)
    starts_from: tuple[str, ...] = ()
    """Names of the arrays that the initialiser has to give; empty: those that are published."""
    relations: tuple[str, ...] = (REPLACE_ONE, ZERO_OUT)
    guarantee: str | None = None

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.shared: list[Array] = []
        """The shared parameters: public, and after the last step the published model."""
        self.clips: dict[str, Clip] = {}
        """Current clip norm of each sum; `auto` until it was measured."""
        self.plan: list[Step] = []
        """Every step of the run with its cost."""
        self.done = 0
        """Number of finished steps, including those before the run was resumed."""
        self.started = False
        """Whether `shared` holds a model, rather than something that is still being prepared."""
        self.sums: dict[str, Any] = {}
        """Errors of a simulation, summed over users after the last step."""
        self._masked: MaskedSteps | None = None
        self._clock = 0.0

    # What an algorithm writes.

    def start(self) -> list[Array]:
        """Return the public start of the shared parameters; the initialiser's by default."""
        return self.initialiser.start(self.federation)

    def phases(self) -> list[Phase]:
        """Return the phases of the algorithm; an empty list releases nothing."""
        raise PrivfedError(f"{type(self).__name__} has no phases(): what are users asked for?")

    def notes(self) -> list[str]:
        """Return what a reader of the result should know besides the numbers."""
        return []

    def forecast(self) -> list[str]:
        """Return what public settings alone let expect of the run, for `--plan`."""
        return []

    def memory(self) -> dict[str, Array]:
        """Return what later rounds need besides shared parameters and clip norms: public."""
        return {}

    def recall(self, memory: dict[str, Array]) -> None:
        """Restore the memory of an interrupted run."""

    def diagnostics(self, data: Any) -> dict[str, float]:
        """Return further figures of a simulation, from the model and fresh public users."""
        return {}

    # What algorithms use.

    @property
    def initialiser(self) -> Initialiser:
        """The configured initialiser, if it gives what this algorithm starts from."""
        init: Initialiser = self.federation.init
        starts_from = self.starts_from or self.publishes
        if set(init.gives) != set(starts_from):
            gives, needs = ", ".join(init.gives), ", ".join(starts_from)
            raise ConfigError(
                f"init: the chosen initialiser gives {gives}, "
                f"but this algorithm starts from {needs}"
            )
        return init

    def after_initialiser(self, *phases: Phase, share: float = 0.55) -> list[Phase]:
        """Return the initialiser's phases and the given ones, with the budget split between them.

        The initialiser has `privacy.init_share`; `phases` share the rest as they say.

        Args:
            phases: phases of the algorithm.
            share: the initialiser's share if `privacy.init_share` does not say it.
        """
        first = self.initialiser.phases(self.federation)
        if not first:
            return list(phases)
        share = self.federation.privacy.init_share or share
        rest = sum(phase.share for phase in phases)
        return [
            *(replace(phase, share=share * phase.share) for phase in first),
            *(replace(phase, share=(1 - share) * phase.share / rest) for phase in phases),
        ]

    def noise_std(self, name: str) -> float:
        """Return the standard deviation of the noise per entry of a sum's last released mean."""
        releases = self.federation.gate.ledger.releases
        last = next(release for release in reversed(releases) if release.name == name)
        if not isinstance(last, GaussianRelease):
            return 0.0
        phase = next(step.phase for step in self.plan if name in step.phase.named)
        return last.std / (last.sampling * self.federation.expected(phase.groups))

    @property
    def rounds_task(self) -> str:
        """Name of the task whose rounds are the rounds of the algorithm."""
        return self._main.task if self._main else ""

    @property
    def planned_rounds(self) -> int:
        """Number of rounds of the algorithm."""
        return self._main.rounds if self._main else 0

    @property
    def _main(self) -> Phase | None:
        """The last phase that is not closing."""
        return next((step.phase for step in self.plan[::-1] if not step.phase.closing), None)

    # The plan.

    def prepare(self) -> None:
        """Fix the plan, the clip norms and the public start; refuse what the budget cannot hold.

        Raises:
            ConfigError: if settings do not fit together.
            BudgetError: if the planned releases would exceed the budget.
        """
        ledger = self.federation.gate.ledger
        relation = ledger.budget.neighbouring
        if relation not in self.relations:
            known = ", ".join(self.relations)
            raise ConfigError.of("neighbouring", relation, f"this algorithm knows {known}")
        phases = self.phases()
        self.clips = configured_clips(phases, self.federation.privacy)
        self.shared = self._checked(self.start(), "start()")
        if self.shared and len(self.shared) != len(self.publishes):
            raise PrivfedError(
                f"{type(self).__name__}: start() gives {len(self.shared)} array(s), but publishes "
                f"names {len(self.publishes)}: {', '.join(self.publishes)}"
            )
        self.started = not any(phase.model != EACH for phase in phases)
        self.plan = plan(phases, self.clips, self.federation.privacy, ledger.budget)
        costs = [cost for step in self.plan for _, cost in self.costs(step)]
        ledger.check(costs, f"the {len(costs)} planned releases")
        if self.federation.secure is not None:
            for phase in phases:
                statistic = isinstance(phase.mechanism, GaussianStatistic)
                for name, total in phase.named.items():
                    kind = getattr(current(total.bound, 1), "kind", "")
                    check_maskable(kind, name, phase.selects, statistic)

    def _checked(self, arrays: Any, where: str) -> list[Array]:
        """Return shared parameters as a list of arrays of 64-bit numbers, or say what is wrong."""
        if not isinstance(self.publishes, tuple):
            raise PrivfedError(
                f"{type(self).__name__}.publishes must be a tuple of names, as ('w',)"
            )
        if not isinstance(arrays, list | tuple):
            raise PrivfedError(
                f"{type(self).__name__}: {where} must return a list of arrays, and returns "
                f"{type(arrays).__name__}"
            )
        return [np.asarray(array, dtype=np.float64) for array in arrays]

    def bound(self, step: Step, name: str) -> Bound:
        """Return the current bound of one user's part of a sum."""
        total = step.phase.named[name]
        if total.configurable:
            return total.bounded(float(self.clips[name]))
        return current(total.bound, step.round)

    def shapes(self, step: Step) -> dict[str, tuple[int, ...]]:
        """Return the current shape of each sum of a step by name."""
        return {name: current(total.shape) for name, total in step.phase.named.items()}

    def costs(self, step: Step) -> list[tuple[str, Planned]]:
        """Return what a step releases, by name, with the cost of each release."""
        planned = []
        for name in step.phase.named if step.releases else ():
            mu = self._mu(step.mu, step.phase.part(name))
            cost = Planned(mu, step.epsilon, step.group, step.phase.sampling)
            planned.append((name, cost))
        for name in step.phase.named if step.measure else ():
            mu = self._mu(step.measure, 1.0 / len(step.phase.named))
            planned.append((f"{name} clip norm", Planned(mu, 0.0, step.group)))
        return planned

    def _mu(self, total: float, part: float) -> float:
        """Return the cost of one of several sums; with fixed noise every sum costs `total`."""
        fixed = self.federation.privacy.noise_multiplier is not None
        return total if fixed else total * math.sqrt(part)

    def announcement(self, step: Step) -> Announcement:
        """Return the settings of a step, as nodes are told them."""
        phase = step.phase
        clips = [
            0.0 if self.clips.get(name) == AUTO else self.bound(step, name).clip
            for name in phase.named
        ]
        told = Announcement(
            self.done + 1,
            step.task,
            step.round,
            self.federation.seed,
            tuple(clips),
            step.releases,
            step.question,
        )
        if step.group is not None or phase.sampling < 1:
            told = replace(told, shapes=tuple(self.shapes(step).values()))
        if step.group is not None:
            told = replace(told, groups=phase.groups, group=step.group)
        if phase.sampling < 1:
            secret = not self.federation.gate.source.repeatable
            told = replace(told, sampling=phase.sampling, secret=secret)
        return told

    # Flower's interface.

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Wait for the registered population, then start from public parameters.

        After `join_timeout` the run starts if the users of `start_quorum` are there, and a resumed
        run if those of `quorum` are; each step looks for its own quorum.
        """
        nodes, timeout = self.federation.nodes, self.federation.join_timeout
        complete = client_manager.wait_for(len(nodes), math.ceil(timeout))
        needed = self.federation.quorum if self.done else self.federation.start_quorum
        present = self._present(client_manager)
        if not complete and (present < needed * self.federation.n or not present):
            raise PrivfedError(
                f"only {client_manager.num_available()} of {len(nodes)} nodes joined within "
                f"{timeout:g} s; {RESUME if self.done else 'nothing was released'}"
            )
        self.federation.ready = time.perf_counter()
        return ndarrays_to_parameters(self.shared)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Announce the step to every registered node that has users to ask."""
        if self.done >= len(self.plan):
            return []
        self._clock = time.perf_counter()
        step = self.plan[self.done]
        asked = self.federation.asked(step.phase.groups, step.group)
        self._wait_for_quorum(client_manager, asked)
        told = self.shared if step.phase.announce is None else step.phase.announce()
        ins = FitIns(ndarrays_to_parameters(told), self.announcement(step).to_config())
        if self.federation.secure is not None:
            if self._masked is None:
                self._masked = MaskedSteps(self.federation)
            return self._masked.announce(self, step, ins, self._registered(client_manager))
        return [(node, ins) for node in self._registered(client_manager) if node.cid in asked]

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters, dict[str, Scalar]]:
        """Clip again, add up, release, divide by the public number of users, update."""
        self._stop_on(failures)
        step, ledger = self.plan[self.done], self.federation.gate.ledger
        groups, group = step.phase.groups, step.group
        asked, n = self.federation.asked(groups, group), self.federation.expected(groups)
        users = sum(asked.values())
        names = list(step.phase.named)
        measure = MEASURES.get(step.question)
        wanted: list[tuple[tuple[int, ...], float]] = []
        if step.releases:
            shapes = self.shapes(step)
            wanted += [(shapes[name], self.bound(step, name).clip) for name in names]
        if measure is not None:
            wanted += [((measure.size,), measure.bound.clip)] * len(names)
        self.federation.before_release(sum(8 * math.prod(shape) for shape, _ in wanted))
        made = len(ledger.releases)
        if self._masked is not None:
            missing = self._masked.release(self, step, results)
            totals, present = [np.zeros(shape) for shape, _ in wanted], users - missing
        else:
            totals, present = self._totals(step, results, wanted, asked)
        record = StepRecord(self.done + 1, step.task, step.round, users)
        if step.releases:
            released = self.release(step, dict(zip(names, totals, strict=False)), n)
            first = self._charged(step, ledger.releases[made:])
            if isinstance(first, GaussianRelease):
                record.clip = first.clip
                wider = 1.0 if self._masked is None else self._masked.wider(users - present)
                record.noise_std = wider * first.std / (first.sampling * n)
            self.apply(step, released)
        if measure is not None:
            self._measure(step, dict(zip(names, totals[-len(names) :], strict=True)), n)
        if not all(np.isfinite(x).all() for x in self.shared):
            raise PrivfedError(
                f"the shared parameters stopped being finite in step {self.done + 1} ({step.task})"
            )
        record.epsilon, record.missing_users = ledger.epsilon, users - present
        self._finish(record)
        return ndarrays_to_parameters(self.shared), {}

    def _totals(
        self,
        step: Step,
        results: list[tuple[ClientProxy, FitRes]],
        wanted: list[tuple[tuple[int, ...], float]],
        asked: dict[str, int],
    ) -> tuple[list[Array], int]:
        """Return the sums over nodes, each clipped again, and the number of users behind them."""
        names, users = list(step.phase.named), sum(asked.values())
        if self.federation.strict:  # here a wrong shape is a mistake, not a hostile node
            check_shapes(results, step.task, [shape for shape, _ in wanted])
        bounded: Callable[[Array, float], Array] = clamp if step.phase.selects else clip
        if step.releases and len(names) == 1 and not step.question:
            bounded = PROJECTIONS.get(self.bound(step, names[0]).kind, bounded)
        reach = self.federation.reach(step.phase.groups, step.group)
        totals, answered = totals_of(results, wanted, reach, bounded, self.done + 1)
        present = sum(asked.get(cid, 0) for cid in answered)
        if present < self.federation.quorum * users:
            raise TooFewAnswersError(
                f"only {present} of {users} users answered in step {self.done + 1}; it was not "
                f"released, {RESUME}",
                self.federation.rejoin_timeout,
            )
        return totals, present

    def release(self, step: Step, sums: dict[str, Array], users: float) -> list[Any]:
        """Pass the sums of a step through the noise gate.

        Args:
            step: the step.
            sums: totals over all nodes by name.
            users: public number of users who take part on average, before Poisson sampling.

        Returns:
            What the phase's update is given: one mean per sum, or the index that was selected.
        """
        gate, phase = self.federation.gate, step.phase
        released: list[Any] = []
        for name, total in sums.items():
            bound = self.bound(step, name)
            if phase.selects:
                chosen = gate.select(
                    name,
                    total,
                    bound=bound,
                    epsilon=step.epsilon,
                    round=step.round,
                    users=self.federation.n,
                )
                released.append(chosen)
                continue
            if isinstance(phase.mechanism, GaussianStatistic):
                total = users * phase.mechanism.of(step.round, total / users)
                bound = phase.mechanism.bound(step.round)
            mu = self._mu(step.mu, phase.part(name))
            noised = gate.release(
                name,
                total,
                bound=bound,
                mu=mu,
                round=step.round,
                group=step.group,
                sampling=phase.sampling,
                users=self.federation.n,
            )
            released.append(noised / (phase.sampling * users))
        return released

    def apply(self, step: Step, released: list[Any]) -> None:
        """Update the shared parameters with what a step released."""
        updated = step.phase.update(step.round, *released)
        self.shared = self._checked(updated, f"the update of phase {step.task!r}")
        over = step.round == step.phase.rounds
        if step.phase.model == EACH or (step.phase.model == LAST and over):
            self.started = True

    def _charged(self, step: Step, releases: Sequence[Release]) -> Release:
        """Return the first release of a step.

        Raises:
            RefutedError: if the step has no release: it used data that the ledger did not charge.
        """
        if not releases:
            raise RefutedError(
                f"step {self.done + 1} ({step.task}) used users' data without a release in the "
                "ledger; stopped"
            )
        return releases[0]

    def _measure(self, step: Step, counts: dict[str, Array], n: float) -> None:
        """Set the next clip norms from the released counts of contribution norms."""
        measure, mu = MEASURES[step.question], self._mu(step.measure, 1.0 / len(counts))
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

    def _finish(self, record: StepRecord) -> None:
        """End the step: judge the model, and pass the record to `federation.on_step`."""
        record.seconds = time.perf_counter() - self._clock
        self.done += 1
        if self.federation.validate is not None and self.started:
            record.errors = self.federation.validate(self.shared)
        self.federation.on_step(record)

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Send the published model after the last step; a simulation asks for summed errors."""
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
        """Add up the errors of a simulation."""
        self._stop_on(failures)
        if self.federation.personal:
            self.sums = judgements(results, self.federation.registered)
        return None, {}

    def evaluate(self, server_round: int, parameters: Parameters) -> None:
        """Do nothing: `aggregate_fit` judges fresh public users and writes the row of the step."""

    def _registered(self, client_manager: ClientManager) -> list[ClientProxy]:
        nodes = client_manager.all()
        return [nodes[cid] for cid in self.federation.nodes if cid in nodes]

    def _present(self, client_manager: ClientManager) -> int:
        """Return the number of users behind the nodes that are connected."""
        nodes = self._registered(client_manager)
        return sum(len(self.federation.nodes[node.cid]) for node in nodes)

    def _wait_for_quorum(self, client_manager: ClientManager, asked: dict[str, int]) -> None:
        """Wait until enough users can answer; after `rejoin_timeout` stop the run resumably."""
        enough = self.federation.quorum * sum(asked.values())
        deadline = time.monotonic() + self.federation.rejoin_timeout

        def present() -> int:
            return sum(asked.get(node.cid, 0) for node in self._registered(client_manager))

        while present() < enough or not present():
            if time.monotonic() > deadline:
                raise PrivfedError(
                    f"only {present()} of {sum(asked.values())} users are connected; {RESUME}"
                )
            time.sleep(0.05)

    def _stop_on(self, failures: list[Any]) -> None:
        """Stop on any failure if strict, otherwise only on errors that are not lost nodes."""
        grave = (
            failures
            if self.federation.strict
            else [failure for failure in failures if isinstance(failure, PrivfedError)]
        )
        if grave:
            raise grave[0] if isinstance(grave[0], BaseException) else PrivfedError(str(grave[0]))
