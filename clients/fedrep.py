"""Private FedRep, user side: gradients (PMPR Algorithm 1), and normalised posterior directions.

    X, y  the user's m examples (m, d) and targets (m,)     U   shared embedding (d, k)
    P     X U: the examples in the embedding (m, k)         v   head (k,): least squares on a batch
    r     residuals P v - y on the other batch              G   gradient (d, k) of the mean of r^2

`two-batches` is the paper's: two disjoint batches B, B' per round. They are `redrawn` from all
training examples in every round, or `fresh`: disjoint over all rounds, as the analysis needs it,
which takes T (|B| + |B'|) training examples. `one-batch` is the released code's: all training
examples fit the head and judge it. `leave-one-out` uses every example both ways and still never
judges a head by an example it has seen: v_(-j) is fitted without example j. All are written for a
block of users, so every array has one more, leading axis.

`posterior` asks for directions. U with the root of the covariance of heads and the spread makes a
prior of a user's predictor (privfed/models/posterior.py).

    a      posterior mean of the predictor, in units of its prior: ridge regression
    v      U^T a (k,): the user's head                delta   a - U v (d,): what U misses

    send (delta v^T / (|delta| |v|))^T, of norm 1, or 0 for a user without data

It points along the score: for y ~ N(0, K), K the prior covariance of targets, the derivative of the
log-likelihood in U is delta v^T less its mean given X, which is small as long as m < d. All users
send the same length, because noise is paid for by the longest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from flwr.common import NDArrays

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.client import task
from privfed.algorithm.linear_client import LinearClient
from privfed.data.cohort import BYTES, Cohort, Ids, draws
from privfed.foundation.constraints import AT_LEAST_ZERO, FLAG, Choice
from privfed.foundation.errors import ConfigError, check_number
from privfed.foundation.linalg import Array
from privfed.kernels.gradients import (
    FITS,
    JUDGES,
    Gradients,
    Marks,
    choose_gradient_loops,
    split_batches,
)
from privfed.kernels.least_squares import leave_one_out_heads, lstsq
from privfed.models.posterior import Prior, unit
from privfed.privacy.clipping import Contributions, Dense

REDRAWN, FRESH = "redrawn", "fresh"
"""Batches are drawn from all training examples in every round, or are disjoint over all rounds."""

LARGE = 1 << 25
"""Bytes of examples per block of users for the gradient."""


def leave_one_out(X: Array, y: Array, U: Array, weight: float) -> Array:
    """Return G^T = weight sum_j r_j v_(-j) x_j^T, with weight = 2/m: (B, k, d)."""
    P = X @ U
    V = leave_one_out_heads(P, y)  # v_(-1), ..., v_(-m)
    r = np.vecdot(P, V) - y
    return weight * np.matmul((r[..., None] * V).transpose(0, 2, 1), X)


def two_batches(X: Array, y: Array, U: Array, weight: float, batches: Marks) -> Array:
    """Return G^T = weight v sum_{j in B'} r_j x_j^T (B, k, d), v fitted on B, weight = 2/b."""
    P = X @ U
    in_B, in_B_ = batches == FITS, batches == JUDGES
    v = lstsq(P * in_B[..., None], y * in_B)  # rows of zeros do not change a fit
    r = (np.matmul(P, v[..., None])[..., 0] - y) * in_B_
    return weight * v[:, :, None] * np.matmul(r[:, None, :], X)


def one_batch(X: Array, y: Array, U: Array, weight: float) -> Array:
    """Return G^T = weight v sum_j r_j x_j^T (B, k, d), v fitted on the same examples."""
    P = X @ U
    v = lstsq(P, y)
    r = np.matmul(P, v[..., None])[..., 0] - y
    return weight * v[:, :, None] * np.matmul(r[:, None, :], X)


class FedRepClient(LinearClient):
    """Per-user gradients of the shared embedding at the user's own head, or directions of norm 1.

    Args:
        cohort: users.
        init: user side of the initialiser.
        estimator: how gradients are estimated; the server decides whether directions are asked for.
        train: examples that train the embedding.
        heads: examples that fit the final head.
        head_batch: two-batches: examples for the head.
        batch: two-batches: examples for the gradient.
        batches: two-batches: redrawn in every round, or fresh: disjoint over all rounds.
        rounds: number of rounds, for fresh batches.
        noise: posterior: assumed label noise, in units of heads.
        safety: see :class:`LinearClient`.
    """

    def __init__(
        self,
        cohort: Cohort,
        init: Any,
        estimator: Annotated[
            str, Choice("auto", "leave-one-out", "two-batches", "one-batch", "posterior")
        ],
        train: str,
        heads: str,
        head_batch: int | None,
        batch: int | None,
        batches: Annotated[str, Choice(REDRAWN, FRESH)] = REDRAWN,
        rounds: int | None = None,
        noise: Annotated[float, AT_LEAST_ZERO] = 0.0,
        safety: Annotated[bool, FLAG] = False,
    ) -> None:
        super().__init__(cohort, init, train, heads, safety)
        self.estimator, self.fresh, self.noise = estimator, batches == FRESH, noise
        there = self.m0
        if self.fresh and estimator == "two-batches":
            there = examples_per_round(self.m0, rounds)
        self.b_head, self.b = batch_sizes(self.m, there, head_batch, batch)
        if len(cohort) and estimator not in ("auto", "posterior"):
            choose_gradient_loops(cohort.X.dtype if isinstance(cohort, Cohort) else np.float32)

    def portions(self, task: str, users: Ids | None) -> Iterator[Cohort]:
        """Yield the users of a task as they are stored; the gradient takes larger blocks."""
        size = LARGE if task == "gradient" else BYTES
        return self.seen.blocks(users, examples=self.train, bytes_each=size, exact=False)

    @task
    def gradient(self, block: Cohort, shared: NDArrays, told: Announcement) -> Contributions:
        """Return G_i^T (k, d) for every user of the block."""
        if self.estimator == "two-batches":
            return self.by_two_batches(block, shared, told)
        if self.estimator == "one-batch":
            block = block.exact()
            return Dense(one_batch(block.X, block.y, shared[0], weight=2.0 / block.y.shape[1]))
        return Gradients(leave_one_out, block.X, block.y, shared[0], weight=2.0 / block.y.shape[1])

    @task
    def direction(self, block: Cohort, shared: NDArrays, told: Announcement) -> Array:
        """Return v delta^T / (|v| |delta|) for every user of the block, (B, k, d)."""
        block = block.exact()
        U, heads, spread = shared
        prior = Prior.of_spread(U, heads, float(spread[0]), self.noise)
        v, delta = prior.parts(prior.fit(block.X, block.y))
        return unit(v)[:, :, None] * unit(delta)[:, None, :]

    def by_two_batches(
        self, block: Cohort, shared: NDArrays, told: Announcement, loss: float = 1.0
    ) -> Contributions:
        """Return G_i^T (k, d) by two disjoint batches, of `loss` times the mean squared error."""
        m0, size = block.y.shape[1], self.b_head + self.b
        if self.fresh:  # one order of a user's examples for all rounds, cut into pieces
            drawn = draws(told.seed, block.identities, m0, "batches")
            places = np.argsort(np.argsort(drawn, axis=1, kind="stable"), axis=1)
            drawn = ((places - size * max(0, told.round - 1)) % m0).astype(np.float64)
        else:
            drawn = draws(told.seed, block.identities, m0, "batches", told.round)
        batches = split_batches(drawn, self.b_head, self.b)
        weight = 2.0 * loss / self.b
        return Gradients(two_batches, block.X, block.y, shared[0], weight, batches)


def examples_per_round(m0: int, rounds: int | None) -> int:
    """Return how many examples a user has for one round if no example serves in two rounds.

    Args:
        m0: number of training examples per user.
        rounds: number of rounds T; None where it is not given.

    Raises:
        ConfigError: if T is not given, or fewer than two examples are left for a round.
    """
    if rounds is None:
        allowed = "must be given with algo.batches=fresh, which shares examples among rounds"
        raise ConfigError.of("rounds", None, allowed)
    if m0 // rounds < 2:
        allowed = (
            f"two batches in each of rounds={rounds} need {2 * rounds} training examples or more, "
            f"and a user has {m0}"
        )
        raise ConfigError.of("algo.batches", FRESH, allowed)
    return m0 // rounds


def batch_sizes(m: int, m0: int, head_batch: int | None, batch: int | None) -> tuple[int, int]:
    """Return the sizes of the two disjoint batches.

    Args:
        m: number of examples per user.
        m0: number of training examples per user and round.
        head_batch: examples for the head; None takes what `batch` leaves, or half of m0.
        batch: examples for the gradient; None takes what `head_batch` leaves, or half of m0.

    Raises:
        ConfigError: if a size is not allowed, or both together exceed m0.
    """
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
            f"with algo.head_batch={head_batch} the two disjoint batches need more than the "
            f"{m0} examples",
        )
    return head_batch, batch
