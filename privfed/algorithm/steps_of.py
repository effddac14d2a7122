"""What one writes to make an algorithm, and what follows from it: clip norms, the plan of steps, the cost of each.

A run is a list of steps, each one Flower round; `privfed/algorithm/strategy.py` takes a step through Flower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from privfed.algorithm.phases import Stage, Step, gaussian_plan
from privfed.federation.federation import Federation, check_clip
from privfed.foundation.errors import ConfigError, check_whole
from privfed.foundation.linalg import Array
from privfed.privacy.accounting import Planned
from privfed.privacy.clip_norms import AUTO
from privfed.privacy.clipping import clip
from privfed.privacy.ledger import ADD_REMOVE, REPLACE_ONE

Clip = float | str


class Algorithm:
    """The server's side of an algorithm. One writes `task`, `shape` and `step`, and gets privacy, runtimes and reports."""

    task = "gradient"

    names: tuple[str, ...] = ("U",)
    """Names of the shared arrays in the published model; an initialiser must give the same."""
    uses_init = True
    """Whether the configured initialiser comes before the first round."""
    groups = 0
    """Disjoint groups of users, one a round, that a round asks; 0: every round asks everybody."""
    shares: Mapping[str, float] = MappingProxyType({})
    """How several sums share a round's mu^2; equally where nothing is said."""
    neighbourings: tuple[str, ...] = (REPLACE_ONE, ADD_REMOVE)
    """Neighbouring relations the algorithm's sensitivities are known for."""
    sampling = 1.0
    """The probability with which every user takes part in a round."""
    guarantee: str | None = None
    """What the guarantee rests on, where that depends on settings; None: what the algorithm's config says."""
    bounded = staticmethod(clip)
    """How a node's sum is made to be one that its registered users, each within the bound, could have sent."""

    def __init__(
        self, federation: Federation, rounds: int, clip: Clip | Mapping[str, Clip]
    ) -> None:
        self.federation, self.rounds = federation, check_whole("rounds", rounds)
        relation = federation.gate.ledger.budget.neighbouring
        if relation not in self.neighbourings:
            raise ConfigError.of(
                "neighbouring", relation, f"this algorithm knows {', '.join(self.neighbourings)}"
            )
        self.init: Any = federation.init if self.uses_init else None
        self.clips = self._clips(clip)
        self.shared = self.initial()
        self.started = self.init is None or self.init.task is None
        """Whether `shared` holds a model already, not something the initialiser is still working on."""
        self.plan = self.steps()
        costs = [cost for step in self.plan for _, cost in self.costs(step)]
        federation.gate.ledger.check(costs, f"the {len(costs)} planned releases")

    # What an algorithm writes.

    def initial(self) -> list[Array]:
        """The shared parameters before anything is released: public."""
        return [] if self.init is None else self.init.before(self.federation)

    def shape(self) -> tuple[int, ...]:
        """Shape of a round's sum; anything else that arrives is dropped."""
        return self.shared[0].shape

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The sums of a round by name, where there are several, in the order in which clients send them."""
        return {self.task: self.shape()}

    def announced(self, step: Step) -> list[Array]:
        """What users need to know to answer: the shared parameters."""
        return self.shared

    def step(self, t: int, *means: Any, **_: Any) -> None:
        """The server's update in round t = 1..T, from the released mean (or means): sets `self.shared`."""
        raise TypeError(f"{type(self).__name__} does not say what a round does")

    def steps(self) -> list[Step]:
        """The plan: initialiser, then T rounds, with the budget split between them."""
        auto = any(self.clips[name] == AUTO for name in self._names(self.task))
        stages = [Stage(self.task, self.rounds, auto, self.groups > 0)]
        if self.init is not None and self.init.task is not None:
            stages.insert(
                0, Stage(self.init.task, self.init.rounds, self.clips[self.init.task] == AUTO)
            )
        return gaussian_plan(stages, self.federation.privacy, self.federation.gate.ledger.budget.mu)

    def costs(self, step: Step) -> Iterator[tuple[str, Planned]]:
        """What a step releases, by name."""
        names = self._names(step.task)
        if step.releases:
            yield from (
                (
                    name,
                    Planned(
                        self._mu(step.mu, names, name), step.epsilon, step.group, self.sampling
                    ),
                )
                for name in names
            )
        if step.measure:
            yield from (
                (f"{name} clip norm", Planned(self._mu(step.measure, names), 0.0, step.group))
                for name in names
            )

    def _names(self, task: str) -> list[str]:
        """The sums that users are asked for in a task."""
        first = None if self.init is None else self.init.task
        return [task] if task == first else [name for name in self.clips if name != first]

    def _mu(self, total: float, names: Sequence[str], name: str | None = None) -> float:
        """The cost of one of several sums: as configured by name, otherwise an equal part, each the same with fixed noise."""
        if self.federation.privacy.noise_multiplier is not None:
            return total
        return total * math.sqrt(
            self.shares.get(name, 1.0 / len(names)) if name is not None else 1.0 / len(names)
        )

    def release(self, step: Step, sums: dict[str, Array], users: int) -> list[Array]:
        """The means over the users who were asked, through the gate."""
        means = []
        for name, total in sums.items():
            mu = self._mu(step.mu, list(sums), name)
            bound = float(self.clips[name])
            released = self.federation.gate.release(
                name,
                total,
                bound=bound,
                mu=mu,
                round=step.round,
                group=step.group,
                sampling=self.sampling,
            )
            means.append(released / (self.sampling * users))
        return means

    @property
    def notes(self) -> list[str]:
        """What a reader of the result should know beside the numbers."""
        return [] if self.init is None else list(self.init.notes)

    def memory(self) -> dict[str, Array]:
        """What later rounds need beside the shared parameters and the clip norms: public arrays by name."""
        return {}

    def recall(self, memory: dict[str, Array]) -> None:
        """Take the memory of an interrupted run back."""

    def diagnostics(self, data: Any) -> dict[str, float]:
        """More figures for the result of a simulation, from what is published and from fresh public users."""
        return {}

    # What all share.

    def _clips(self, clip: Clip | Mapping[str, Clip]) -> dict[str, Clip]:
        """The clip norm of every sum: what is configured, unless `privacy.clip` says otherwise."""
        asked, init = self.federation.privacy.clip, self.init
        own = (
            {f"algo.clip.{name}": bound for name, bound in clip.items()}
            if isinstance(clip, Mapping)
            else {"algo.clip": clip}
        )
        if asked not in (None, AUTO) and len(own) > 1:
            raise ConfigError.of(
                "privacy.clip", asked, f"there are several clip norms; set {', '.join(own)}"
            )
        names = list(clip) if isinstance(clip, Mapping) else [self.task]
        clips = {
            name: check_clip(key, bound if asked is None else asked)
            for name, (key, bound) in zip(names, own.items(), strict=True)
        }
        if len({bound == AUTO for bound in clips.values()}) > 1:
            raise ConfigError.of(
                next(iter(own)), AUTO, f"set all of {', '.join(own)} to auto, or none"
            )
        if init is None:
            return clips
        if set(init.gives) != set(self.names):
            gives, needs = ", ".join(init.gives), ", ".join(self.names)
            raise ConfigError(
                f"init: the chosen initialiser gives {gives}, but this algorithm starts from {needs}"
            )
        if init.task is not None:
            clips[init.task] = AUTO if asked == AUTO else check_clip("init.clip", init.clip)
        return clips

    def sums_of(self, step: Step) -> dict[str, tuple[int, ...]]:
        """The sums of a step by name."""
        return (
            self.shapes()
            if step.task == self.task
            else {step.task: self.init.shape(self.federation)}
        )
