"""Uniform numbers per user, compiled: a few nanoseconds per number.

They are bit by bit those of `privfed.kernels.user_draws`.
"""

from __future__ import annotations

import numpy as np

from privfed.foundation.compilation import compiled
from privfed.kernels.compiled.random_streams import permuted_words

_32, _11 = np.uint64(32), np.uint64(11)


@compiled(reorder=False)
def write_draws(key, identities, out):  # type: ignore[no-untyped-def]
    """Write the first numbers of each of the users (B,) into out (B, m)."""
    for i in range(out.shape[0]):
        for j in range(0, out.shape[1], 2):
            c0, c1, c2, c3 = permuted_words(key, np.uint64(j // 2), identities[i])
            word = (np.uint64(c0) << _32) | np.uint64(c1)
            out[i, j] = np.float64(word >> _11) * 2.0**-53
            if j + 1 < out.shape[1]:
                word = (np.uint64(c2) << _32) | np.uint64(c3)
                out[i, j + 1] = np.float64(word >> _11) * 2.0**-53


def prepare_user_draws(variant: str) -> None:
    """Compile the functions of this module that are used."""
    write_draws(np.uint64(0), np.zeros(1, np.uint64), np.empty((1, 1)))
