"""Eight numbers at a time against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from privfed.kernels.compiled import simd
from privfed.kernels.compiled.simd import (
    WIDTH,
    after,
    fill,
    first,
    get,
    larger,
    load_lanes,
    load_rows,
    prefetch,
    put,
    root,
    smaller,
    store,
    totals,
)

compiled = njit(error_model="numpy")


@compiled
def _arithmetic(x, out):
    a, b = load_lanes(first(x), 0), load_lanes(first(x), WIDTH)
    results = first(out)
    store(results, 0, a + b)
    store(results, WIDTH, a - b)
    store(results, 2 * WIDTH, a * b)
    store(results, 3 * WIDTH, a / b)
    store(results, 4 * WIDTH, root(a))
    store(results, 5 * WIDTH, smaller(a, b))
    store(results, 6 * WIDTH, larger(a, b))
    store(results, 7 * WIDTH, fill(get(after(results, 1), 2)))
    put(results, 7 * WIDTH, -1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_are_computed_with_one_by_one_in_double_precision(dtype):
    x, out = np.random.default_rng(0).random((2, WIDTH)).astype(dtype), np.empty((8, WIDTH))
    _arithmetic(x.ravel(), out.ravel())
    a, b = x.astype(np.float64)
    for found, wanted in zip(
        out,
        [a + b, a - b, a * b, a / b, np.sqrt(a), np.minimum(a, b), np.maximum(a, b)],
        strict=False,
    ):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(out[7], [-1.0] + [a[3] + b[3]] * (WIDTH - 1))


def test_nan_is_neither_larger_nor_smaller_but_stays():
    x, out = np.ones((2, WIDTH)), np.empty((8, WIDTH))
    x[0, 1], x[1, 2] = np.nan, np.nan
    _arithmetic(x.ravel(), out.ravel())
    for found in out[5:7]:
        np.testing.assert_array_equal(np.isnan(found), np.isnan(x).any(axis=0))


@compiled
def _row_sums(x, start, stride, weights, out):
    prefetch(first(x), 0)
    rows = load_rows(first(x), start, stride)
    store(first(out), 0, totals(rows))
    store(first(out), WIDTH, totals(rows * load_lanes(first(weights), 0) - rows + rows))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stride", [WIDTH, 11])
def test_rows_are_read_at_a_stride_and_summed(stride, dtype):
    x, weights, out = np.arange(100, dtype=dtype) ** 2, np.arange(8.0), np.empty((2, WIDTH))
    _row_sums(x, 3, stride, weights, out.ravel())
    rows = np.array(
        [x[3 + i * stride : 3 + i * stride + WIDTH] for i in range(WIDTH)], dtype=np.float64
    )
    np.testing.assert_array_equal(out, [rows.sum(axis=1), rows @ weights])


@compiled
def _places(sizes, out):
    for i in range(len(sizes)):
        room = simd.aligned(sizes[i])
        out[i] = room.ctypes.data % 64 + np.abs(room).sum() + (len(room) != sizes[i])


def test_room_begins_where_a_vector_does_and_is_zero():
    out = np.empty(40)
    _places(np.arange(40), out)
    np.testing.assert_array_equal(out, 0.0)
