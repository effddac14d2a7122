"""Each user alone: no federation, nothing released. The line that every federation has to beat."""

from __future__ import annotations

from privfed.algorithm.phases import Phase
from privfed.algorithm.strategy import PrivateStrategy
from privfed.foundation.linalg import Array


class Standalone(PrivateStrategy):
    """Asks nothing, publishes nothing."""

    def start(self) -> list[Array]:
        """Share nothing."""
        return []

    def phases(self) -> list[Phase]:
        """Ask nothing."""
        return []
