"""Bounds on what one user contributes to a sum. A bound states its own sensitivity.

    kind          name of the bound in the ledger, from which a verifier finds the sensitivity
    clip          norm that each user's part is scaled down to, and that users are told
    radius        radius of a ball that holds every user's part; the ledger's column `clip`
    sensitivity   largest distance of the sums over two neighbouring data sets

No caller multiplies or divides by 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from privfed.privacy.distances import (
    ASSUMED,
    DISTANCES,
    NON_NEGATIVE,
    NORM,
    OUTER_PRODUCT,
    SEMIDEFINITE,
)

UNCLIPPED = 1e99
"""A clip norm that no finite data reach in practice."""


class Bound(Protocol):
    """What is known about one user's part of a sum, whatever the user's data are."""

    @property
    def kind(self) -> str:
        """Name of the bound in the ledger."""
        ...

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

    kind: ClassVar[str] = NORM

    clip: float

    @property
    def radius(self) -> float:
        """See :class:`Bound`."""
        return self.clip

    def sensitivity(self, relation: str) -> float:
        """See :class:`Bound`."""
        return DISTANCES[self.kind](self.radius, relation)


@dataclass(frozen=True)
class NonNegativeBound(NormBound):
    """Every user's part has norm at most `clip` and no negative entry.

    Inner products of such parts are not negative, so that replacing a by b moves the sum less than
    for parts of any direction: |b - a|^2 = |a|^2 + |b|^2 - 2 <a, b> <= 2 clip^2.
    """

    kind: ClassVar[str] = NON_NEGATIVE


@dataclass(frozen=True)
class SemidefiniteBound(NormBound):
    """Every user's part is `svec` of a positive semidefinite matrix of norm at most `clip`.

    Inner products of such matrices are not negative either.
    """

    kind: ClassVar[str] = SEMIDEFINITE


@dataclass(frozen=True)
class OuterProductBound(NormBound):
    """Every user's part is `svec` of t u u^T, with |u| = 1 and 0 <= t <= `clip`: semidefinite."""

    kind: ClassVar[str] = OUTER_PRODUCT

    clip: float = 1.0


@dataclass(frozen=True)
class AssumedSensitivity:
    """Nothing is clipped; the sensitivity is taken for granted, under an assumption on the data.

    `value` holds for the relation that the run uses, and for no other.
    """

    kind: ClassVar[str] = ASSUMED

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
        return DISTANCES[self.kind](self.radius, relation)
