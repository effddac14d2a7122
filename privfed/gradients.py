"""Clipped gradients of all users in one compiled pass: the shared embedding's, at every user's own head.

Portions of users go through the processor's cache twice: once to project their examples, once to add up the gradients.
Everything is computed in double precision, whatever examples are stored in. Users without a unique head are flagged and done
again with heads of minimum norm: rare, slow, exact.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from privfed.kernels import RANK_TOLERANCE, TINY, compiled, contiguous, dot, leave_one_out_heads, lstsq, solve_all
from privfed.linalg import Array
from privfed.privacy.mechanisms import SLACK, Dense

LEVERAGE_TOLERANCE = 1e-6
"""Leave-one-out needs 1 - leverage above this, and pivots that leave it some correct digits."""
CHUNK, CACHE = 64, 1 << 16
"""Users, and about how many numbers of theirs, that are gone through twice in a row: the second time they are in the cache."""


@compiled
def _gradients(X, y, UT, ranks, batches, scale, clip, total, norms, ok):  # type: ignore[no-untyped-def]
    """Add the clipped gradients of all users to total (k, d); those flagged as not ok are left out.

    UT (K, d) has a row of zeros more where k is odd. Without ranks every example is judged by the head fitted without it. With
    ranks (users, m) the first of batches = (b', b) fits the head, the next b examples judge it.
    """
    users, m, d = X.shape
    K, k = len(UT), len(total)
    P, W, T, gradient = np.empty((K, m, CHUNK)), np.zeros((K, m, CHUNK)), np.empty((m, CHUNK)), np.empty((K, d))
    flat, sums = gradient.ravel(), total.ravel()
    chunk = min(CHUNK, max(8, CACHE // (m * d)))
    for start in range(0, users, chunk):
        count = min(chunk, users - start)
        for i in range(count):
            _project(X, start + i, UT, P, i)
        for j in range(m):
            for i in range(count):
                T[j, i] = y[start + i, j]
        good = ok[start : start + count]
        if len(ranks):
            _two_batch_weights(P[:k], T, ranks[start : start + count], batches, scale, W[:k], good)
        else:
            _leave_one_out_weights(P[:k], T, scale, W[:k], good)
        for i in range(count):
            norms[start + i] = 0.0
            if not good[i]:
                continue
            square = _combine(W, i, X, start + i, gradient)
            if not math.isfinite(square):
                continue
            norms[start + i] = math.sqrt(square)
            factor = _clip_factor(norms[start + i], clip)
            for c in range(len(sums)):
                sums[c] += factor * flat[c]


@compiled
def _project(X, user, UT, P, i):  # type: ignore[no-untyped-def]
    """P[a, j, i] = <u_a, x_j> for a user's examples X[user] (m, d) and UT (K, d), two of each at a time; K is even."""
    _, m, d = X.shape
    for a in range(0, len(UT), 2):
        for j in range(0, m - 1, 2):
            s, t, v, w = 0.0, 0.0, 0.0, 0.0
            for c in range(d):
                x, z, f, g = X[user, j, c], X[user, j + 1, c], UT[a, c], UT[a + 1, c]
                s += x * f
                t += x * g
                v += z * f
                w += z * g
            P[a, j, i], P[a + 1, j, i], P[a, j + 1, i], P[a + 1, j + 1, i] = s, t, v, w
        if m % 2:
            P[a, m - 1, i], P[a + 1, m - 1, i] = dot(X[user, m - 1], UT[a]), dot(X[user, m - 1], UT[a + 1])


@compiled
def _combine(W, i, X, user, out):  # type: ignore[no-untyped-def]
    """out_a = sum_j W[a, j, i] x_j for a user's examples X[user] (m, d), and the sum of its squares. W (K, m, .), out (K, d).

    Two rows of out and five examples at a time: every number is read and written as seldom as registers allow. K is even.
    """
    _, m, d = X.shape
    total = 0.0
    for a in range(0, len(W), 2):
        b, square = a + 1, 0.0
        for c in range(d):
            out[a, c], out[b, c] = 0.0, 0.0
        for j in range(m % 5):
            p, q = W[a, j, i], W[b, j, i]
            square = 0.0
            for c in range(d):
                f, g = out[a, c] + p * X[user, j, c], out[b, c] + q * X[user, j, c]
                out[a, c], out[b, c] = f, g
                square += f * f + g * g
        for j in range(m % 5, m, 5):
            p0, p1, p2, p3, p4 = W[a, j, i], W[a, j + 1, i], W[a, j + 2, i], W[a, j + 3, i], W[a, j + 4, i]
            q0, q1, q2, q3, q4 = W[b, j, i], W[b, j + 1, i], W[b, j + 2, i], W[b, j + 3, i], W[b, j + 4, i]
            square = 0.0  # of the last portion, which has them all
            for c in range(d):
                x0, x1, x2 = X[user, j, c], X[user, j + 1, c], X[user, j + 2, c]
                x3, x4 = X[user, j + 3, c], X[user, j + 4, c]
                f = out[a, c] + p0 * x0 + p1 * x1 + p2 * x2 + p3 * x3 + p4 * x4
                g = out[b, c] + q0 * x0 + q1 * x1 + q2 * x2 + q3 * x3 + q4 * x4
                out[a, c], out[b, c] = f, g
                square += f * f + g * g
        total += square
    return total


# What follows has users as the last axis, so that the processor does several of them at once.


@compiled
def _factors(P, L, ok, tolerance):  # type: ignore[no-untyped-def]
    """P^T P = L L^T for every user, with reciprocals on L's diagonal: P (k, m, users), L (k, k, users), ok (users,)."""
    k, m, _ = P.shape
    users = len(ok)
    largest = np.zeros(users)
    for a in range(k):
        for b in range(a + 1):
            for i in range(users):
                L[a, b, i] = 0.0
            for j in range(m):
                for i in range(users):
                    L[a, b, i] += P[a, j, i] * P[b, j, i]
        for i in range(users):
            largest[i] = max(largest[i], L[a, a, i])
    for a in range(k):
        for b in range(a + 1):
            for c in range(b):
                for i in range(users):
                    L[a, b, i] -= L[a, c, i] * L[b, c, i]
            if a > b:
                for i in range(users):
                    L[a, b, i] *= L[b, b, i]
        for i in range(users):
            ok[i] &= L[a, a, i] > tolerance * largest[i]
            L[a, a, i] = 1.0 / math.sqrt(L[a, a, i])


@compiled
def _leave_one_out_weights(P, y, scale, V, ok):  # type: ignore[no-untyped-def]
    """The weight of each x_j in the user's gradient, scale r_j v_(-j), into V.

    P, V (k, m, users), y (m, users), ok (users,).
    """
    k, m, _ = P.shape
    users = len(ok)
    L, W, z = np.empty((k, k, users)), np.empty((k, m, users)), np.zeros((k, users))
    e, rest = np.empty((m, users)), np.ones((m, users))
    for i in range(users):
        ok[i] = m > k
    _factors(P, L, ok, LEVERAGE_TOLERANCE)
    # w_j = L^-1 p_j; z = sum w_j y_j; e = y - fit; rest = 1 - leverage.
    for j in range(m):
        for i in range(users):
            e[j, i] = y[j, i]
    for a in range(k):
        for j in range(m):
            for i in range(users):
                W[a, j, i] = P[a, j, i]
            for c in range(a):
                for i in range(users):
                    W[a, j, i] -= L[a, c, i] * W[c, j, i]
            for i in range(users):
                W[a, j, i] *= L[a, a, i]
                z[a, i] += W[a, j, i] * y[j, i]
                rest[j, i] -= W[a, j, i] * W[a, j, i]
        for j in range(m):
            for i in range(users):
                e[j, i] -= W[a, j, i] * z[a, i]
    for j in range(m):
        for i in range(users):
            ok[i] &= rest[j, i] >= LEVERAGE_TOLERANCE
            e[j, i] /= rest[j, i]
    # v_(-j) = L^-T (z - w_j e_j), then its weight, as r_j = -e_j.
    for a in range(k - 1, -1, -1):
        for j in range(m):
            for i in range(users):
                V[a, j, i] = z[a, i] - W[a, j, i] * e[j, i]
            for c in range(a + 1, k):
                for i in range(users):
                    V[a, j, i] -= L[c, a, i] * V[c, j, i]
            for i in range(users):
                V[a, j, i] *= L[a, a, i]
    for a in range(k):
        for j in range(m):
            for i in range(users):
                V[a, j, i] *= -scale * e[j, i]


@compiled
def _two_batch_weights(P, y, ranks, batches, scale, V, ok):  # type: ignore[no-untyped-def]
    """The weight of each x_j in the user's gradient, scale r_j v for those that judge and 0 for others, into V.

    P, V (k, m, users), y (m, users), ranks (users, m), ok (users,).
    """
    k, m, _ = P.shape
    users = len(ok)
    head, end = batches[0], batches[0] + batches[1]
    L, Q, v, r = np.empty((k, k, users)), np.empty((k, m, users)), np.zeros((k, users)), np.empty(users)
    for j in range(m):
        for a in range(k):
            for i in range(users):
                Q[a, j, i] = P[a, j, i] if ranks[i, j] < head else 0.0
                v[a, i] += Q[a, j, i] * y[j, i]
    for i in range(users):
        ok[i] = True
    _factors(Q, L, ok, RANK_TOLERANCE)
    solve_all(L, v)
    for j in range(m):
        for i in range(users):
            r[i] = -y[j, i]
        for a in range(k):
            for i in range(users):
                r[i] += P[a, j, i] * v[a, i]
        for i in range(users):
            r[i] = scale * r[i] if head <= ranks[i, j] < end else 0.0
        for a in range(k):
            for i in range(users):
                V[a, j, i] = r[i] * v[a, i]


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


@compiled
def _clip_factor(norm, clip):  # type: ignore[no-untyped-def]
    """The scalar form of `mechanisms.clip_factors`."""
    bound = clip * SLACK
    factor = bound / max(norm, bound)
    return 0.0 if factor < TINY else factor


@dataclass(frozen=True)
class Gradients(ABC):
    """Contributions G_i^T = sum_j w_ij x_j^T, (k, d) each: gradients in U of users' losses at their own heads.

    X: (B, m, d), y: (B, m), as they are stored, in single or double precision; U: (d, k). Everything is computed in double
    precision, and clipping happens in the loop over users.
    """

    X: Array
    y: Array
    U: Array

    def _clipped(self, clip: float, ranks: NDArray[np.int32], batches: tuple[int, int], scale: float) -> tuple[Array, Array]:
        X, y, (d, k) = contiguous(self.X), contiguous(self.y), self.U.shape
        UT = np.zeros((k + k % 2, d))
        UT[:k] = self.U.T
        total, norms, ok = np.zeros((k, d)), np.empty(len(X)), np.empty(len(X), dtype=np.bool_)
        _gradients(X, y, UT, ranks, batches, float(scale), float(clip), total, norms, ok)
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
        r = np.vecdot(np.take_along_axis(P, other[..., None], 1), v[:, None, :]) - np.take_along_axis(y, other, 1)
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
