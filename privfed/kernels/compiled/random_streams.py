"""Random numbers by place, compiled: about two nanoseconds per normal number.

Additions and multiplications are neither contracted nor reordered, so the numbers are bit by bit
those of `privfed.kernels.random_streams`.
"""

from __future__ import annotations

import math

import numpy as np

from privfed.foundation.compilation import compiled
from privfed.kernels.random_streams import (
    BATCH,
    CELL,
    COSINE,
    HALF,
    LANES,
    LN2,
    LOG,
    MULTIPLIERS,
    ONE,
    QUARTER,
    ROOT_HALF,
    SINE,
    TWO,
    WEYL,
    ZERO,
)

_32 = np.uint64(32)
_23, _BITS = np.int32(23), np.int32(32)


@compiled(reorder=False)
def permuted_words(key, low, high):  # type: ignore[no-untyped-def]
    """Permute the counter of 128 bits with the given lower and higher half into four words."""
    c0, c1 = np.uint32(low), np.uint32(low >> _32)
    c2, c3 = np.uint32(high), np.uint32(high >> _32)
    k0, k1 = np.uint32(key), np.uint32(key >> _32)
    for _ in range(10):
        p, q = MULTIPLIERS[0] * np.uint64(c0), MULTIPLIERS[1] * np.uint64(c2)
        c0, c2 = (
            np.uint32(np.uint32(q >> _32) ^ c1 ^ k0),
            np.uint32(np.uint32(p >> _32) ^ c3 ^ k1),
        )
        c1, c3 = np.uint32(q), np.uint32(p)
        k0, k1 = np.uint32(k0 + WEYL[0]), np.uint32(k1 + WEYL[1])
    return c0, c1, c2, c3


@compiled(reorder=False)
def _words(key, first, words):  # type: ignore[no-untyped-def]
    """Permute the counters first, first + 1, ... into the columns of words (4, lanes)."""
    for i in range(words.shape[1]):
        made = permuted_words(key, first + np.uint64(i), np.uint64(0))
        words[0, i], words[1, i], words[2, i], words[3, i] = made


@compiled(reorder=False)
def _normal_pairs(radii, angles, out):  # type: ignore[no-untyped-def]
    """Write two normal numbers per pair of words into out (2, lanes).

    radii (lanes,) and angles (lanes,) are the words.
    """
    for i in range(len(radii)):
        # ln u: radius + 1/2 = 2^e g with g in [sqrt 1/2, sqrt 2).
        f = np.float32(radii[i]) + HALF
        bits = np.float32(f).view(np.int32)
        e = np.int32(np.int32(bits - ROOT_HALF) >> _23)
        g = np.int32(bits - np.int32(e << _23)).view(np.float32)
        s = (g - ONE) / (g + ONE)
        s2 = s * s
        log = (
            TWO * s * (ONE + s2 * (LOG[1] + s2 * (LOG[2] + s2 * (LOG[3] + s2 * LOG[4]))))
            + np.float32(np.int32(e - _BITS)) * LN2
        )
        radius = np.float32(math.sqrt(max(-log, ZERO)))
        # a = pi/4 + pi/2 t, so sqrt 2 cos a = cos(pi/2 t) - sin(pi/2 t), and sin a with a plus.
        t = np.float32(angles[i] >> np.uint32(2)) * QUARTER - HALF
        t2 = t * t
        sine = t * (SINE[0] + t2 * (SINE[1] + t2 * (SINE[2] + t2 * (SINE[3] + t2 * SINE[4]))))
        cosine = COSINE[3] + t2 * (COSINE[4] + t2 * COSINE[5])
        cosine = COSINE[0] + t2 * (COSINE[1] + t2 * (COSINE[2] + t2 * cosine))
        first, second = radius * (cosine - sine), radius * (cosine + sine)
        out[0, i] = first if angles[i] & np.uint32(1) else -first
        out[1, i] = second if angles[i] & np.uint32(2) else -second


@compiled(reorder=False)
def write_normals(key, start, out):  # type: ignore[no-untyped-def]
    """Write numbers start, start + 1, ... of a stream of normal numbers into out (count,)."""
    words, made = np.empty((4, LANES), np.uint32), np.empty((4, LANES), np.float32)
    done = 0
    while done < len(out):
        skipped = (start + done) % BATCH
        _words(key, np.uint64((start + done - skipped) // 4), words)
        _normal_pairs(words[0], words[1], made[:2])
        _normal_pairs(words[2], words[3], made[2:])
        count = min(BATCH - skipped, len(out) - done)
        out[done : done + count] = made.ravel()[skipped : skipped + count]
        done += count


@compiled(reorder=False)
def write_uniforms(key, start, out):  # type: ignore[no-untyped-def]
    """Write numbers start, start + 1, ... of a stream of uniform numbers into out (count,)."""
    words = np.empty((4, LANES), np.uint32)
    done = 0
    while done < len(out):
        skipped = (start + done) % BATCH
        _words(key, np.uint64((start + done - skipped) // 4), words)
        count = min(BATCH - skipped, len(out) - done)
        flat = words.ravel()
        for i in range(count):
            out[done + i] = (np.float32(flat[skipped + i] >> np.uint32(9)) + HALF) * CELL
        done += count


def prepare_random_streams(variant: str) -> None:
    """Compile the functions of this module that are used."""
    write_normals(np.uint64(0), 0, np.empty(1, np.float32))
    write_uniforms(np.uint64(0), 0, np.empty(1, np.float32))
