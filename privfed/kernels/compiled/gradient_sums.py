"""Clipped gradients of all users in one compiled pass: the lines of `clients.fedrep` and the clip.

Eight users go through the processor's cache at a time, twice: first their examples are projected,
then their gradients are added up. The next eight are fetched meanwhile. All is computed in double
precision, whatever precision the examples are stored in.

    X (users, m, d), as stored: user after user, row after row            what is made of it
    +---------------------------+
    | user 0   x_0  c0 c1 .. cd |--+   P[a, j, :]  eight users side by side, one vector register
    |          x_1  c0 c1 .. cd |  |       user    0    1    2    3    4    5    6    7
    |          ...              |  |   a=0 j=0  [ p00  p00  p00  p00  p00  p00  p00  p00 ]
    | user 1   x_0  ...         |--+       j=1  [ p01  ...                               ]
    |          ...              |  |   a=1 j=0  [ p10  ...                               ]
    | ...                       |  |     targets (m, 8), L (k, k, 8), heads (k, 8), W (K, m, 8):
    | user 7   ...              |--+     the same way, so heads are fitted for eight users at once
    +---------------------------+
      | user 8..15: prefetched  |      G[i, a, :]   one user after the other, features side by side
                                            c  0..7        8..15       ...     d-8..d-1
                                       a=0  [ 8 numbers ] [ 8 numbers ] ... [ 8 numbers ]
                                       a=1  [ 8 numbers ] ...

The last block of eight columns ends at column d - 1. Where 8 does not divide d it reaches back into
the block before it, and `kept` is 0 for columns that come a second time:

    d = 13:    c   0  1  2  3  4  5  6  7 | 5  6  7  8  9 10 11 12        D = 16 places
    kept           1  1  1  1  1  1  1  1 | 0  0  0  1  1  1  1  1

K is k rounded up to an even number, as rows of U^T are used in pairs; the added row is 0. Fewer
than eight users, or fewer than eight features, are copied into a zeroed room `few` (8, m, max(d,
8)).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from privfed.foundation.compilation import compiled
from privfed.foundation.linalg import Array
from privfed.kernels.compiled.example_weights import leave_one_out_weights, two_batch_weights
from privfed.kernels.compiled.simd import (
    WIDTH,
    after,
    aligned,
    fill,
    first,
    get,
    load_lanes,
    load_rows,
    prefetch,
    put,
    store,
    totals,
    zero_rows,
)
from privfed.kernels.tolerances import TINY
from privfed.privacy.summation import DEPTH, SLACK


class Space(NamedTuple):
    """Working memory for eight users, all flat; an axis of 8 holds one number per user."""

    P: Array
    """(K, m, 8): projected examples."""
    W: Array
    """(K, m, 8): weights of examples in gradients."""
    targets: Array
    """(m, 8)"""
    roles: Array
    """(2, m, 8): 1 for examples in B, then in B'; leave-one-out: residuals, then 1 - leverages."""
    L: Array
    """(k, k, 8): factors of Gram matrices."""
    heads: Array
    """(k, 8)"""
    Q: Array
    """(k, m, 8): two batches: P of examples in B; leave-one-out: L^-1 P."""
    G: Array
    """(8, K, D): gradients."""
    scales: Array
    """(8, 8): partial sums of squares of each user's gradient; then the clip factors."""
    total: Array
    """(K, D): sum over up to DEPTH users."""
    high: Array
    """(K, D): sum of such sums."""
    low: Array
    """(K, D): rounding errors of `high`."""


@compiled
def sum_clipped(X, y, U, batches, scale, clip, total, norms, ok):  # type: ignore[no-untyped-def]
    """Write the sum of users' clipped gradients into total (k, d), without users that are not ok.

    batches (users, m): 1 for examples in B, which fit the head, 2 for those in B', which judge it,
    else 0. Empty: leave-one-out. norms (users,): before clipping, 0 for users whose numbers
    overflow.
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
        aligned(K * D),
        aligned(K * D),
    )
    few = np.zeros((WIDTH, m, width), X.dtype)
    _by_eights(X, y, UT, kept, k, batches, scale, clip, few, space, norms, ok)
    for c in range(D):
        if kept[c]:
            for a in range(k):
                total[a, _column(c, width)] = space.high[a * D + c] + space.low[a * D + c]


@compiled
def _column(c, width):  # type: ignore[no-untyped-def]
    """Return the column at place c; the last block of 8 columns overlaps the block before it."""
    return min(c - c % WIDTH, width - WIDTH) + c % WIDTH


@compiled
def _by_eights(X, y, UT, kept, k, batches, scale, clip, few, space, norms, ok):  # type: ignore[no-untyped-def]
    """Add all users' clipped gradients to space.high and space.low, as `sum_clipped` does.

    UT (K D,) and kept (D,) have columns by `_column`; both are 0 at repeated columns.
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
        if len(batches):
            for i in range(count):
                for j in range(m):
                    put(roles, WIDTH * j + i, 1.0 if batches[start + i, j] == 1 else 0.0)
                    put(roles, WIDTH * (m + j) + i, 1.0 if batches[start + i, j] == 2 else 0.0)
            margin = two_batch_weights(P, targets, roles, m, k, scale, L, heads, Q, W)
        else:
            margin = leave_one_out_weights(P, targets, roles, m, k, scale, L, heads, Q, W)
        ahead = d == width and start + 2 * WIDTH <= users
        for i in range(WIDTH):
            if ahead:
                for c in range(0, each, line):
                    prefetch(these, (WIDTH + i) * each + c)
            squares = _combine(
                after(W, i),
                after(these, i * each),
                m,
                width,
                first(kept),
                K,
                D,
                after(G, i * K * D),
            )
            store(first(space.scales), WIDTH * i, squares)
        _add(margin, clip, space, norms[start : start + count], ok[start : start + count])
        if (start + WIDTH) % DEPTH == 0 or start + WIDTH >= users:
            _carry(space.total, space.high, space.low)


@compiled
def _add(margin, clip, space, norms, ok):  # type: ignore[no-untyped-def]
    """Add eight users' gradients to space.total, clipped.

    margin: positive if the user's heads are unique. norms, ok: only for those of the eight that are
    users.
    """
    scales, G, total, size = (
        first(space.scales),
        first(space.G),
        first(space.total),
        len(space.total),
    )
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
        # A number that is not finite stays so when multiplied by 0.
        if factor == 0.0:
            for c in range(0, size, WIDTH):
                store(G, i * size + c, fill(0.0))
        put(scales, 2 * WIDTH + i, factor)
    for c in range(0, size, WIDTH):
        s = load_lanes(total, c)
        for i in range(WIDTH):
            s = s + load_lanes(G, i * size + c) * fill(get(scales, 2 * WIDTH + i))
        store(total, c, s)


@compiled(reorder=False)
def _carry(total, high, low):  # type: ignore[no-untyped-def]
    """Add total to high + low and empty it; see `privfed.privacy.summation.Total`."""
    for c in range(len(total)):
        s = high[c] + total[c]
        taken = s - high[c]
        low[c] += (high[c] - (s - taken)) + (total[c] - taken)
        high[c] = s
        total[c] = 0.0


@compiled
def _project(X, m, d, UT, K, D, P):  # type: ignore[no-untyped-def]
    """Write P[a, j, i] = <u_a, x_ij> for eight users' examples X (8, m, d).

    Two rows of UT are done at a time.
    """
    for j in range(m):
        for a in range(0, K, 2):
            u, w = after(UT, a * D), after(UT, a * D + D)
            s, t = zero_rows(), zero_rows()
            for c in range(0, D, WIDTH):
                x = load_rows(X, j * d + min(c, d - WIDTH), m * d)
                s = s + x * load_lanes(u, c)
                t = t + x * load_lanes(w, c)
            store(P, WIDTH * (a * m + j), totals(s))
            store(P, WIDTH * (a * m + m + j), totals(t))


@compiled
def _combine(W, X, m, d, kept, K, D, out):  # type: ignore[no-untyped-def]
    """Write out_a = sum_j W[a, j] x_j for a user's X (m, d); return 8 numbers that sum to |out|^2.

    W (K, m), every eighth number; out (K, D), 0 at repeated columns. Two rows a and two blocks of
    columns are done at a time.
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
                x, z = load_lanes(X, j * d + c), load_lanes(X, j * d + b)
                s, t = s + x * fill(get(p, WIDTH * j)), t + x * fill(get(q, WIDTH * j))
                v, w = v + z * fill(get(p, WIDTH * j)), w + z * fill(get(q, WIDTH * j))
            v, w = v * load_lanes(kept, c + WIDTH), w * load_lanes(kept, c + WIDTH)
            squares, others = squares + s * s + v * v, others + t * t + w * w
            store(f, c, s)
            store(g, c, t)
            store(f, c + WIDTH, v)
            store(g, c + WIDTH, w)
        if D % (2 * WIDTH):
            s, t = nothing, nothing
            for j in range(m):
                x = load_lanes(X, j * d + d - WIDTH)
                s, t = s + x * fill(get(p, WIDTH * j)), t + x * fill(get(q, WIDTH * j))
            s, t = s * load_lanes(kept, D - WIDTH), t * load_lanes(kept, D - WIDTH)
            squares, others = squares + s * s, others + t * t
            store(f, D - WIDTH, s)
            store(g, D - WIDTH, t)
    return squares + others


@compiled
def _clip_factor(norm, clip):  # type: ignore[no-untyped-def]
    """Return the clip factor of one norm; see `privfed.privacy.clipping.clip_factors`."""
    bound = clip * SLACK
    factor = bound / max(norm, bound)
    return 0.0 if factor < TINY else factor


def prepare_gradient_sums(variant: str) -> None:
    """Compile for examples stored as float32 or float64."""
    X, y = np.ones((1, 3, 1), variant), np.ones((1, 3), variant)
    batches, norms, ok = np.zeros((1, 3), np.uint8), np.empty(1), np.empty(1, dtype=np.bool_)
    sum_clipped(X, y, np.ones((1, 1)), batches, 1.0, 1.0, np.zeros((1, 1)), norms, ok)
