"""Each user alone: no federation, nothing released. The line every federation has to beat."""

from __future__ import annotations

from privfed.federation import Federation
from strategies.base import PrivateStrategy
from strategies.plan import Step


class Standalone(PrivateStrategy):
    """Asks nothing, publishes nothing."""

    uses_init = False

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation, rounds=1, clip=1.0)

    def steps(self) -> list[Step]:
        """No steps at all."""
        return []
