"""Each user alone: no federation, nothing released. The line every federation has to beat."""

from __future__ import annotations

from privfed.algorithm.phases import Step
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation


class Standalone(PrivateStrategy):
    """Asks nothing, publishes nothing."""

    uses_init = False

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation, rounds=1, clip=1.0)

    def steps(self) -> list[Step]:
        """No steps at all."""
        return []
