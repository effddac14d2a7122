"""Random numbers by place: published test vectors, formulas, distributions, no trace of cuts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privfed.foundation.compilation import choosing
from privfed.kernels import random_streams
from privfed.kernels.random_streams import BATCH, CHUNK, LANES, Stream

MULTIPLIERS, WEYL, MASK = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32-10 as it is printed, with Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & MASK, (p >> 32) ^ c[3] ^ k[1], p & MASK]
        k = [(a + b) & MASK for a, b in zip(k, WEYL, strict=True)]
    return c


@pytest.fixture(params=["never", "always"], scope="module", autouse=True)
def mode(request):
    with choosing(request.param):
        yield request.param


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_reference_gives_the_published_vectors(counter, key, wanted):
    assert tuple(philox(counter, key)) == wanted


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 600))
def test_words_are_philox(key, first):
    halves = (key & MASK, key >> 32)
    wanted = [philox((i & MASK, i >> 32, 0, 0), halves) for i in (first, first + 256)]
    made = random_streams.philox(np.uint64(key), first, 2)
    assert [made[0, :, 0].tolist(), made[1, :, 0].tolist()] == wanted


def test_normal_numbers_are_box_and_muller_s():
    rng = np.random.default_rng(0)
    edges = np.array([0, 1, 2, 3, 2**31, 2**32 - 2, 2**32 - 1], dtype=np.uint32)
    words = rng.integers(0, 2**32, (20, 4, LANES), dtype=np.uint32)
    words[0, 0, :7], words[0, 1, :7] = edges, edges
    made = random_streams._normals(words)[:, :2].swapaxes(0, 1).reshape(2, -1)
    radii, angles = words[:, 0].ravel(), words[:, 1].ravel()
    r = np.sqrt(-2 * np.log((radii.astype(np.float64) + 0.5).astype(np.float32) / 2.0**32))
    a = np.pi / 2 * (angles >> 2) / 2.0**30
    wanted = [
        r * np.cos(a) * np.where(angles & 1, 1, -1),
        r * np.sin(a) * np.where(angles & 2, 1, -1),
    ]
    np.testing.assert_allclose(made, wanted, atol=2e-6)
    assert np.isfinite(made).all() and np.abs(made).max() < 6.9


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 10 * BATCH), st.integers(0, 3 * BATCH), st.sampled_from(["normals", "uniforms"])
)
def test_a_part_of_a_stream_is_what_it_is_in_the_whole(start, count, kind):
    whole = getattr(Stream(3, "x"), kind)(0, np.empty(13 * BATCH, np.float32))
    part = getattr(Stream(3, "x"), kind)(start, np.empty(count, np.float32))
    np.testing.assert_array_equal(part, whole[start : start + count])


def test_places_beyond_32_bits_are_places_of_their_own():
    near, far = (Stream(0, "x").normals(start, np.empty(100, np.float32)) for start in (0, 2**36))
    assert not np.isin(near, far).any()


def test_streams_of_other_seeds_and_purposes_are_others():
    made = [
        Stream(*name).normals(0, np.empty(4096, np.float32))
        for name in ((0, "a"), (1, "a"), (0, "b"), (0, "a", 1))
    ]
    between = np.corrcoef(made)[np.triu_indices(4, 1)]
    assert np.abs(between).max() < 5 / np.sqrt(4096)


def test_they_are_normal_and_independent():
    n = 2**22
    x = Stream(7, "normal").normals(0, np.empty(n, np.float32)).astype(np.float64)
    assert stats.kstest(x[: 2**20], "norm").pvalue > 1e-4
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(x**power) - mean) < 5 * np.sqrt(variance / n)
    for beyond in (3.0, 4.0, 4.8):
        expected = 2 * stats.norm.sf(beyond) * n
        assert abs(np.sum(np.abs(x) > beyond) - expected) < 5 * np.sqrt(expected)
    for lag in (
        1,
        2,
        3,
        LANES // 2,
        LANES,
        BATCH,
        50,
        500,
    ):  # neighbours, halves of a pair, words of a counter, users
        for f in (np.asarray, np.square):
            assert abs(np.corrcoef(f(x[:-lag]), f(x[lag:]))[0, 1]) < 5 / np.sqrt(n)


def test_uniform_numbers_are_uniform():
    u = Stream(7, "uniform").uniforms(0, np.empty(2**20, np.float32))
    assert (
        u.min() > 0 and u.max() < 1 and stats.kstest(u.astype(np.float64), "uniform").pvalue > 1e-4
    )
    assert np.all(u * 2.0**24 % 2 == 1)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**40),
    st.integers(1, 2 * CHUNK),
    st.sampled_from(["normals", "uniforms"]),
)
def test_numpy_and_compiled_loops_give_the_same_bits(seed, start, count, kind):
    made = []
    for mode in ("never", "always"):
        with choosing(mode):
            made.append(getattr(Stream(seed, "x"), kind)(start, np.empty(count, np.float32)))
    np.testing.assert_array_equal(*(numbers.view(np.uint32) for numbers in made))
