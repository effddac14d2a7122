"""Order of a user's rows: by time, or random; the same however a file sorts rows or users.

The rows of a user are first put into an order that follows from their content. The random order
then follows from the seed, the user's identity and places in that order. No row of another user,
and no other user, has any influence on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.data.user_identity import Identities
from privfed.foundation.linalg import Array
from privfed.kernels.random_streams import Stream
from privfed.kernels.user_draws import words_at

CHUNK = 1 << 14
"""Rows that are hashed at a time, so that intermediate results stay in cache."""


def row_order(
    seed: int,
    identities: Identities,
    who: NDArray[np.integer],
    contents: Sequence[NDArray[Any]],
    time: Array | None = None,
) -> NDArray[np.intp]:
    """Return the places (N,) of all rows, user after user.

    Args:
        seed: seed of the run.
        identities: identities (n,) of the users.
        who: user (N,) of each row, in 0..n-1.
        contents: what rows consist of: arrays (N, ...) of numbers of 32 or 64 bits.
        time: times (N,) by which the rows of each user are ordered; None orders them at random.
    """
    hashes = content_hashes(contents)
    if time is not None:
        return np.lexsort((hashes, time, who))
    order = _sorted(who, hashes, len(identities))
    who = who[order]
    counts = np.bincount(who, minlength=len(identities))
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[_sorted(who, lots(seed, identities[who], place), len(identities))]


def _sorted(who: NDArray[np.integer], words: NDArray[np.uint64], users: int) -> NDArray[np.intp]:
    """Sort by user and then by word, of which the highest bits are enough: one sort of numbers."""
    bits = np.uint64(users.bit_length())
    return np.argsort((who.astype(np.uint64) << (np.uint64(64) - bits)) | (words >> bits))


def lots(seed: int, identities: Identities, places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a random number (N,) per row.

    Args:
        seed: seed of the run.
        identities: identity (N,) of the user of each row.
        places: place (N,) of each row among the rows of its user.
    """
    return words_at(Stream(seed, "users", "rows").key, identities, places)[:, 0]


def content_hashes(contents: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
    """Return a hash (N,) per row of everything that the row consists of.

    Rows of equal hashes are equal, but for a chance of about 2^-64 per pair.

    Args:
        contents: arrays (N, ...) of numbers of 32 or 64 bits.
    """
    hashes = np.empty(len(contents[0]), np.uint64)
    for first in range(0, len(hashes), CHUNK):
        rows = slice(first, first + CHUNK)
        mixed = np.zeros(len(hashes[rows]), np.uint64)
        for array in contents:
            part = np.ascontiguousarray(array[rows]).reshape(len(mixed), -1)
            words = part.view(np.uint32).astype(np.uint64)
            for j in range(0, words.shape[1], 2):
                mixed ^= words[:, j]
                if j + 1 < words.shape[1]:
                    mixed ^= words[:, j + 1] << np.uint64(32)
                mixed = _mixed(mixed)
        hashes[rows] = mixed
    return hashes


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the next number of SplitMix64 (Steele, Lea and Flood 2014) after the state x."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
