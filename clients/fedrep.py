"""Private FedRep, user side (PMPR Algorithm 1).

    U   shared embedding (d, k)      v   head: least squares on one part of the user's examples
    G   gradient in U of the mean squared error on the other part, at that head: (2/b) sum_j r_j x_j v^T

`two-batches` is the paper's: two disjoint batches B, B' redrawn every round. `leave-one-out` uses every example both ways and
still never judges a head by an example it has seen: G = (2/m) sum_j r_j x_j v_(-j)^T with v_(-j) fitted without example j.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.common import NDArrays
from numpy.typing import NDArray

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.algorithm.linear_client import LinearClient
from privfed.data.cohort import BYTES, Cohort, Ids, draws
from privfed.foundation.errors import ConfigError, check_number, nearest
from privfed.kernels.gradients import LeaveOneOut, TwoBatches
from privfed.privacy.clipping import Contributions

ESTIMATORS = ("leave-one-out", "two-batches")
LARGE = 1 << 25
"""Bytes of examples that the gradient goes through between two visits to the interpreter."""


class FedRepClient(LinearClient):
    """Per-user gradients of the shared embedding at the user's own head."""

    def __init__(
        self,
        cohort: Cohort,
        init: Any,
        estimator: str,
        train: str,
        heads: str,
        head_batch: int | None,
        batch: int | None,
    ) -> None:
        if estimator not in ESTIMATORS:
            raise ConfigError.of("algo.estimator", estimator, nearest(str(estimator), ESTIMATORS))
        super().__init__(cohort, init, train, heads)
        self.estimator = estimator
        self.b_head, self.b = batch_sizes(self.m, self.m0, head_batch, batch)

    def portions(self, task: str, users: Ids | None) -> Iterator[Cohort]:
        """As they are stored, without a copy in double precision; the gradient takes many at once, as it needs no room."""
        size = LARGE if task == "gradient" else BYTES
        return self.seen.blocks(users, examples=self.train, bytes_each=size, exact=False)

    @task
    def gradient(self, block: Cohort, shared: NDArrays, told: Announcement) -> Contributions:
        """G_i^T (k, d) for every user of the block."""
        if self.estimator == "leave-one-out":
            return LeaveOneOut(block.X, block.y, shared[0])
        return self.two_batches(block, shared, told)

    def two_batches(
        self, block: Cohort, shared: NDArrays, told: Announcement, loss: float = 1.0
    ) -> Contributions:
        """G_i^T (k, d) by two disjoint batches, of so many times the mean squared error."""
        drawn = draws(told.seed, block.ids, block.y.shape[1], "batches", told.round)
        return TwoBatches(block.X, block.y, shared[0], drawn, self.b_head, self.b, loss)


def batch_sizes(m: int, m0: int, head_batch: int | None, batch: int | None) -> tuple[int, int]:
    """Sizes of the two disjoint batches: what is given, otherwise the two halves of the m0 training examples."""
    for key, value in (("algo.head_batch", head_batch), ("algo.batch", batch)):
        if value is not None:
            allowed = (
                f"must be a whole number between 1 and half a user's data ({m // 2} of data.m={m})"
            )
            check_number(key, value, lambda x: isinstance(x, int) and 1 <= x <= m // 2, allowed)
    if head_batch is None:
        head_batch = m0 - (batch if batch is not None else m0 // 2)
    if batch is None:
        batch = m0 - head_batch
    if head_batch < 1 or batch < 1 or head_batch + batch > m0:
        raise ConfigError.of(
            "algo.batch",
            batch,
            f"with algo.head_batch={head_batch} the two disjoint batches need more than the {m0} examples",
        )
    return head_batch, batch


def draw_orders(seed: int, round: int, ids: Ids, m: int) -> NDArray[np.intp]:
    """A random order of the m examples for each user (B, m), the same however users are spread over nodes."""
    return np.argsort(draws(seed, ids, m, "batches", round), axis=1)
