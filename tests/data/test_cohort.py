"""Cohorts, and how users are spread over nodes and groups."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from support.sources import source
from support.tables import people, schema_of

from privfed.data.cohort import groups_of, spread_evenly
from privfed.data.problems.synthetic import Synthetic
from privfed.data.user_identity import identities_of
from privfed.foundation.errors import ConfigError


def test_spread_is_even_and_complete():
    for n, nodes in ((10, 3), (7, 7), (20000, 6)):
        ranges = spread_evenly(n, nodes)
        assert [i for users in ranges for i in users] == list(range(n))
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize(("n", "groups"), [(1, 1), (10, 10), (3000, 7), (2500, 2500)])
def test_groups_are_random_and_follow_from_each_user_s_own_identity(n, groups):
    whole = groups_of(np.arange(n), groups, seed=4)
    sizes = np.bincount(whole, minlength=groups)
    assert len(sizes) == groups and sizes.sum() == n
    assert np.abs(sizes - n / groups).max() <= 6 * np.sqrt(n / groups) + 1
    some = np.array([n - 1, 0, n // 2])
    np.testing.assert_array_equal(groups_of(some, groups, seed=4), whole[some])
    if n > 100:
        assert not np.array_equal(whole, groups_of(np.arange(n), groups, seed=5))


def test_no_two_names_have_one_identity_and_numbers_are_their_own():
    names = ["", "a", "b", "ab", "a\0b", "\u00e9", "e\u0301", "0", "1", "\udc80"]
    identities = identities_of(names)
    assert len(set(identities.tolist())) == len(names) and identities.dtype == np.uint64
    np.testing.assert_array_equal(identities_of(names[3:5]), identities[3:5])
    digest = hashlib.sha256(b"privfed user\0ab").digest()
    assert identities[3] == int.from_bytes(digest[:8], "little")
    for cohort in cohorts().values():
        assert len(cohort.identities) == len(cohort)
        if cohort.ids[0] == 20:
            np.testing.assert_array_equal(cohort.identities, cohort.ids)


def cohorts():
    """The same questions to each kind of cohort."""
    settings = {
        "n": 200,
        "m": 6,
        "d": 3,
        "k": 2,
        "R": 0.1,
        "features": "gaussian",
        "condition": 1.0,
    }
    kept, streamed = (source(Synthetic, stream=flag, **settings) for flag in (False, True))
    return {
        "kept": kept.cohort(20, 180),
        "streamed": streamed.cohort(20, 180),
        "ragged": people(schema_of(), [6] * 160, held=2),
    }


@pytest.mark.parametrize("kind", ["kept", "streamed", "ragged"])
def test_all_kinds_of_cohorts_answer_alike(kind):
    cohort = cohorts()[kind].without_broken_users(0.0)
    assert len(cohort) == len(cohort.ids) == 160 and cohort.truth is not None
    assert cohort.m == (None if kind == "ragged" else 6)
    some = cohort[30:90]
    np.testing.assert_array_equal(some.ids, cohort.ids[30:90])
    places = np.array([0, 7, 150])
    for asked, ids in ((None, cohort.ids), (places, cohort.ids[places])):
        for exact in (True, False):
            blocks = list(cohort.blocks(asked, examples=slice(4), bytes_each=1 << 10, exact=exact))
            np.testing.assert_array_equal(np.concatenate([block.ids for block in blocks]), ids)
            assert all(block.m == 4 for block in blocks)
            judging = [block.judging for block in blocks]
            assert all(np.all(j == 2) if kind == "ragged" else j is None for j in judging)


def test_users_who_are_not_consecutive_cannot_be_taken_out_of_a_stream():
    with pytest.raises(ConfigError, match=r"data\.stream"):
        _ = cohorts()["streamed"][np.array([0, 2])]
