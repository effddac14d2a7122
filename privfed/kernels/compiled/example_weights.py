"""Weights of users' examples in their gradients: heads, residuals and leverages.

G^T = sum_j W_j x_j^T. The formulas are those of `clients.fedrep` and `leave_one_out_heads`. They
read as for a single user, but every value holds one number per user for eight users (`simd`).
"""

from __future__ import annotations

from privfed.foundation.compilation import compiled
from privfed.kernels.compiled.simd import WIDTH, fill, larger, load_lanes, root, smaller, store
from privfed.kernels.tolerances import LEVERAGE_TOLERANCE, RANK_TOLERANCE


@compiled
def _at(A, n):  # type: ignore[no-untyped-def]
    return load_lanes(A, WIDTH * n)


@compiled
def _set(A, n, value):  # type: ignore[no-untyped-def]
    store(A, WIDTH * n, value)


@compiled
def _factors(P, m, k, L, tolerance):  # type: ignore[no-untyped-def]
    """Factorise P^T P = L L^T, with reciprocals on L's diagonal: P (k, m), L (k, k).

    The result is positive only if P is finite and has full rank.
    """
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
def leave_one_out_weights(P, y, e, m, k, scale, L, z, Q, W):  # type: ignore[no-untyped-def]
    """Write the weight of each x_j in the user's gradient, scale r_j v_(-j), into W.

    P, W, Q (k, m), y (m,), e (2, m), L (k, k), z (k,). The result is positive only if heads are
    unique.
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
def two_batch_weights(P, y, roles, m, k, scale, L, v, Q, W):  # type: ignore[no-untyped-def]
    """Write the weight of each x_j in the gradient, scale r_j v in B' and 0 elsewhere, into W.

    P, W, Q (k, m), y (m,), L (k, k), v (k,). roles (2, m): 1 for examples in B, then 1 for those in
    B'. The result is positive only if the head is unique.
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
