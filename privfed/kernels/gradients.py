"""Gradients of all users, clipped: the shared embedding's, at every user's own head.

One compiled pass adds them up (`privfed.kernels.gradient_sums`). Users without a unique head are flagged there and done again here with heads
of minimum norm: rare, slow, exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.compilation import compiled
from privfed.foundation.linalg import Array
from privfed.kernels.gradient_sums import sum_clipped
from privfed.kernels.least_squares import contiguous, leave_one_out_heads, lstsq
from privfed.privacy.clipping import Dense


@compiled
def _ranks(draws, ranks):  # type: ignore[no-untyped-def]
    """The place 0..m-1 of each number among the user's own, ties by position: draws (users, m) -> ranks (users, m)."""
    users, m = draws.shape
    for i in range(users):
        for j in range(m):
            place = 0
            for c in range(m):
                place += draws[i, c] < draws[i, j] or (draws[i, c] == draws[i, j] and c < j)
            ranks[i, j] = place


@dataclass(frozen=True)
class Gradients(ABC):
    """Contributions G_i^T = sum_j w_ij x_j^T, (k, d) each: gradients in U of users' losses at their own heads.

    X: (B, m, d), y: (B, m), as they are stored, in single or double precision; U: (d, k). Everything is computed in double
    precision, and clipping happens in the loop over users.
    """

    X: Array
    y: Array
    U: Array

    def _clipped(
        self, clip: float, ranks: NDArray[np.int32], batches: tuple[int, int], scale: float
    ) -> tuple[Array, Array]:
        X, y = contiguous(self.X), contiguous(self.y)
        total, norms, ok = (
            np.zeros(self.U.T.shape),
            np.empty(len(X)),
            np.empty(len(X), dtype=np.bool_),
        )
        sum_clipped(
            X,
            y,
            np.ascontiguousarray(self.U),
            ranks,
            batches,
            float(scale),
            float(clip),
            total,
            norms,
            ok,
        )
        if not ok.all():
            bad = np.flatnonzero(~ok)
            rest, norms[bad] = Dense(self._min_norm(bad)).clipped(clip)
            total += rest
        return total, norms

    def _some(self, users: NDArray[np.intp]) -> tuple[Array, Array, Array]:
        """X, y and P = X U of some users in double precision."""
        X, y = (array[users].astype(np.float64) for array in (self.X, self.y))
        return X, y, X @ self.U

    @abstractmethod
    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Sum (k, d) of the gradients scaled to norm at most clip, and their norms (B,)."""

    @abstractmethod
    def _min_norm(self, users: NDArray[np.intp]) -> Array:
        """G_i^T (B', k, d) of users without a unique head, by heads of minimum norm: exact and slow."""


@dataclass(frozen=True)
class LeaveOneOut(Gradients):
    """G_i^T = (2/m) sum_j r_j v_(-j) x_j^T: each example judged by the head fitted without it.

    All m heads of a user come from one factorisation P^T P = L L^T of P = X U: with w_j = L^-1 p_j, z = sum_j w_j y_j and
    e_j = (y_j - w_j^T z) / (1 - |w_j|^2), the residual is r_j = p_j^T v_(-j) - y_j = -e_j and the head
    v_(-j) = L^-T (z - w_j e_j).
    """

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Sum (k, d) of the gradients scaled to norm at most clip, and their norms (B,)."""
        return self._clipped(clip, np.empty((0, 0), np.int32), (0, 0), 2.0 / self.y.shape[1])

    def _min_norm(self, users: NDArray[np.intp]) -> Array:
        X, y, P = self._some(users)
        V = leave_one_out_heads(P, y)
        r = np.vecdot(P, V) - y
        return (2.0 / y.shape[1]) * np.matmul((V * r[..., None]).transpose(0, 2, 1), X)


@dataclass(frozen=True)
class TwoBatches(Gradients):
    """G_i^T = loss (2/b) sum_{j in B'} r_j v x_j^T, with the head v fitted on another, disjoint batch B.

    draws: (B, m) numbers whose order says which examples are in which batch: the smallest `head` fit, the next `batch` judge.
    """

    draws: Array
    head: int
    batch: int
    loss: float = 1.0

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """Sum (k, d) of the gradients scaled to norm at most clip, and their norms (B,)."""
        ranks = np.empty(self.draws.shape, np.int32)
        _ranks(self.draws, ranks)
        return self._clipped(clip, ranks, (self.head, self.batch), 2.0 * self.loss / self.batch)

    def _min_norm(self, users: NDArray[np.intp]) -> Array:
        X, y, P = self._some(users)
        order = np.argsort(self.draws[users], axis=1, kind="stable")
        head, other = order[:, : self.head], order[:, self.head : self.head + self.batch]
        v = lstsq(np.take_along_axis(P, head[..., None], 1), np.take_along_axis(y, head, 1))
        r = np.vecdot(
            np.take_along_axis(P, other[..., None], 1), v[:, None, :]
        ) - np.take_along_axis(y, other, 1)
        weights = np.zeros(y.shape)
        np.put_along_axis(weights, other, (2.0 * self.loss / self.batch) * r, 1)
        return v[:, :, None] * np.matmul(weights[:, None, :], X)


@cache
def prepare(stored: type = np.float32) -> None:
    """Load the compiled kernels, compiling them on a machine's first use, so that no round waits for it.

    stored: how examples are stored; simulated ones in single precision, a user's own rows in double.
    """
    X, y = np.ones((1, 3, 1)), np.ones((1, 3))
    LeaveOneOut(X.astype(stored), y.astype(stored), X[0, :1]).clipped(1.0)
    lstsq(X, y)
