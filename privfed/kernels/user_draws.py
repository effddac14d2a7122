"""Uniform numbers per user: number j of a user depends on (key, the user's identity, j) alone.

Words are Philox4x32-10, as in `privfed.kernels.random_streams`, of the counter (j, identity): one
permutation gives two numbers of 53 bits. No number depends on which other users are computed with
the user, nor on their order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.compilation import DropIn
from privfed.foundation.linalg import Array
from privfed.kernels.random_streams import Stream, permuted

CHUNK = 1 << 13
"""Counters that NumPy permutes at a time, so that intermediate results stay in cache."""
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)

LOOPS = DropIn(
    "privfed.kernels.compiled.user_draws",
    seconds=1.0,
    saves=lambda job: 4e-8 * job.users * job.rounds * job.m,
    on_demand=True,
)


def user_draws(seed: int, identities: NDArray[np.uint64], m: int, *purpose: str | int) -> Array:
    """Draw m uniform numbers per user.

    Args:
        seed: seed of the run.
        identities: identity (B,) of each user.
        m: numbers per user.
        purpose: what the numbers are for; other purposes give independent numbers.

    Returns:
        Numbers (B, m) in [0, 1), whole multiples of 2^-53.
    """
    key, identities = Stream(seed, "users", *purpose).key, np.asarray(identities, np.uint64)
    out = np.empty((len(identities), m))
    if loops := LOOPS.chosen():
        loops.write_draws(key, np.ascontiguousarray(identities), out)
        return out
    pairs = (m + 1) // 2
    users = max(1, CHUNK // max(1, pairs))
    for first in range(0, len(out), users):
        mine = identities[first : first + users]
        made = words_at(key, np.repeat(mine, pairs), np.tile(np.arange(pairs), len(mine)))
        out[first : first + users] = _unit(made.reshape(len(mine), 2 * pairs)[:, :m])
    return out


def words_at(
    key: np.uint64, identities: NDArray[np.uint64], places: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return two random words (N, 2) of 64 bits for each (identity, place).

    Args:
        key: key of the stream.
        identities: (N,).
        places: (N,), which of the identity's pairs of words; at least 0.
    """
    words = np.empty((len(places), 2), np.uint64)
    for first in range(0, len(places), CHUNK):
        part = slice(first, first + CHUNK)
        at, who = places[part].astype(np.uint64), identities[part]
        c = permuted(key, at & LOW, at >> HALF, who & LOW, who >> HALF)
        words[part, 0], words[part, 1] = (c[0] << HALF) | c[1], (c[2] << HALF) | c[3]
    return words


def _unit(words: NDArray[np.uint64]) -> Array:
    """Return numbers in [0, 1) from the highest 53 bits of words."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
