"""A public random start: it costs no privacy and uses no data. Initialisers have to beat it."""

from __future__ import annotations

from privfed.algorithm.initialiser import Initialiser
from privfed.federation.federation import Federation
from privfed.foundation.linalg import Array, retraction
from privfed.foundation.seeding import generator


class RandomStart(Initialiser):
    """U_0 = Q factor of a Gaussian matrix drawn from the run's seed; nothing is released."""

    def start(self, federation: Federation) -> list[Array]:
        """Return U_0."""
        shape = (federation.d, federation.k)
        return [retraction(generator(federation.seed, "random start").standard_normal(shape))]
