"""Bounds on what one user contributes to a sum. A bound states its own sensitivity.

    clip          norm that each user's part is scaled down to, and that users are told
    radius        radius of a ball that holds every user's part; the ledger's column `clip`
    sensitivity   largest distance of the sums over two neighbouring data sets

The noise gate asks the bound for its sensitivity. No caller multiplies or divides by 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from privfed.privacy.neighbouring import influence

UNCLIPPED = 1e99
"""A clip norm that no finite data reach in practice."""


class Bound(Protocol):
    """What is known about one user's part of a sum, whatever the user's data are."""

    @property
    def clip(self) -> float:
        """Norm that each user's part is clipped to."""
        ...

    @property
    def radius(self) -> float:
        """Radius of a ball that holds every user's part."""
        ...

    def sensitivity(self, relation: str) -> float:
        """Return how far one user can move the sum under a neighbouring relation."""
        ...


@dataclass(frozen=True)
class NormBound:
    """Every user's part has norm at most `clip`; for scores, every score lies in [0, clip]."""

    clip: float

    @property
    def radius(self) -> float:
        """See :class:`Bound`."""
        return self.clip

    def sensitivity(self, relation: str) -> float:
        """See :class:`Bound`."""
        return influence(relation) * self.clip


@dataclass(frozen=True)
class AssumedSensitivity:
    """Nothing is clipped; the sensitivity is taken for granted, under an assumption on the data.

    `value` holds for the relation that the run uses, and for no other.
    """

    value: float

    @property
    def clip(self) -> float:
        """See :class:`Bound`."""
        return UNCLIPPED

    @property
    def radius(self) -> float:
        """See :class:`Bound`; of the ball whose diameter is the sensitivity."""
        return self.value / 2.0

    def sensitivity(self, relation: str) -> float:
        """See :class:`Bound`."""
        return self.value
