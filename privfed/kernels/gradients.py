"""Gradients of the shared embedding at every user's own head, clipped and summed.

The NumPy lines of an algorithm define what is computed. The compiled `gradient_sums` is a drop-in
for these lines and the clip, with one pass over the data instead of several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.compilation import DropIn, Job
from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import contiguous
from privfed.privacy.clipping import Dense
from privfed.privacy.summation import Total

FITS, JUDGES = 1, 2
"""An example is in B and fits the head, or is in B' and judges it."""

BLOCK = 1 << 19
"""Numbers of X that NumPy processes at a time, in double precision: they stay in cache."""

Marks = NDArray[np.uint8]


def _saves(job: Job) -> float:
    return 3.5e-10 * job.users * job.rounds * job.m * job.d * job.k


_SUMS = "privfed.kernels.compiled.gradient_sums"
LOOPS = {
    np.dtype(np.float32): DropIn(_SUMS, 9.0, _saves, "float32"),
    np.dtype(np.float64): DropIn(_SUMS, 9.0, _saves, "float64", on_demand=True),
}
"""By the type that examples are stored in; simulated ones are in single precision."""

SPLIT = DropIn(
    "privfed.kernels.compiled.batches",
    0.5,
    lambda job: 2e-8 * job.users * job.rounds * job.m,
    on_demand=True,
)


@dataclass(frozen=True)
class Gradients:
    """Contributions G_i^T (k, d) of a block of users; see `privfed.privacy.clipping.Contributions`.

    Attributes:
        lines: NumPy lines (X, y, U, **options) -> G^T (B, k, d), in double precision. With batches
            they also take `batches`.
        X: examples, (B, m, d), in the precision they are stored in.
        y: targets, (B, m).
        U: shared embedding, (d, k).
        weight: G^T = weight sum_j r_j v x_j^T. Both `lines` and the compiled loops multiply by it.
        batches: (B, m) by `split_batches`; None: each example is judged by the head fitted without
            it.
    """

    lines: Callable[..., Array]
    X: NDArray[Any]
    y: NDArray[Any]
    U: Array
    weight: float
    batches: Marks | None = None

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Return the sum (k, d) of gradients clipped to norm clip, and the norms (B,) before.

        A user whose numbers are not finite contributes nothing and counts as norm 0.
        """
        X, y = contiguous(self.X), contiguous(self.y)
        total, norms = Total(np.zeros(self.U.T.shape)), np.empty(len(X))
        with np.errstate(all="ignore"):
            if loops := LOOPS[X.dtype].chosen():
                ok = np.empty(len(X), dtype=np.bool_)
                U = np.ascontiguousarray(self.U)
                batches = np.empty((0, 0), np.uint8) if self.batches is None else self.batches
                weight, clip = float(self.weight), float(clip)
                loops.sum_clipped(X, y, U, batches, weight, clip, total.high, norms, ok)
                # Users without a unique head are rare.
                todo: list[Any] = [] if ok.all() else [np.flatnonzero(~ok)]
            else:
                size = max(1, BLOCK // max(1, X[:1].size))
                todo = [slice(start, start + size) for start in range(0, len(X), size)]
            for users in todo:
                part, norms[users] = Dense(self.some(users)).clipped(clip)
                total.add(part)
        return total.value, norms

    def some(self, users: Any) -> Array:
        """Return G_i^T (B', k, d) of some of the users, by the NumPy lines."""
        X, y = (array[users].astype(np.float64, copy=False) for array in (self.X, self.y))
        more = {} if self.batches is None else {"batches": self.batches[users]}
        return self.lines(X, y, self.U, weight=self.weight, **more)


def choose_gradient_loops(stored: Any = np.float32) -> None:
    """Decide how gradients are computed, so that no round waits for it.

    Args:
        stored: type that examples are stored in.
    """
    LOOPS[np.dtype(np.float32 if stored == np.float32 else np.float64)].chosen()


def split_batches(draws: Array, head: int, batch: int) -> Marks:
    """Split every user's examples into two disjoint batches, by the order of random numbers.

    Args:
        draws: (B, m); ties count by position.
        head: size of B: the examples with the smallest numbers.
        batch: size of B': those with the next ones.

    Returns:
        (B, m): FITS for examples in B, JUDGES for those in B', otherwise 0.
    """
    batches = np.zeros(draws.shape, np.uint8)
    if loops := SPLIT.chosen():
        loops.split(draws, head, batch, batches)
        return batches
    order = np.argsort(draws, axis=1, kind="stable")
    np.put_along_axis(batches, order[:, :head], np.uint8(FITS), 1)
    np.put_along_axis(batches, order[:, head : head + batch], np.uint8(JUDGES), 1)
    return batches
