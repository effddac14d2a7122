"""Assignment of labelled images to users: pure functions of the labels y (N,) and a generator.

An assignment is a matrix (n, m) of places in y with one row per user. No place occurs twice. Rows
of users with fewer than m images end in -1. The argument m is the largest number of images per
user; None means all. Splits with equal shares raise a ConfigError for an m that they cannot reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privfed.data.cohort import Ids
from privfed.foundation.errors import ConfigError

LEAST = 2
"""Least number of training images per user, where shares differ."""


def put_aside(y: Ids, part: float, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Split places into those that stay and those that are put aside.

    Args:
        y: classes (N,).
        part: fraction of every class to put aside.
        rng: source of randomness.

    Returns:
        Places that stay and places that are put aside, both in increasing order.
    """
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    sizes = np.bincount(y)
    rank = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    aside = rank < np.rint(part * sizes)[y[order]]
    return np.sort(order[~aside]), np.sort(order[aside])


def iid(y: Ids, n: int, rng: np.random.Generator, m: int | None = None) -> Ids:
    """Assign equal shares at random: (n, m)."""
    m = _equal(len(y), n, m, len(y) // n)
    return rng.permutation(len(y))[: n * m].reshape(n, m)


def by_classes(y: Ids, n: int, S: int, rng: np.random.Generator, m: int | None = None) -> Ids:
    """Assign equal shares of S classes with m / S images each: shards as in Collins et al. (2021).

    A shard is as large as possible. Rare classes have fewer shards; all others have equally many.

    Args:
        y: classes (N,).
        n: number of users.
        S: classes per user.
        rng: source of randomness.
        m: images per user, a multiple of S; None: as many as possible.

    Returns:
        The assignment (n, m).

    Raises:
        ConfigError: if m is no multiple of S, or there are too few images.
    """
    if m is not None and m % S:
        raise ConfigError.of(
            "data.m",
            m,
            f"must be a multiple of data.S={S}, so that a user has equally many of each class",
        )
    sizes = np.bincount(y)
    size = _equal(len(y), n, m, S * largest_shard(sizes, n, S)) // S
    # A user has at most one shard per class, so that a class never needs more than n shards.
    shards = level(np.minimum(sizes // size, n), n * S)
    owners = owners_of_shards(shards, n, rng)
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    deal = np.empty((n, S, size), dtype=np.int64)
    users, classes = np.nonzero(owners)
    rank = (np.cumsum(owners, axis=0) - 1)[users, classes]
    deal.reshape(n * S, size)[:] = order[(starts[classes] + rank * size)[:, None] + np.arange(size)]
    return rng.permuted(deal.reshape(n, -1), axis=1)


def largest_shard(sizes: Ids, n: int, S: int) -> int:
    """Return the largest size of a shard for which there are n S shards; 0 if there is none.

    Args:
        sizes: number of images (K,) of each class.
        n: number of users; a class has at most n shards.
        S: classes per user.
    """
    low, high = 0, int(sizes.sum()) // (n * S)
    while low < high:
        middle = (low + high + 1) // 2
        fits = np.minimum(sizes // middle, n).sum() >= n * S
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def level(most: Ids, total: int) -> Ids:
    """Return numbers that add up to `total` and are as equal as possible.

    Args:
        most: upper bound (K,) of each number.
        total: their sum.
    """
    shares, left = np.zeros_like(most), total
    while left:
        open_ = np.flatnonzero(shares < most)
        each = left // len(open_)
        if each:
            added = np.minimum(each, most[open_] - shares[open_])
            shares[open_] += added
            left -= int(added.sum())
        else:
            shares[open_[:left]] += 1
            left = 0
    return shares


def owners_of_shards(shards: Ids, n: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Decide at random which users have which classes.

    Args:
        shards: number of shards (K,) of each class, at most n.
        n: number of users; each has S = sum(shards) / n different classes.
        rng: source of randomness.

    Returns:
        Whether each user has each class (n, K).
    """
    S, left = int(shards.sum()) // n, shards.astype(np.float64)
    owners = np.zeros((n, len(shards)), dtype=bool)
    draws = rng.exponential(size=owners.shape)
    for user, after in enumerate(range(n - 1, -1, -1)):
        # Classes that all later users must have come first. The others are drawn without
        # replacement, in proportion to the shards that are left.
        with np.errstate(divide="ignore"):
            keys = np.where(left > after, -1.0, draws[user] / left)
        chosen = np.argpartition(keys, S - 1)[:S]
        owners[user, chosen] = True
        left[chosen] -= 1
    return owners


def dirichlet(
    y: Ids, n: int, alpha: float, rng: np.random.Generator, m: int | None = None, least: int = LEAST
) -> Ids:
    """Assign each class by proportions over users that are Dirichlet(alpha) distributed.

    The smaller alpha, the fewer classes per user. Users with too few images get random images of
    the users with most images.

    Args:
        y: classes (N,).
        n: number of users.
        alpha: concentration.
        rng: source of randomness.
        m: largest number of images per user; None: all.
        least: least number of images per user.

    Returns:
        The assignment (n, m).

    Raises:
        ConfigError: if there are fewer than n * least images.
    """
    _enough(y, n, least)
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    sizes = np.bincount(y)
    owner = np.empty(len(y), dtype=np.int64)
    cuts = np.rint(
        np.cumsum(proportions(alpha, (len(sizes), n), rng), axis=1) * sizes[:, None]
    ).astype(np.int64)
    counts = np.diff(cuts, axis=1, prepend=0)
    owner[order] = np.concatenate([np.repeat(np.arange(n), row) for row in counts])
    return assign_to_owners(_fill_up(owner, n, least, rng), n, rng, m)


def quantity(
    y: Ids, n: int, alpha: float, rng: np.random.Generator, m: int | None = None, least: int = LEAST
) -> Ids:
    """Assign numbers of images that are Dirichlet(alpha) distributed, of the same classes for all.

    Each user has `least` images besides. Arguments and result are those of `dirichlet`.
    """
    _enough(y, n, least)
    spare = len(y) - n * least
    cuts = np.rint(np.cumsum(proportions(alpha, (1, n), rng)[0]) * spare).astype(np.int64)
    owner = np.repeat(np.arange(n), least + np.diff(cuts, prepend=0))
    return assign_to_owners(rng.permutation(owner), n, rng, m)


def proportions(
    alpha: float, shape: tuple[int, int], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw from Dirichlet(alpha) over the last axis of `shape`.

    Logarithms are drawn, because Gamma numbers underflow if alpha is tiny.
    """
    log = np.log(rng.standard_gamma(alpha + 1.0, shape)) - rng.exponential(size=shape) / alpha
    weights = np.exp(log - log.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(weights)


def alike(y: Ids, counts: Ids, rng: np.random.Generator) -> Ids:
    """Assign held-out images in proportion to users' training images of each class.

    Every user has at least one image, of one of its classes. All images of classes that some user
    has are assigned.

    Args:
        y: classes (N,) of the held-out images.
        counts: training images (n, K) of each user and class.
        rng: source of randomness.

    Returns:
        The assignment (n, m).

    Raises:
        ConfigError: if there are too few images.
    """
    n, K = counts.shape
    stock = np.bincount(y, minlength=K)[:K]
    given = _one_each(counts, stock)
    for c in np.flatnonzero(counts.sum(axis=0)).tolist():
        share = counts[:, c] * stock[c] / counts[:, c].sum()
        left = int(stock[c] - given[:, c].sum())
        want = np.maximum(share - given[:, c], 0.0)
        if left and want.any():
            given[:, c] += apportion(want, left, rng)
    order = rng.permutation(len(y))
    owner = np.full(len(y), -1)
    for c in range(K):
        users = np.repeat(np.arange(n), given[:, c])
        owner[order[y[order] == c][: len(users)]] = users
    return assign_to_owners(owner, n, rng)


def apportion(want: NDArray[np.float64], total: int, rng: np.random.Generator) -> Ids:
    """Round proportional shares to whole numbers that add up to `total`; ties are broken at random.

    Args:
        want: weights (n,).
        total: sum of the result.
        rng: source of randomness.

    Returns:
        Whole numbers (n,) that differ from the exact shares by less than one.
    """
    exact = want * (total / want.sum())
    whole = np.floor(exact + 1e-9)
    rest = np.lexsort((rng.random(len(want)), -np.round(exact - whole, 9)))[
        : total - int(whole.sum())
    ]
    whole[rest] += 1
    return np.asarray(whole, dtype=np.int64)


def assign_to_owners(owner: Ids, n: int, rng: np.random.Generator, m: int | None = None) -> Ids:
    """Return the assignment in which each image goes to its owner, in random order per user.

    Args:
        owner: user (N,) of each image, -1 for none.
        n: number of users.
        rng: source of randomness.
        m: largest number of images per user; None: all.
    """
    order = rng.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    order = order[np.count_nonzero(owner < 0) :]
    sizes = np.bincount(owner[order], minlength=n)
    column = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    deal = np.full((n, int(sizes.max())), -1)
    deal[owner[order], column] = order
    return deal[:, :m]


def padded(users: Sequence[Ids], m: int | None = None) -> Ids:
    """Return an assignment from the places of each user's images.

    Args:
        users: places of each user's images.
        m: length of the rows, of which users with more images get the first m; None: the longest.
    """
    width = max((len(places) for places in users), default=0)
    deal = np.full((len(users), width if m is None else m), -1)
    for row, places in zip(deal, users, strict=True):
        row[: len(places)] = places[: len(row)]
    return deal


def counts_of(deal: Ids, y: Ids, K: int) -> Ids:
    """Count the images of each user and class.

    Args:
        deal: assignment (n, m).
        y: classes (N,).
        K: number of classes.

    Returns:
        Counts (n, K).
    """
    users, columns = np.nonzero(deal >= 0)
    flat = users * K + y[deal[users, columns]]
    return np.bincount(flat, minlength=len(deal) * K).reshape(len(deal), K)


def _equal(images: int, n: int, m: int | None, most: int) -> int:
    if most < 1:
        raise ConfigError.of("data.n", n, f"too many users for equal shares of {images} images")
    if m is not None and m > most:
        raise ConfigError.of("data.m", m, f"there are at most {most} images for each of {n} users")
    return most if m is None else m


def _enough(y: Ids, n: int, least: int) -> None:
    if len(y) < n * least:
        raise ConfigError.of(
            "data.n", n, f"too many users: {len(y)} images are fewer than {least} per user"
        )


def _fill_up(owner: Ids, n: int, least: int, rng: np.random.Generator) -> Ids:
    """Move images from the users with most images to users with fewer than `least`."""
    sizes = np.bincount(owner, minlength=n)
    for user in np.flatnonzero(sizes < least).tolist():
        while sizes[user] < least:
            rich = int(np.argmax(sizes))
            owner[rng.choice(np.flatnonzero(owner == rich))] = user
            sizes[[user, rich]] += 1, -1
    return owner


def _one_each(counts: Ids, stock: Ids) -> Ids:
    """Choose one held-out image per user, of one of its classes: (n, K).

    Users with few classes choose first.
    """
    given, left = np.zeros_like(counts), stock.copy()
    for user in np.argsort(np.count_nonzero(counts, axis=1), kind="stable"):
        # Of the user's classes, weighted by its images, the one of which most is left: final
        # shares then stay proportional.
        wish = counts[user] * (left > 0) * (left / np.maximum(stock, 1))
        if not wish.any():
            raise ConfigError.of(
                "data.n",
                len(counts),
                f"too many users for {stock.sum()} held-out images: somebody has none",
            )
        c = int(np.argmax(wish))
        given[user, c] += 1
        left[c] -= 1
    return given
