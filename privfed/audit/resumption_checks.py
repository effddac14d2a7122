"""Check that a run which dies at a release and is resumed never releases the same thing twice.

The run is interrupted at the worst moment: the ledger has the release, the noise was added, and
nothing else was written. Repeating the step with other noise would give two noisy values of one
sum for the price of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from privfed.audit.replay import Theatre
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import BudgetError
from privfed.privacy.noise import DiscreteNoise, NoiseSource, SeededNoise

MOMENTS = 3
"""Number of releases at which a run dies."""

Left = dict[tuple[str, int], bytes]
"""What left the gate, by name and round."""


class Killed(BaseException):
    """End of a run, as if its process had been killed."""


def resumption_findings(theatre: Theatre) -> Iterator[str]:
    """Yield what is released twice if a run is interrupted and resumed, in words.

    Args:
        theatre: the experiment.
    """
    releases = sum(
        len(theatre.experiment.strategy.costs(step)) for step in theatre.experiment.strategy.plan
    )
    sources: tuple[NoiseSource, ...] = (SeededNoise(theatre.cfg.seed), DiscreteNoise())
    for source in sources:
        for moment in sorted({0, releases // 2, releases - 1})[:MOMENTS]:
            with TemporaryDirectory() as folder:
                yield from _twice(theatre, source, moment, Path(folder))


def _twice(theatre: Theatre, source: NoiseSource, moment: int, folder: Path) -> Iterator[str]:
    left: Left = {}
    try:
        theatre.run_in(folder, source, _watch(left, moment, []), resume=False)
        return
    except Killed:
        pass
    again: list[str] = []
    try:
        theatre.run_in(folder, source, _watch(left, -1, again), resume=True)
    except BudgetError:
        return  # what was paid for and lost is not released again
    yield from (
        f"{what} is released twice, with other {source.name} noise, if a run is resumed"
        for what in again[:1]
    )


def _watch(left: Left, moment: int, again: list[str]) -> Callable[[Experiment], None]:
    """Return what notes all that leaves the gate of an experiment, and ends it at one release."""

    def watch(experiment: Experiment) -> None:
        gate = experiment.federation.gate

        def watched(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(name: str, total: Any, *, round: int, **terms: Any) -> Any:
                made = method(name, total, round=round, **terms)
                key, value = (name, round), np.asarray(made).tobytes()
                if left.setdefault(key, value) != value:
                    again.append(f"{name} of round {round}")
                if len(left) == moment + 1:
                    raise Killed
                return made

            return call

        for method in ("release", "select"):
            setattr(gate, method, watched(getattr(gate, method)))

    return watch
