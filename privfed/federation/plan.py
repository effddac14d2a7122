"""The plan of a run, as nodes are told it before the first step.

A node with real users compares every announcement with it, and shows it to its operator. The plan
holds public settings only. It says what each release is *promised* to cost: the server adds the
noise, and a node cannot see whether it does.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from privfed.foundation.errors import ConfigError
from privfed.privacy.accounting import Price, composed
from privfed.privacy.neighbouring import RELATIONS, influence

LONGEST = 1_000_000
"""Most steps of a plan that a node takes."""


@dataclass(frozen=True)
class PlannedRounds:
    """Consecutive rounds of one task that are asked for in the same way.

    Attributes:
        task: what users are asked for.
        first, last: rounds of the phase; 0 only measures clip norms.
        clips: clip norm of each sum; None where what is released before decides it.
        release: whether sums are sent, or only what measures their norms.
        measure: how norms are measured; empty: not at all.
        groups: number of disjoint groups, of which round t asks group t - 1; 0: everybody.
        sampling: probability with which each user takes part, by its own coin.
        costs: (mu, epsilon) of each release of a round.
    """

    task: str
    first: int
    last: int
    clips: tuple[float | None, ...]
    release: bool
    measure: str
    groups: int
    sampling: float
    costs: tuple[tuple[float, float], ...]

    def __len__(self) -> int:
        return self.last - self.first + 1

    def prices(self, round: int) -> list[Price]:
        """Return the cost of each release of a round, as accounting counts it."""
        group = round - 1 if self.groups else None
        return [(mu, epsilon, group, self.sampling) for mu, epsilon in self.costs]

    def asked(self, users: int) -> float:
        """Return how many of the users a round asks, on average."""
        return users * self.sampling / max(1, self.groups)


@dataclass(frozen=True)
class Plan:
    """All steps of a run in order, and what everything together may cost.

    Attributes:
        stretches: rounds in order.
        users: public number of users of the federation.
        relation: neighbouring relation of the costs.
        epsilon, delta: budget of the run.
        noise: where noise comes from.
        secret: whether coins of sampled users come from the operating system.
    """

    stretches: tuple[PlannedRounds, ...]
    users: int
    relation: str
    epsilon: float
    delta: float
    noise: str
    secret: bool

    @cached_property
    def starts(self) -> list[int]:
        """Number of the first step of each stretch."""
        found, number = [], 1
        for stretch in self.stretches:
            found.append(number)
            number += len(stretch)
        return found

    def __len__(self) -> int:
        return sum(map(len, self.stretches))

    def step(self, number: int) -> tuple[PlannedRounds, int]:
        """Return the stretch and the round of a step.

        Args:
            number: number of the step, from 1.

        Raises:
            ConfigError: if the plan has no such step.
        """
        for start, stretch in zip(self.starts, self.stretches, strict=True):
            if start <= number < start + len(stretch):
                return stretch, stretch.first + number - start
        raise ConfigError(f"step {number} is not in the plan, which has {len(self)} step(s)")

    def announcement(self, number: int, seed: int) -> dict[str, Any]:
        """Return what a step has to be announced as, without its clip norms.

        Args:
            number: number of the step, from 1.
            seed: seed of the run.
        """
        stretch, round = self.step(number)
        told: dict[str, Any] = {
            "step": number,
            "task": stretch.task,
            "round": round,
            "seed": seed,
            "release": stretch.release,
            "measure": stretch.measure,
        }
        if stretch.groups:
            told |= {"groups": stretch.groups, "group": round - 1}
        if stretch.sampling < 1:
            told |= {"sampling": stretch.sampling, "secret": self.secret}
        return told

    def measurements(self, first: int, last: int) -> int:
        """Return how many of the steps first..last measure clip norms."""
        return sum(
            max(0, min(last, start + len(stretch) - 1) - max(first, start) + 1)
            for start, stretch in zip(self.starts, self.stretches, strict=True)
            if stretch.measure
        )

    def prices(self) -> Counter[Price]:
        """Count the releases of the whole run per price."""
        paid = Counter[Price]()
        for stretch in self.stretches:
            if stretch.groups:
                for round in range(stretch.first, stretch.last + 1):
                    paid.update(stretch.prices(round))
            else:
                for price in stretch.prices(stretch.first):
                    paid[price] += len(stretch)
        return paid

    def cost(self) -> float:
        """Return epsilon of the whole run at its delta, computed here from its releases."""
        return composed(self.prices(), self.delta, influence(self.relation) > 1)

    @cached_property
    def digest(self) -> str:
        """Hash by which a changed plan is noticed."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as values of JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Plan:
        """Read what the server sent.

        Raises:
            ConfigError: if it is no plan.
        """
        try:
            stretches = tuple(_stretch(each) for each in found["stretches"])
            plan = cls(**{**found, "stretches": stretches})
            _check(plan)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the server's plan cannot be read ({str(error)[:80]})") from error
        return plan

    @property
    def adds(self) -> str:
        """Who adds the noise."""
        return "nodes" if self.noise.startswith("nodes") else "server"

    def lines(self) -> Iterator[str]:
        """Yield the plan in words, one line per stretch of rounds."""
        yield (
            f"plan: {len(self)} step(s) with {self.users:,} user(s), epsilon {self.epsilon:g}, "
            f"delta {self.delta:g} ({self.relation}); {self.noise} noise, added by the {self.adds}"
        )
        for start, stretch in zip(self.starts, self.stretches, strict=True):
            yield f"  {self._numbers(start, stretch):<12} {', '.join(self._words(stretch))}"

    @staticmethod
    def _numbers(start: int, stretch: PlannedRounds) -> str:
        many = len(stretch) > 1
        return f"steps {start}-{start + len(stretch) - 1}" if many else f"step {start}"

    def _words(self, stretch: PlannedRounds) -> Iterator[str]:
        yield stretch.task
        if stretch.release:
            known = [f"{clip:g}" for clip in stretch.clips if clip is not None]
            yield f"clip norm {' and '.join(known)}" if known else "clip norm as measured"
        if stretch.measure:
            yield "measures clip norms"
        for mu, epsilon in dict.fromkeys(stretch.costs):
            if epsilon:
                yield f"a choice of epsilon {epsilon:.3g}"
            else:
                yield f"noise of {1 / mu if mu else math.inf:.3g} times what one user can move"
        if stretch.groups:
            yield f"one of {stretch.groups} disjoint groups per round"
        if stretch.sampling < 1:
            yield f"each user with probability {stretch.sampling:g}"


def _stretch(found: Mapping[str, Any]) -> PlannedRounds:
    lists = {
        "clips": tuple(None if clip is None else float(clip) for clip in found["clips"]),
        "costs": tuple((float(mu), float(epsilon)) for mu, epsilon in found["costs"]),
    }
    return PlannedRounds(**{**found, **lists})


def _check(plan: Plan) -> None:
    """Raise a TypeError or ValueError unless all values are of their kind and range."""
    kinds = {"str": str, "int": int, "bool": bool, "float": (int, float)}
    parts: list[Plan | PlannedRounds] = [plan, *plan.stretches]
    for part in parts:
        for field in fields(part):
            value, kind = getattr(part, field.name), kinds.get(str(field.type))
            odd = isinstance(value, bool) != (kind is bool)
            if kind is not None and (odd or not isinstance(value, kind)):  # type: ignore[arg-type]
                raise TypeError(f"{field.name} cannot be {str(value)[:40]!r}")
    for stretch in plan.stretches:
        fine = (
            0 <= stretch.first <= stretch.last < LONGEST
            and 0 < stretch.sampling <= 1
            and stretch.groups >= 0
            and (not stretch.groups or 1 <= stretch.first <= stretch.last <= stretch.groups)
            and all(clip is None or clip > 0 for clip in stretch.clips)
            and all(mu >= 0 and epsilon >= 0 for mu, epsilon in stretch.costs)
        )
        if not fine:
            raise ValueError(f"task {stretch.task[:40]!r} has a number that is not allowed")
    if not (plan.epsilon > 0 and 0 <= plan.delta < 1 and len(plan) <= LONGEST and plan.users > 0):
        raise ValueError("a number is not allowed")
    if plan.relation not in RELATIONS:
        raise ValueError(f"the relation {plan.relation[:40]!r} is not known")
