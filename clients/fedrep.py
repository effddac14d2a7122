"""Private FedRep, user side (PMPR Algorithm 1).

    U   shared embedding (d, k)      v   head: least squares on one part of the user's examples
    G   gradient in U of the mean squared error on the other part, at that head: (2/b) sum_j r_j x_j v^T

`two-batches` is the paper's: two disjoint batches B, B' redrawn every round. `leave-one-out` uses every example both ways and
still never judges a head by an example it has seen: G = (2/m) sum_j r_j x_j v_(-j)^T with v_(-j) fitted without example j.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.common import NDArrays
from numpy.typing import NDArray

from clients.base import CohortClient, Task
from privfed.data.cohort import BLOCK, Cohort, Ids
from privfed.errors import ConfigError, check_number, nearest
from privfed.kernels import LeaveOneOut, two_batch_gradients
from privfed.keyed import generator
from privfed.linalg import Array
from privfed.models.linear import fit_heads
from privfed.privacy.mechanisms import Contributions

ESTIMATORS = ("leave-one-out", "two-batches")


class FedRepClient(CohortClient):
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
        m = cohort.X.shape[1]
        super().__init__(cohort, init)
        self.train, self.final = split_examples(m, train, heads)
        m0 = len(range(m)[self.train])
        self.estimator = estimator
        self.b_head, self.b = batch_sizes(m, m0, head_batch, batch)

    def tasks(self) -> dict[str, Task]:
        """The initialiser's task and the gradient."""
        return {**super().tasks(), "gradient": self.gradient}

    def gradient(self, block: Cohort, shared: NDArrays, config: dict[str, Any]) -> Contributions | Array:
        """G_i^T (k, d) for every user of the block."""
        U, X, y = shared[0], block.X, block.y
        B, m, d = X.shape
        P = (X.reshape(-1, d) @ U).reshape(B, m, -1)
        if self.estimator == "leave-one-out":
            return LeaveOneOut(X, y, P)
        order = draw_orders(int(config["seed"]), int(config["round"]), block.ids, m)
        return two_batch_gradients(X, y, P, order[:, : self.b_head], order[:, self.b_head : self.b_head + self.b])

    def weights(self, block: Cohort, shared: NDArrays) -> Array:
        """w_i = U v_i with the final head fitted on the user's own examples."""
        U = shared[0]
        return fit_heads(U, block.X[:, self.final], block.y[:, self.final]) @ U.T


def split_examples(m: int, train: str, heads: str) -> tuple[slice, slice]:
    """Which examples train the embedding (all, or S0 = the first half) and which the final head (all, or S1 = the rest)."""
    if train not in ("all", "s0"):
        raise ConfigError.of("algo.train", train, "must be all or s0 (the first half of a user's data)")
    if heads not in ("all", "s1"):
        raise ConfigError.of("algo.heads", heads, "must be all or s1 (the second half of a user's data)")
    least = 4 if train == "s0" else 2
    if m < least:
        raise ConfigError.of("data.m", m, f"too few examples a user to split: algo.train={train} needs at least {least}")
    half = m // 2
    return slice(half) if train == "s0" else slice(m), slice(half, m) if heads == "s1" else slice(m)


def batch_sizes(m: int, m0: int, head_batch: int | None, batch: int | None) -> tuple[int, int]:
    """Sizes of the two disjoint batches: what is given, otherwise the two halves of the m0 training examples."""
    for key, value in (("algo.head_batch", head_batch), ("algo.batch", batch)):
        if value is not None:
            allowed = f"must be a whole number between 1 and half a user's data ({m // 2} of data.m={m})"
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
    blocks, inverse = np.unique(ids // BLOCK, return_inverse=True)
    keys = np.stack([generator(seed, "batches", round, int(block)).random((BLOCK, m)) for block in blocks])
    return np.argsort(keys[inverse, ids % BLOCK], axis=1)
