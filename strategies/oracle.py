"""The oracle that knows U*: what a perfect embedding would give. Simulations only, no privacy."""

from __future__ import annotations

from privfed.algorithm.phases import Phase
from privfed.algorithm.strategy import PrivateStrategy
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array


class Oracle(PrivateStrategy):
    """Publishes the true embedding, and asks nothing."""

    def start(self) -> list[Array]:
        """Return U*."""
        if self.federation.U_star is None:
            allowed = "needs simulated data with a true embedding, as synthetic and margin"
            raise ConfigError.of("algo", "oracle", allowed)
        return [self.federation.U_star]

    def phases(self) -> list[Phase]:
        """Ask nothing."""
        return []
