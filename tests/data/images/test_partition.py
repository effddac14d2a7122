"""Deals of images: what every split guarantees, and the statistics of other implementations."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privfed.data.images import partition
from privfed.foundation.errors import ConfigError

Y = np.random.default_rng(7).permutation(np.repeat(np.arange(10), 4500))
"""As many images of each class as CIFAR-10 keeps for training."""
DEALS = {
    "classes": lambda y, n, rng, m=None: partition.by_classes(y, n, 5, rng, m),
    "iid": partition.iid,
    "dirichlet": lambda y, n, rng, m=None: partition.dirichlet(y, n, 0.5, rng, m),
    "quantity": lambda y, n, rng, m=None: partition.quantity(y, n, 0.5, rng, m),
}


def rng(seed=0):
    return np.random.default_rng(seed)


def counts(deal, y=Y):
    table = partition.counts_of(deal, y, 10)
    np.testing.assert_array_equal(table[0], np.bincount(y[deal[0][deal[0] >= 0]], minlength=10))
    return table


def assert_disjoint(deal, images):
    dealt = deal[deal >= 0]
    assert len(np.unique(dealt)) == len(dealt) and dealt.max() < images
    assert np.all(np.diff((deal >= 0).astype(int), axis=1) <= 0)  # padding comes last


@pytest.mark.parametrize("split", DEALS)
@pytest.mark.parametrize("n", [1, 7, 500, 2000])
def test_no_image_goes_to_two_users_and_the_seed_decides(split, n):
    started = time.perf_counter()
    deal = DEALS[split](Y, n, rng())
    assert time.perf_counter() - started < 2
    assert_disjoint(deal, len(Y))
    assert len(deal) == n and np.all(np.sum(deal >= 0, axis=1) >= partition.LEAST)
    np.testing.assert_array_equal(deal, DEALS[split](Y, n, rng()))
    assert not np.array_equal(deal, DEALS[split](Y, n, rng(1)))


@pytest.mark.parametrize(
    ("n", "S", "m"),
    [(500, 5, 90), (1000, 5, 45), (1000, 2, 44), (2000, 5, 20), (500, 10, 90), (300, 1, 150)],
)
def test_equal_shares_of_few_classes(n, S, m):
    table = counts(partition.by_classes(Y, n, S, rng()))
    assert set(np.unique(table)) <= {0, m // S} and np.all(np.sum(table > 0, axis=1) == S)
    assert np.ptp(np.sum(table > 0, axis=0)) <= 1  # all classes have equally many users
    if 1 < S < 10:
        assert (
            len(np.unique(table > 0, axis=0)) > 40
        )  # not the same few combinations again and again


def test_all_pairs_of_classes_meet_about_equally_often():
    has = (counts(partition.by_classes(Y, 2000, 5, rng())) > 0).astype(int)
    pairs = (has.T @ has)[~np.eye(10, dtype=bool)]
    assert np.abs(pairs - 2000 * 5 * 4 / 90).max() < 60


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    n=st.integers(1, 20),
    S=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_shards_of_uneven_classes_fit_or_are_refused(sizes, n, S, seed):
    y = np.repeat(np.arange(len(sizes)), sizes)
    possible = sum(min(size, n) for size in sizes) >= n * S
    if not possible:
        with pytest.raises(ConfigError, match=r"data.n="):
            partition.by_classes(y, n, S, rng(seed))
        return
    deal = partition.by_classes(y, n, S, rng(seed))
    assert_disjoint(deal, len(y))
    table = partition.counts_of(deal, y, len(sizes))
    shard = deal.shape[1] // S
    assert set(np.unique(table)) <= {0, shard} and np.all(np.sum(table > 0, axis=1) == S)
    assert sum(min(size // (shard + 1), n) for size in sizes) < n * S  # no larger shard would do


def test_rare_classes_have_fewer_shards():
    y = np.repeat([0, 1, 2, 3], [1000, 1000, 1000, 100])
    users = np.sum(partition.counts_of(partition.by_classes(y, 100, 2, rng()), y, 4) > 0, axis=0)
    assert users[3] < 20 and np.ptp(users[:3]) <= 1 and users.sum() == 200


def test_fewer_images_a_user_when_asked():
    assert DEALS["classes"](Y, 500, rng(), 25).shape == (500, 25)
    assert DEALS["iid"](Y, 500, rng(), 7).shape == (500, 7)
    for split in ("dirichlet", "quantity"):
        deal = DEALS[split](Y, 500, rng(), 30)
        whole = DEALS[split](Y, 500, rng())
        np.testing.assert_array_equal(np.sum(deal >= 0, 1), np.minimum(30, np.sum(whole >= 0, 1)))


@pytest.mark.parametrize(
    ("n", "alpha", "squares", "largest", "spread", "classes"),
    [  # of DirichletPartitioner in flwr-datasets 0.6.1: CIFAR-10's first 45,000 labels,
        # no self_balancing, least 2, one seed
        (100, 0.1, 0.5825, 0.6976, 490.0, 4.64),
        (100, 0.5, 0.2535, 0.3842, 195.3, 9.21),
        (500, 0.5, 0.2467, 0.3741, 39.6, 8.23),
        (500, 1.0, 0.1831, 0.2949, 29.1, 9.49),
        (500, 10.0, 0.1091, 0.1539, 9.25, 10.0),
        (2000, 1.0, 0.1866, 0.2939, 7.07, 8.11),
    ],
)
def test_dirichlet_has_the_statistics_of_flower_datasets(
    n, alpha, squares, largest, spread, classes
):
    tables = [counts(partition.dirichlet(Y, n, alpha, rng(seed))) for seed in range(3)]
    sizes = [table.sum(1) for table in tables]
    parts = [table / size[:, None] for table, size in zip(tables, sizes, strict=True)]
    rough = 0.2 if n == 100 else 0.06
    assert np.mean([np.sum(p**2, 1).mean() for p in parts]) == pytest.approx(squares, rel=rough)
    assert np.mean([p.max(1).mean() for p in parts]) == pytest.approx(largest, rel=rough)
    assert np.mean([size.std() for size in sizes]) == pytest.approx(spread, rel=1.5 * rough)
    assert np.mean([(table > 0).sum(1).mean() for table in tables]) == pytest.approx(
        classes, rel=rough
    )
    assert all(size.sum() == len(Y) for size in sizes)


def test_iid_has_the_statistics_of_flower_datasets():
    parts = counts(partition.iid(Y, 500, rng())) / 90  # IidPartitioner, 500 users: .1099 and .1549
    assert np.sum(parts**2, 1).mean() == pytest.approx(0.1099, rel=0.01)
    assert parts.max(1).mean() == pytest.approx(0.1549, rel=0.02)


@pytest.mark.parametrize("alpha", [1e-3, 0.01, 1e4])
@pytest.mark.parametrize("n", [1, 2, 2000])
def test_extreme_skews_still_give_everybody_something(alpha, n):
    for deal in (partition.dirichlet(Y, n, alpha, rng()), partition.quantity(Y, n, alpha, rng())):
        sizes = np.sum(deal >= 0, axis=1)
        assert sizes.min() >= 2 and sizes.sum() == len(Y)
        assert alpha < 1 or np.ptp(sizes) < 0.5 * sizes.mean()


def test_numbers_of_images_are_as_uneven_as_asked():
    sizes = np.sum(partition.quantity(Y, 500, 2.0, rng()) >= 0, axis=1)
    assert sizes.std() / 88 == pytest.approx(
        1 / np.sqrt(2), rel=0.15
    )  # Dirichlet(a): relative deviation about 1/sqrt(a)


def test_the_same_part_of_every_class_is_put_aside():
    y = np.repeat([0, 1, 2], [100, 50, 10])
    stay, aside = partition.put_aside(y, 0.1, rng())
    np.testing.assert_array_equal(np.bincount(y[aside]), [10, 5, 1])
    np.testing.assert_array_equal(np.sort(np.r_[stay, aside]), np.arange(160))
    assert not np.array_equal(aside, partition.put_aside(y, 0.1, rng(1))[1])


@pytest.mark.parametrize("split", ["classes", "dirichlet", "quantity"])
@pytest.mark.parametrize("n", [500, 2000])
def test_held_out_images_are_like_the_training_images(split, n):
    table, test = counts(DEALS[split](Y, n, rng())), np.repeat(np.arange(10), 1000)
    deal = partition.alike(test, table, rng())
    assert_disjoint(deal, len(test))
    held_out = counts(deal, test)
    assert (
        held_out.sum() == len(test)
        and held_out.sum(1).min() >= 1
        and not held_out[table == 0].any()
    )
    share = table * 1000 / table.sum(0)
    if split == "classes":
        np.testing.assert_array_equal(held_out, share)
    else:
        assert (
            np.abs(held_out - share).mean() < 0.5
            and np.corrcoef(held_out.ravel(), share.ravel())[0, 1] > 0.85
        )


def test_somebody_without_held_out_images_is_refused():
    table = np.array([[3, 0], [3, 0], [0, 3]])
    assert (partition.alike(np.array([0, 0, 1]), table, rng()) >= 0).sum() == 3
    with pytest.raises(ConfigError, match=r"data.n=3: .*2 held-out"):
        partition.alike(np.array([0, 1]), table, rng())


@pytest.mark.parametrize(
    ("deal", "words"),
    [
        (lambda: partition.iid(Y[:9], 10, rng()), "data.n=10: too many users"),
        (lambda: partition.iid(Y, 500, rng(), 91), "data.m=91: .*at most 90"),
        (lambda: partition.by_classes(Y, 500, 5, rng(), 91), "data.m=91: .*multiple of data.S=5"),
        (lambda: partition.by_classes(Y, 500, 5, rng(), 95), "data.m=95: .*at most 90"),
        (lambda: partition.by_classes(Y, 10_000, 5, rng()), "data.n=10000: too many users"),
        (lambda: partition.dirichlet(Y, 22_501, 1.0, rng()), "data.n=22501: too many users"),
        (lambda: partition.quantity(Y, 22_501, 1.0, rng()), "data.n=22501: too many users"),
    ],
)
def test_what_cannot_be_dealt_is_refused(deal, words):
    with pytest.raises(ConfigError, match=words):
        deal()
