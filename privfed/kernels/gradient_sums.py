"""Clipped gradients of all users in one compiled pass.

Eight users at a time go through the processor's cache twice: once to project their examples, once to add up the gradients; the
next eight are fetched meanwhile. Everything is computed in double precision, whatever examples are stored in.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from privfed.foundation.compilation import compiled
from privfed.foundation.linalg import Array
from privfed.kernels.example_weights import leave_one_out_weights, two_batch_weights
from privfed.kernels.least_squares import TINY
from privfed.kernels.simd import (
    WIDTH,
    after,
    aligned,
    fill,
    first,
    get,
    load,
    load_rows,
    prefetch,
    put,
    store,
    totals,
    zero_rows,
)
from privfed.privacy.clipping import SLACK


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
def sum_clipped(X, y, U, ranks, batches, scale, clip, total, norms, ok):  # type: ignore[no-untyped-def]
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
    """Add all users' clipped gradients to space.total, as `sum_clipped` does.

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
                    fits, past = (
                        ranks[start + i, j] < batches[0],
                        ranks[start + i, j] >= batches[0] + batches[1],
                    )
                    put(roles, WIDTH * j + i, 1.0 if fits else 0.0)
                    put(roles, WIDTH * (m + j) + i, 0.0 if fits or past else 1.0)
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


@compiled
def _add(margin, clip, space, norms, ok):  # type: ignore[no-untyped-def]
    """Add eight users' gradients to space.total, clipped; margin: users have unique heads where it is above 0.

    norms and ok have room for those of them that are users.
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


@compiled
def _clip_factor(norm, clip):  # type: ignore[no-untyped-def]
    """The scalar form of `mechanisms.clip_factors`."""
    bound = clip * SLACK
    factor = bound / max(norm, bound)
    return 0.0 if factor < TINY else factor
