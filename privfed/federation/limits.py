"""Limits that a node with real users sets a server, whatever the server asks for.

The node is told the plan of the run before it sends anything. It answers a step only if the step
is in the plan, announced exactly as planned, and later than all steps answered before. It answers
a step again if announcement and parameters are the same, with the same numbers. It refuses a clip
norm other than the planned one. A norm that is measured during the run (clip=auto) is not known
beforehand. It must lie in the range of the histogram, and from the step answered last it may change
by at most a factor 2 per step that measured; in every case it stays below `max_clip`.

What a node cannot know: whether the server adds the noise it promises, whether the federation has
as many users as it says, and what it does with the sums of single nodes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from flwr.common import FitIns, FitRes, Scalar

from privfed.federation.client_ledger import (
    AnsweredStep,
    ClientLedger,
    as_replaced,
    check_limit,
    worst_user,
)
from privfed.federation.plan import Plan, PlannedRounds
from privfed.foundation.errors import ConfigError
from privfed.privacy.accounting import Price, composed
from privfed.privacy.adaptive_clipping import NORMS, Below

SANE_CLIP = 1e9
"""Largest clip norm that is accepted unless the operator says otherwise: more bounds nothing."""
OPEN = ("clip", "shapes")
"""What a plan leaves open: clip norms are checked apart, shapes may follow from releases."""
ROUNDING = 1e-6
"""Relative error allowed between the budget of a plan and its cost as computed here."""


@dataclass(frozen=True)
class Limits:
    """What the operator of a node allows.

    Attributes:
        max_clip: largest clip norm.
        max_epsilon: most epsilon of all runs together, by the node's own ledger; None: any.
        max_delta: delta at which it is stated; None takes that of the run.
        min_users: fewest users whose parts a step adds up, as the plan says.

    Raises:
        ConfigError: if a value is not allowed.
    """

    max_clip: float = SANE_CLIP
    max_epsilon: float | None = None
    max_delta: float | None = None
    min_users: int = 1

    def __post_init__(self) -> None:
        if not self.max_clip > 0:
            raise ConfigError.of("max-clip", self.max_clip, "must be a positive number")
        if self.max_epsilon is not None and not 0 < self.max_epsilon < math.inf:
            raise ConfigError.of("max-epsilon", self.max_epsilon, "must be a positive number")
        if self.max_delta is not None and not 0 <= self.max_delta < 1:
            raise ConfigError.of("max-delta", self.max_delta, "must be at least 0 and below 1")
        if self.min_users < 1:
            raise ConfigError.of("min-users", self.min_users, "must be a whole number, at least 1")


class StepGuard:
    """Answers the steps of one run that are in its plan, and within the limits.

    Args:
        plan: what the server said it would ask.
        run: number that the server drew for its run.
        seed: seed of the run.
        limits: what the operator allows.
        ledger: what was answered before, in this run and in others.
    """

    def __init__(
        self, plan: Plan, run: str, seed: int, limits: Limits, ledger: ClientLedger
    ) -> None:
        self.plan, self.run, self.seed, self.limits = plan, run, seed, limits
        self.ledger = ledger
        self.delta = plan.delta if limits.max_delta is None else limits.max_delta

    def check_plan(self) -> None:
        """Refuse a plan that breaks the limits, before anything is sent.

        Raises:
            ConfigError: if it does, or if it contradicts itself.
            BudgetError: if all runs together would cost more than `max_epsilon`.
        """
        plan, limits = self.plan, self.limits
        for stretch in plan.stretches:
            largest = max((clip for clip in stretch.clips if clip is not None), default=0.0)
            if stretch.release and largest > limits.max_clip:
                raise refused(
                    f"the plan clips {stretch.task} at {largest:g}, --max-clip is "
                    f"{limits.max_clip:g}"
                )
            if stretch.asked(plan.users) < limits.min_users:
                raise refused(
                    f"{stretch.task} adds up {stretch.asked(plan.users):g} user(s), --min-users "
                    f"is {limits.min_users}"
                )
            if not stretch.costs or any(not 0 < mu + eps < math.inf for mu, eps in stretch.costs):
                raise refused(f"the plan promises no noise for {stretch.task}")
        cost = plan.cost()
        if cost > plan.epsilon * (1 + ROUNDING):
            raise refused(
                f"the planned releases cost epsilon={cost:.4g}, the plan says {plan.epsilon:g}"
            )
        last = self.ledger.last(self.run)
        if last is not None and last.plan != plan.digest:
            raise refused("the server changed the plan of a run that has begun")
        if limits.max_epsilon is not None:
            check_limit(self._with_this_run(), limits.max_epsilon, self.delta)

    def _with_this_run(self) -> Counter[Price]:
        mine = worst_user(self.plan.prices())
        converted = Counter[Price]()
        for price, count in mine.items():
            converted[as_replaced(price, self.plan.relation)] += count
        return self.ledger.spent(self.run) + converted

    def account(self) -> str:
        """Return in words what this node has promised before, and what this run adds."""
        before, after = self.ledger.spent(self.run), self._with_this_run()
        others = len({step.run for step in self.ledger.steps} - {self.run})
        return (
            f"this client's own ledger: epsilon {composed(before, self.delta):.4g} in {others} "
            f"other run(s), {composed(after, self.delta):.4g} with this one, at delta "
            f"{self.delta:g} (replace-one)"
        )

    def answer(self, ins: FitIns, compute: Callable[[FitIns], FitRes]) -> FitRes:
        """Answer a step that may be answered; the ledger has it on disk before.

        Args:
            ins: announcement and parameters.
            compute: computes the answer.

        Raises:
            ConfigError: if the step is refused.
            BudgetError: if it would cost more than the limit.
        """
        step = self._admitted(ins)
        try:
            fresh = self.ledger.charge(step, self.limits.max_epsilon, self.delta)
        except ConfigError as error:
            raise refused(str(error)) from error
        kept = None if fresh else self.ledger.kept_answer(step)
        if kept is not None:
            return kept
        answer = compute(ins)
        self.ledger.keep_answer(step, answer)
        return answer

    def _admitted(self, ins: FitIns) -> AnsweredStep:
        """Return the step that is asked for, as the ledger records it, if it is in the plan."""
        told = {key: value for key, value in ins.config.items() if key not in OPEN}
        number, clips = told.get("step"), clips_in(ins.config)
        if not isinstance(number, int) or isinstance(number, bool):
            raise refused("the server asks for a step without a number")
        try:
            planned, round = self.plan.step(number)
        except ConfigError as error:
            raise refused(str(error)) from error
        expected = self.plan.announcement(number, self.seed)
        if told != expected:
            odd = next(key for key in (*expected, *told) if told.get(key) != expected.get(key))
            raise refused(f"step {number} is announced with another {odd[:40]!r} than planned")
        self._check_clips(number, planned, clips)
        return AnsweredStep(
            self.run,
            self.plan.digest,
            number,
            digest_of(ins, clips),
            clips,
            tuple(planned.prices(round)),
            self.plan.relation,
        )

    def _check_clips(self, number: int, planned: PlannedRounds, clips: tuple[float, ...]) -> None:
        """Refuse clip norms that are neither planned nor measured, or too large."""
        if len(clips) != len(planned.clips):
            raise refused(f"step {number} has {len(clips)} clip norm(s), not as planned")
        last = self.ledger.last(self.run)
        for place, (clip, known) in enumerate(zip(clips, planned.clips, strict=True)):
            if not planned.release and known is None:
                fine = clip == 0.0
            elif known is not None:
                fine = clip == known
            else:
                low, high = 2.0**NORMS.bottom, 2.0 ** (NORMS.bottom + NORMS.size)
                before = last.clips[place] if last and place < len(last.clips) else 0.0
                same = last is not None and self.plan.step(last.step)[0].task == planned.task
                if last is not None and same and before > 0 and last.step < number:
                    times = self.plan.measurements(last.step, number - 1)
                    factor = Below.limit**times * (1 + ROUNDING)
                    low, high = before / factor, before * factor
                fine = low <= clip <= high
            if not fine:
                raise refused(f"step {number} has the clip norm {clip:g}, which is not planned")
            if planned.release and clip > self.limits.max_clip:
                raise refused(
                    f"step {number} has the clip norm {clip:g}, --max-clip is "
                    f"{self.limits.max_clip:g}"
                )


def refused(reason: str) -> ConfigError:
    """Return the error with which a node leaves."""
    return ConfigError(f"refused: {reason}; nothing was sent for it")


def clips_in(config: Mapping[str, Scalar]) -> tuple[float, ...]:
    """Return the clip norms of an announcement.

    Raises:
        ConfigError: if there are none.
    """
    clips = config.get("clip")
    if not isinstance(clips, bytes) or len(clips) % 8:
        raise refused("the server announces a step without clip norms")
    return tuple(np.frombuffer(clips).tolist())


def digest_of(ins: FitIns, clips: tuple[float, ...]) -> str:
    """Return a hash of everything in a question that an answer depends on."""
    told = {key: value for key, value in ins.config.items() if key != "clip"}
    digest = hashlib.sha256(json.dumps([told, clips], sort_keys=True).encode())
    for tensor in ins.parameters.tensors:
        digest.update(len(tensor).to_bytes(8, "little") + tensor)
    return digest.hexdigest()
