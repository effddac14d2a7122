"""Clipped gradients of all users in one compiled pass: the shared embedding's, at every user's own head.

Eight users at a time go through the processor's cache twice: once to project their examples, once to add up the gradients; the
next eight are fetched meanwhile. Everything is computed in double precision, whatever examples are stored in. Users without a
unique head are flagged and done again with heads of minimum norm: rare, slow, exact.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privfed.kernels import RANK_TOLERANCE, TINY, compiled, contiguous, leave_one_out_heads, lstsq
from privfed.lanes import (
    WIDTH,
    after,
    aligned,
    fill,
    first,
    get,
    larger,
    load,
    load_rows,
    prefetch,
    put,
    root,
    smaller,
    store,
    totals,
    zero_rows,
)
from privfed.linalg import Array
from privfed.privacy.mechanisms import SLACK, Dense

LEVERAGE_TOLERANCE = 1e-6
"""Leave-one-out needs 1 - leverage above this, and pivots that leave it some correct digits."""


class Space(NamedTuple):
    """What eight users are computed in, all of it flat; an axis of 8 has one number of each of them, side by side."""

    P: Array
    """(K, m, 8): their examples, projected."""
    W: Array
    """(K, m, 8): the weights of their examples in their gradients."""
    targets: Array
    """(m, 8)"""
    roles: Array
    """(2, m, 8): which examples fit the head and which judge it; without such roles, residuals and 1 - leverages."""
    L: Array
    """(k, k, 8): factors of their Gram matrices."""
    heads: Array
    """(k, 8)"""
    Q: Array
    """(k, m, 8): P, without examples that do not fit the head or in L's coordinates."""
    G: Array
    """(8, K, D): their gradients."""
    scales: Array
    """(8, 8): partial sums of squares of each of their gradients; then what the gradients are multiplied with."""
    total: Array
    """(K, D): the sum over all users."""


@compiled
def _gradients(X, y, U, ranks, batches, scale, clip, total, norms, ok):  # type: ignore[no-untyped-def]
    """The sum of all users' clipped gradients into total (k, d), without those of users flagged as not ok.

    Without ranks every example is judged by the head fitted without it. With ranks (users, m) the first b' of batches = (b', b)
    fit the head, the next b judge it.
    """
    _, m, d = X.shape
    k = len(total)
    K, D, width = k + k % 2, d + -d % WIDTH, max(d, WIDTH)
    UT, kept = aligned(K * D), aligned(D)
    for c in range(D):
        column = _column(c, width)
        if c - c % WIDTH <= column < d:
            kept[c] = 1.0
            for a in range(k):
                UT[a * D + c] = U[column, a]
    space = Space(
        aligned(8 * K * m),
        aligned(8 * K * m),
        aligned(8 * m),
        aligned(16 * m),
        aligned(8 * k * k),
        aligned(8 * k),
        aligned(8 * k * m),
        aligned(8 * K * D),
        aligned(64),
        aligned(K * D),
    )
    few = np.zeros((WIDTH, m, width), X.dtype)
    _by_eights(X, y, UT, kept, k, ranks, batches, scale, clip, few, space, norms, ok)
    for c in range(D):
        if kept[c]:
            for a in range(k):
                total[a, _column(c, width)] = space.total[a * D + c]


@compiled
def _column(c, width):  # type: ignore[no-untyped-def]
    """Columns are taken in blocks of 8, the last of which reaches back into the one before: the column at place c."""
    return min(c - c % WIDTH, width - WIDTH) + c % WIDTH


@compiled
def _by_eights(X, y, UT, kept, k, ranks, batches, scale, clip, few, space, norms, ok):  # type: ignore[no-untyped-def]
    """Add all users' clipped gradients to space.total, as `_gradients` does.

    UT (K D,) and kept (D,) have columns by `_column`; where one comes a second time both are 0. K is even: where k is not, UT
    has a row of zeros more. few (8, m, max(d, 8)): for users that do not fill vectors.
    """
    users, m, d = X.shape
    D, width = len(kept), few.shape[2]
    K, each, line = len(UT) // D, m * width, 64 // X.itemsize
    P, W, targets, roles = first(space.P), first(space.W), first(space.targets), first(space.roles)
    L, heads, Q, G = first(space.L), first(space.heads), first(space.Q), first(space.G)
    for start in range(0, users, WIDTH):
        count = min(WIDTH, users - start)
        these = after(first(X), start * each)
        if count < WIDTH or d < width:
            few[count:] = 0.0
            few[:count, :, :d] = X[start : start + count]
            these = first(few)
        _project(these, m, width, first(UT), K, D, P)
        for i in range(count):
            for j in range(m):
                put(targets, WIDTH * j + i, float(y[start + i, j]))
        if len(ranks):
            for i in range(count):
                for j in range(m):
                    fits, past = ranks[start + i, j] < batches[0], ranks[start + i, j] >= batches[0] + batches[1]
                    put(roles, WIDTH * j + i, 1.0 if fits else 0.0)
                    put(roles, WIDTH * (m + j) + i, 0.0 if fits or past else 1.0)
            margin = _two_batch_weights(P, targets, roles, m, k, scale, L, heads, Q, W)
        else:
            margin = _leave_one_out_weights(P, targets, roles, m, k, scale, L, heads, Q, W)
        ahead = d == width and start + 2 * WIDTH <= users
        for i in range(WIDTH):
            if ahead:
                for c in range(0, each, line):
                    prefetch(these, (WIDTH + i) * each + c)
            squares = _combine(after(W, i), after(these, i * each), m, width, first(kept), K, D, after(G, i * K * D))
            store(first(space.scales), WIDTH * i, squares)
        _add(margin, clip, space, norms[start : start + count], ok[start : start + count])


@compiled
def _add(margin, clip, space, norms, ok):  # type: ignore[no-untyped-def]
    """Add eight users' gradients to space.total, clipped; margin: users have unique heads where it is above 0.

    norms and ok have room for those of them that are users.
    """
    scales, G, total, size = first(space.scales), first(space.G), first(space.total), len(space.total)
    squares = totals(load_rows(scales, 0, WIDTH))
    store(scales, 0, squares)
    store(scales, WIDTH, margin)
    for i in range(WIDTH):
        square, unique, factor = get(scales, i), get(scales, WIDTH + i) > 0.0, 0.0
        if i < len(norms):
            ok[i] = unique
            norms[i] = 0.0
            if unique and math.isfinite(square):
                norms[i] = math.sqrt(square)
                factor = _clip_factor(norms[i], clip)
        if factor == 0.0:  # a number that is not finite stays so when multiplied with 0
            for c in range(0, size, WIDTH):
                store(G, i * size + c, fill(0.0))
        put(scales, 2 * WIDTH + i, factor)
    for c in range(0, size, WIDTH):
        s = load(total, c)
        for i in range(WIDTH):
            s = s + load(G, i * size + c) * fill(get(scales, 2 * WIDTH + i))
        store(total, c, s)


@compiled
def _project(X, m, d, UT, K, D, P):  # type: ignore[no-untyped-def]
    """P[a, j, i] = <u_a, x_ij> for eight users' examples X (8, m, d) and UT (K, D): two of the latter at a time."""
    for j in range(m):
        for a in range(0, K, 2):
            u, w = after(UT, a * D), after(UT, a * D + D)
            s, t = zero_rows(), zero_rows()
            for c in range(0, D, WIDTH):
                x = load_rows(X, j * d + min(c, d - WIDTH), m * d)
                s = s + x * load(u, c)
                t = t + x * load(w, c)
            store(P, WIDTH * (a * m + j), totals(s))
            store(P, WIDTH * (a * m + m + j), totals(t))


@compiled
def _combine(W, X, m, d, kept, K, D, out):  # type: ignore[no-untyped-def]
    """out_a = sum_j W[a, j] x_j for a user's examples X (m, d), and eight numbers whose sum is that of its squares.

    W (K, m), every eighth number; out (K, D), 0 where columns come a second time. Two a and two blocks of columns at a time.
    """
    nothing = fill(0.0)
    squares, others = nothing, nothing
    for a in range(0, K, 2):
        p, q = after(W, WIDTH * a * m), after(W, WIDTH * (a + 1) * m)
        f, g = after(out, a * D), after(out, a * D + D)
        for c in range(0, D - WIDTH, 2 * WIDTH):
            b = min(c + WIDTH, d - WIDTH)
            s, t, v, w = nothing, nothing, nothing, nothing
            for j in range(m):
                x, z = load(X, j * d + c), load(X, j * d + b)
                s, t = s + x * fill(get(p, WIDTH * j)), t + x * fill(get(q, WIDTH * j))
                v, w = v + z * fill(get(p, WIDTH * j)), w + z * fill(get(q, WIDTH * j))
            v, w = v * load(kept, c + WIDTH), w * load(kept, c + WIDTH)
            squares, others = squares + s * s + v * v, others + t * t + w * w
            store(f, c, s)
            store(g, c, t)
            store(f, c + WIDTH, v)
            store(g, c + WIDTH, w)
        if D % (2 * WIDTH):
            s, t = nothing, nothing
            for j in range(m):
                x = load(X, j * d + d - WIDTH)
                s, t = s + x * fill(get(p, WIDTH * j)), t + x * fill(get(q, WIDTH * j))
            s, t = s * load(kept, D - WIDTH), t * load(kept, D - WIDTH)
            squares, others = squares + s * s, others + t * t
            store(f, D - WIDTH, s)
            store(g, D - WIDTH, t)
    return squares + others


# What follows reads as for a single user; every number is one of each of eight.


@compiled
def _at(A, n):  # type: ignore[no-untyped-def]
    return load(A, WIDTH * n)


@compiled
def _set(A, n, value):  # type: ignore[no-untyped-def]
    store(A, WIDTH * n, value)


@compiled
def _factors(P, m, k, L, tolerance):  # type: ignore[no-untyped-def]
    """P^T P = L L^T, with reciprocals on L's diagonal: P (k, m), L (k, k). Not above 0: no full rank, or not finite."""
    largest, margin = fill(0.0), fill(1.0)
    for a in range(k):
        for b in range(a + 1):
            s = fill(0.0)
            for j in range(m):
                s = s + _at(P, a * m + j) * _at(P, b * m + j)
            _set(L, a * k + b, s)
        largest = larger(largest, _at(L, a * k + a))
    for a in range(k):
        for b in range(a + 1):
            s = _at(L, a * k + b)
            for c in range(b):
                s = s - _at(L, a * k + c) * _at(L, b * k + c)
            if a > b:
                s = s * _at(L, b * k + b)
            else:
                margin = smaller(margin, s - fill(tolerance) * largest)
                s = fill(1.0) / root(s)
            _set(L, a * k + b, s)
    return margin


@compiled
def _leave_one_out_weights(P, y, e, m, k, scale, L, z, Q, W):  # type: ignore[no-untyped-def]
    """The weight of each x_j in the user's gradient, scale r_j v_(-j), into W. Not above 0: no unique heads.

    P, W, Q (k, m), y (m,), e (2, m), L (k, k), z (k,).
    """
    margin = _factors(P, m, k, L, LEVERAGE_TOLERANCE) if m > k else fill(-1.0)
    # w_j = L^-1 p_j; z = sum w_j y_j; e = y - fit, then 1 - leverage.
    for j in range(m):
        _set(e, j, _at(y, j))
        _set(e, m + j, fill(1.0))
    for a in range(k):
        fitted = fill(0.0)
        for j in range(m):
            w = _at(P, a * m + j)
            for c in range(a):
                w = w - _at(L, a * k + c) * _at(Q, c * m + j)
            w = w * _at(L, a * k + a)
            _set(Q, a * m + j, w)
            _set(e, m + j, _at(e, m + j) - w * w)
            fitted = fitted + w * _at(y, j)
        for j in range(m):
            _set(e, j, _at(e, j) - _at(Q, a * m + j) * fitted)
        _set(z, a, fitted)
    # v_(-j) = L^-T (z - w_j e_j), then its weight, as r_j = -e_j.
    for j in range(m):
        margin = smaller(margin, _at(e, m + j) - fill(LEVERAGE_TOLERANCE))
        error = _at(e, j) / _at(e, m + j)
        for a in range(k - 1, -1, -1):
            v = _at(z, a) - _at(Q, a * m + j) * error
            for c in range(a + 1, k):
                v = v - _at(L, c * k + a) * _at(W, c * m + j)
            _set(W, a * m + j, v * _at(L, a * k + a))
        for a in range(k):
            _set(W, a * m + j, _at(W, a * m + j) * error * fill(-scale))
    return margin


@compiled
def _two_batch_weights(P, y, roles, m, k, scale, L, v, Q, W):  # type: ignore[no-untyped-def]
    """The weight of each x_j in the user's gradient, scale r_j v for those that judge and 0 for others, into W.

    P, W, Q (k, m), y (m,), roles (2, m): 1 for those that fit v, then for those that judge, L (k, k), v (k,). Not above 0: no
    unique head.
    """
    for a in range(k):
        s = fill(0.0)
        for j in range(m):
            p = _at(P, a * m + j) * _at(roles, j)
            _set(Q, a * m + j, p)
            s = s + p * _at(y, j)
        _set(v, a, s)
    margin = _factors(Q, m, k, L, RANK_TOLERANCE)
    for a in range(k):
        s = _at(v, a)
        for c in range(a):
            s = s - _at(L, a * k + c) * _at(v, c)
        _set(v, a, s * _at(L, a * k + a))
    for a in range(k - 1, -1, -1):
        s = _at(v, a)
        for c in range(a + 1, k):
            s = s - _at(L, c * k + a) * _at(v, c)
        _set(v, a, s * _at(L, a * k + a))
    for j in range(m):
        r = fill(0.0) - _at(y, j)
        for a in range(k):
            r = r + _at(P, a * m + j) * _at(v, a)
        r = r * _at(roles, m + j) * fill(scale)
        for a in range(k):
            _set(W, a * m + j, r * _at(v, a))
    return margin


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
        X, y = contiguous(self.X), contiguous(self.y)
        total, norms, ok = np.zeros(self.U.T.shape), np.empty(len(X)), np.empty(len(X), dtype=np.bool_)
        _gradients(X, y, np.ascontiguousarray(self.U), ranks, batches, float(scale), float(clip), total, norms, ok)
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
