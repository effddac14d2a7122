"""Settings by a theorem: what a theorem is told about the problem, and what it answers.

A theorem is a function of a `Problem` and of constants of the problem. In a configuration it is the
section `theory`, and every setting with the value `theory` takes what the theorem says. Constants
that are not given are those of the simulated problem; real data do not know them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privfed.foundation.errors import ConfigError, check_number
from privfed.privacy.accounting import gaussian_mu

THEORY = "theory"
"""Value of a setting that a theorem determines."""


@dataclass(frozen=True)
class Problem:
    """What every theorem is told.

    Attributes:
        n: number of users.
        m: examples per user.
        d: features per example.
        k: dimension of the representation.
        epsilon: total budget; infinite without privacy.
        delta: probability with which the guarantee may fail.
        share: share of the budget that rounds have, the rest being the initialiser's.
        known: constants of a simulated problem by name; empty for real data.
    """

    n: int
    m: int
    d: int
    k: int
    epsilon: float
    delta: float
    share: float = 1.0
    known: Mapping[str, float] = field(default_factory=dict)

    def constant(self, name: str, given: float | None, least: float = 0.0) -> float:
        """Return a constant of the problem.

        Args:
            name: its name in the section `theory`.
            given: its value; None takes that of the simulated problem.
            least: values must be larger than this.

        Raises:
            ConfigError: if it is neither given nor known, or not allowed.
        """
        value = self.known.get(name) if given is None else given
        allowed = "must be given: these data do not tell it" if value is None else "is too small"
        check_number(f"theory.{name}", value, lambda x: least <= x < math.inf, allowed)
        return float(value)  # type: ignore[arg-type]

    @property
    def mu(self) -> float:
        """Gaussian cost of all rounds together; infinite without privacy."""
        if math.isinf(self.epsilon):
            return math.inf
        return gaussian_mu(self.epsilon, self.delta) * math.sqrt(self.share)

    @property
    def log_delta(self) -> float:
        """Logarithm of 1/delta.

        Raises:
            ConfigError: if delta is 0.
        """
        if self.delta <= 0:
            raise ConfigError.of("delta", self.delta, "the theorem needs a positive one")
        return math.log(1.0 / self.delta)


@dataclass(frozen=True)
class Theory:
    """What a theorem says.

    Attributes:
        name: the theorem.
        settings: values by full key, such as `algo.eta`.
        violated: assumptions that the problem violates, in words; constants that a paper leaves
            open count as 1, which favours the theorem.
    """

    name: str
    settings: Mapping[str, Any]
    violated: tuple[str, ...] = ()

    def notes(self) -> list[str]:
        """Return what a reader of the result should know."""
        said = ", ".join(f"{key}={_short(value)}" for key, value in self.settings.items())
        if not self.violated:
            return [f"settings by {self.name}: {said}; no assumption is seen to be violated"]
        failed = "; ".join(self.violated)
        return [f"settings by {self.name}: {said}", f"{self.name} promises nothing here: {failed}"]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
