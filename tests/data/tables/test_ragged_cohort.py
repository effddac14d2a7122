"""Users with different numbers of rows, in blocks of equal size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tables import cohort_of, people, schema_of

from privfed.data.tables.ragged_cohort import TableRows

SCHEMA = schema_of()


def marked(sizes, held=0):
    """Users whose targets say whose row it is and which: 1000 i + j."""
    users = []
    for i, m in enumerate(sizes):
        y = 1000.0 * i + np.arange(m)
        users.append(TableRows(np.full((m, 3), i, np.float32), np.full((m, 2), i % 2, np.int32), y))
    return cohort_of(SCHEMA, users, held)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 2000))
def test_blocks_hold_every_user_with_rows_once_whole_and_without_padding(sizes, bytes_each):
    cohort = marked(sizes)
    seen = []
    for block in cohort.blocks(bytes_each=bytes_each):
        assert block.rows.y.shape == (len(block), block.m) and block.rows.numbers.shape == (
            len(block),
            block.m,
            3,
        )
        assert len(block) == 1 or 8 * len(block) * block.m * cohort.width <= bytes_each
        for i, y, numbers in zip(block.ids, block.rows.y, block.rows.numbers, strict=True):
            np.testing.assert_array_equal(y, 1000 * i + np.arange(sizes[i]))
            np.testing.assert_array_equal(numbers, i)
            seen.append(i)
    assert sorted(seen) == [i for i, m in enumerate(sizes) if m]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.data())
def test_only_some_users_wherever_they_are(sizes, data):
    places = np.array(
        data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=10, unique=True)),
        dtype=np.int64,
    )
    cohort = marked(sizes, held=2)
    some = cohort[places]
    np.testing.assert_array_equal(some.ids, places)
    np.testing.assert_array_equal(some.sizes, np.array(sizes)[places])
    wanted = [1000 * i + j for i in places for j in range(sizes[i])]
    np.testing.assert_array_equal(some.rows.y, wanted)
    np.testing.assert_array_equal(
        some.held.y, [1000 * i + j for i in places for j in range(min(2, sizes[i]))]
    )
    np.testing.assert_array_equal(
        [y for block in cohort.blocks(places) for y in np.sort(block.ids)],
        sorted_by_size(places, sizes),
    )


def sorted_by_size(places, sizes):
    return [
        i for m in sorted({sizes[i] for i in places} - {0}) for i in sorted(places) if sizes[i] == m
    ]


def test_held_out_rows_go_with_their_users_and_not_at_all_where_nothing_may_be_told():
    cohort = marked([3, 0, 1, 3, 5], held=2)
    for block in cohort.blocks():
        assert block.truth is not None
        np.testing.assert_array_equal(block.held.y // 1000, block.ids[block.whose])
        np.testing.assert_array_equal(block.judging, np.minimum(block.m, 2))
    for block in marked([3, 1]).blocks():
        assert block.held is None and block.truth is None


@pytest.mark.parametrize(
    "cohort", [marked([0, 0]), marked([4, 5])[np.arange(0)]], ids=["no rows", "nobody"]
)
def test_where_nobody_has_rows_there_is_a_block_of_nobody(cohort):
    """A node that sent nothing would tell that none of its users has a row."""
    (block,) = cohort.blocks()
    assert len(block) == 0 and block.rows.numbers.shape == (0, 1, 3)


def test_blocks_do_not_depend_on_how_users_are_asked_for():
    cohort = people(SCHEMA, [3, 5, 3, 2, 5, 5])
    whole = [block.ids.tolist() for block in cohort.blocks()]
    assert (
        whole
        == [[3], [0, 2], [1, 4, 5]]
        == [block.ids.tolist() for block in cohort.blocks(np.arange(6))]
    )


def test_targets_that_are_no_numbers_are_replaced():
    cohort = marked([2, 3])
    cohort.rows.y[[0, 4]] = np.nan, np.inf
    np.testing.assert_array_equal(cohort.without_broken_users(7.0).rows.y, [7, 1, 1000, 1001, 7])
    assert marked([2]).without_broken_users().rows.y.tolist() == [0, 1]
