"""The oracle that knows U*: what a perfect embedding would give. Simulations only, no privacy claim."""

from __future__ import annotations

from privfed.algorithm.phases import Step
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.errors import ConfigError


class Oracle(PrivateStrategy):
    """Publishes the true embedding."""

    uses_init = False

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation, rounds=1, clip=1.0)
        if federation.U_star is None:
            raise ConfigError.of(
                "algo",
                "oracle",
                "needs simulated data with a true embedding, as synthetic and margin",
            )
        self.shared = [federation.U_star]

    def steps(self) -> list[Step]:
        """No steps at all."""
        return []
