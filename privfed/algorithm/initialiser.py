"""The server side of an initialiser: the first phase of an algorithm, in a file of its own."""

from __future__ import annotations

from privfed.algorithm.phases import Phase
from privfed.federation.federation import Federation
from privfed.foundation.linalg import Array


class Initialiser:
    """Finds a first model. A private one writes `phases`; a public one writes `start` only."""

    gives: tuple[str, ...] = ("U",)
    """Names of the arrays that the initialiser hands to the algorithm."""
    notes: tuple[str, ...] = ()
    """What a reader of the result should know about how the start was found."""

    def start(self, federation: Federation) -> list[Array]:
        """Return what is shared before any user is asked: public."""
        return []

    def phases(self, federation: Federation) -> list[Phase]:
        """Return the phases that lead to the arrays in `gives`; their shares add up to 1."""
        return []

    def memory(self) -> dict[str, Array]:
        """Return what later phases need besides the shared parameters: public arrays by name."""
        return {}

    def recall(self, memory: dict[str, Array]) -> None:
        """Restore the memory of an interrupted run."""
