"""CENTAUR with a linear representation, user side (CENTAUR Algorithm 4).

    B   shared representation (d, k)
    w   head (k,): least squares on one batch
    G   gradient (d, k) in B of 1/2 the mean squared error on another, disjoint batch, at that head

G is half of Private FedRep's gradient by two batches, because the loss has a factor 1/2.
"""

from __future__ import annotations

from typing import Annotated, Any

from flwr.common import NDArrays

from clients.fedrep import FRESH, REDRAWN, FedRepClient
from privfed.algorithm.announcement import Announcement
from privfed.data.cohort import Cohort
from privfed.foundation.constraints import FLAG, Choice
from privfed.privacy.clipping import Contributions


class CentaurClient(FedRepClient):
    """Per-user gradients of the representation at the user's own head."""

    def __init__(
        self,
        cohort: Cohort,
        init: Any,
        train: str,
        heads: str,
        head_batch: int | None,
        batch: int | None,
        batches: Annotated[str, Choice(REDRAWN, FRESH)] = REDRAWN,
        rounds: int | None = None,
        safety: Annotated[bool, FLAG] = False,
    ) -> None:
        how = (head_batch, batch, batches, rounds)
        super().__init__(cohort, init, "two-batches", train, heads, *how, safety=safety)

    def gradient(self, block: Cohort, shared: NDArrays, told: Announcement) -> Contributions:
        """Return G_i^T (k, d) for every user of the block."""
        return self.by_two_batches(block, shared, told, loss=0.5)
