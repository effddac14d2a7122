"""A start that is chosen without data: a cascade for few users, one spectral release for many.

The choice is an algorithm's, because what follows differs too (strategies/fedrep.py). Algorithms
that do not choose have the spectral start.
"""

from __future__ import annotations

from typing import Annotated

from privfed.algorithm.initialiser import Initialiser
from privfed.algorithm.phases import Phase
from privfed.federation.federation import Federation
from privfed.foundation.constraints import AT_LEAST_ZERO, WHOLE
from privfed.foundation.linalg import Array
from privfed.privacy.settings import Clip
from strategies.initialisers.cascade import CascadeStart
from strategies.initialisers.spectral import SpectralStart

USUAL_CLIP = 0.1
"""Clip norm of the spectral start if none is given."""


class AutomaticStart(Initialiser):
    """A spectral start, until an algorithm takes the cascade.

    Args:
        clip: clip norm of the spectral start. If it is given, the spectral start is meant.
        m: examples per user that the rehearsal of a cascade assumes. If it is not known, the
            spectral start is taken.
        noise: label noise that it assumes, in units of heads.
    """

    def __init__(
        self,
        clip: Clip | None,
        m: Annotated[int, WHOLE] | None,
        noise: Annotated[float, AT_LEAST_ZERO],
    ) -> None:
        self.open = clip is None and m is not None
        """Whether public settings leave open which start is meant."""
        self.chosen: Initialiser = SpectralStart(USUAL_CLIP if clip is None else clip)
        self.cascade = CascadeStart(m or 0, noise)

    def phases(self, federation: Federation) -> list[Phase]:
        """Return the phases of the chosen start."""
        return self.chosen.phases(federation)

    def memory(self) -> dict[str, Array]:
        """Return the memory of the chosen start."""
        return self.chosen.memory()

    def recall(self, memory: dict[str, Array]) -> None:
        """Restore the memory of the chosen start."""
        self.chosen.recall(memory)


def cascade_of(init: Initialiser) -> CascadeStart | None:
    """Return the cascade of a run, which an automatic start then takes; None for other starts."""
    if isinstance(init, AutomaticStart):
        init.chosen = init.cascade
    found = init.chosen if isinstance(init, AutomaticStart) else init
    return found if isinstance(found, CascadeStart) else None
