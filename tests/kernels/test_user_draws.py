"""Uniform numbers per user: the published permutation, no trace of other users, even and random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from test_random_streams import philox

from privfed.foundation.compilation import choosing
from privfed.kernels.random_streams import Stream
from privfed.kernels.user_draws import CHUNK, user_draws, words_at

MASK = 0xFFFFFFFF
IDENTITIES = st.integers(0, 2**64 - 1)


@pytest.fixture(params=["never", "always"], scope="module", autouse=True)
def mode(request):
    with choosing(request.param):
        yield request.param


def naive(seed, identity, m, *purpose):
    key = int(Stream(seed, "users", *purpose).key)
    words = [
        philox((j, 0, identity & MASK, identity >> 32), (key & MASK, key >> 32)) for j in range(m)
    ]
    halves = [(c[i] << 32) | c[i + 1] for c in words for i in (0, 2)]
    return [(word >> 11) / 2**53 for word in halves[:m]]


@settings(max_examples=30, deadline=None)
@given(st.lists(IDENTITIES, max_size=5), st.integers(0, 7), st.integers(0, 3))
def test_numbers_are_those_of_the_permutation(identities, m, seed):
    made = user_draws(seed, np.array(identities, np.uint64), m, "batches", 3)
    assert made.tolist() == [naive(seed, identity, m, "batches", 3) for identity in identities]


def test_words_of_any_place_follow_from_it_alone():
    key, who = np.uint64(2**63 + 5), np.arange(2 * CHUNK + 3, dtype=np.uint64) << np.uint64(33)
    places = np.arange(len(who)) * 2**31
    made = words_at(key, who, places)
    for i in (0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 2):
        counter = (int(places[i]) & MASK, int(places[i]) >> 32, 0, (i << 33) >> 32)
        c = philox(counter, (int(key) & MASK, int(key) >> 32))
        assert made[i].tolist() == [(c[0] << 32) | c[1], (c[2] << 32) | c[3]]


def test_other_users_leave_no_trace():
    identities = np.random.default_rng(0).integers(2**64, size=5000, dtype=np.uint64)
    whole = user_draws(1, identities, 5, "coins")
    for places in ([7], [4999, 0, 3], range(0, 5000, 7), []):
        some = np.array(list(places), dtype=np.intp)
        np.testing.assert_array_equal(user_draws(1, identities[some], 5, "coins"), whole[some])
    # Asking for more numbers does not change the first ones.
    np.testing.assert_array_equal(user_draws(1, identities, 2, "coins"), whole[:, :2])


@pytest.mark.parametrize("identities", [np.arange(40000), np.arange(40000) << 24])
def test_numbers_are_even_and_unrelated(identities):
    u = user_draws(0, identities, 4, "groups")
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-4
    assert stats.chisquare(np.bincount((7 * u[:, 0]).astype(int))).pvalue > 1e-4
    other = user_draws(0, identities, 4, "coins")
    for a, b in ((u[:, 0], u[:, 1]), (u[1:, 0], u[:-1, 0]), (u[:, 1], u[:, 2]), (u, other)):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03
