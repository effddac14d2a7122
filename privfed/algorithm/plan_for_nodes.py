"""The plan of a strategy, as nodes are told it."""

from __future__ import annotations

from dataclasses import replace

from privfed.algorithm.phases import Step
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.plan import Plan, PlannedRounds
from privfed.privacy.adaptive_clipping import AUTO


def plan_for_nodes(strategy: PrivateStrategy) -> Plan:
    """Return the steps of a strategy that was prepared, has done nothing yet, and its budget."""
    stretches: list[PlannedRounds] = []
    for step in strategy.plan:
        told = _planned(strategy, step)
        last = stretches[-1] if stretches else told
        if told == replace(last, first=last.last + 1, last=last.last + 1):
            stretches[-1] = replace(last, last=told.last)
        else:
            stretches.append(told)
    gate = strategy.federation.gate
    budget = gate.ledger.budget
    return Plan(
        tuple(stretches),
        strategy.federation.n,
        budget.neighbouring,
        budget.epsilon,
        budget.delta,
        gate.source.name,
        not gate.source.repeatable,
    )


def _planned(strategy: PrivateStrategy, step: Step) -> PlannedRounds:
    """Return what nodes are told of one step."""
    phase = step.phase
    # The bound of a single round may follow from what was released before it: nodes cannot know it.
    clips = (
        None
        if strategy.clips.get(name) == AUTO or (callable(total.bound) and phase.rounds == 1)
        else float(strategy.bound(step, name).clip)
        for name, total in phase.named.items()
    )
    costs = ((float(cost.mu), float(cost.epsilon)) for _, cost in strategy.costs(step))
    return PlannedRounds(
        task=step.task,
        first=step.round,
        last=step.round,
        clips=tuple(clips),
        release=step.releases,
        measure=step.question,
        groups=0 if step.group is None else phase.groups,
        sampling=phase.sampling,
        costs=tuple(costs),
    )
