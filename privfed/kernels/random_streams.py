"""Random numbers by place: number i of a stream depends on (key, i) alone.

Any part of a stream can be made at any time, in any order. Words are Philox4x32-10 (Salmon et al.,
Random123): a keyed permutation of a counter that passes the known batteries of tests and, unlike a
generator with a state, runs in a processor's vector units. Normal numbers are made from pairs of
words by Box and Muller, in single precision. Every operation is rounded by itself, in a fixed
order, so the numbers are the same on every machine, with NumPy and with compiled loops.

Stream numbers come in batches of 1024: 256 counters give 256 first words, 256 second words, and so
on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.compilation import DropIn

BATCH = 1024
"""Numbers made at a time."""
LANES = BATCH // 4
CHUNK = 48 * BATCH
"""Numbers that NumPy makes at a time, so that intermediate results stay in cache."""
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]
Counters = NDArray[np.uint64]
Permuted = tuple[Counters, Counters, Counters, Counters]

LOOPS = DropIn(
    "privfed.kernels.compiled.random_streams",
    seconds=3.5,
    saves=lambda job: 1.5e-8 * job.users * job.m * job.d,
)

MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))

ZERO, HALF, ONE, TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))
CELL, QUARTER = np.float32(2.0**-23), np.float32(2.0**-30)
ROOT_HALF = np.float32(math.sqrt(0.5)).view(np.int32)

LOG = tuple(np.float32(1 / (2 * i + 1)) for i in range(5))
"""ln((1 + s) / (1 - s)) = 2 s (1 + s^2/3 + s^4/5 + ...), |s| <= (sqrt 2 - 1) / (sqrt 2 + 1)."""
LN2 = np.float32(math.log(2.0))
SINE = tuple(
    np.float32((-1) ** i * (math.pi / 2) ** (2 * i + 1) / math.factorial(2 * i + 1))
    for i in range(5)
)
COSINE = tuple(
    np.float32((-1) ** i * (math.pi / 2) ** (2 * i) / math.factorial(2 * i)) for i in range(6)
)
"""Of pi t / 2 for |t| <= 1/2, by Taylor series: the next terms are below 1e-8."""


class Stream:
    """Random numbers of one (seed, purpose), each determined by its place.

    Args:
        seed: seed of the run.
        purpose: names and numbers of what the randomness is for.
    """

    def __init__(self, seed: int, *purpose: str | int) -> None:
        digest = hashlib.sha256(repr((int(seed), *purpose)).encode()).digest()
        self.key = np.uint64(int.from_bytes(digest[:8], "big"))

    def normals(self, start: int, out: Floats) -> Floats:
        """Write normal numbers start, start + 1, ... into out, a contiguous array; return it."""
        flat = out.reshape(-1, copy=False)
        if loops := LOOPS.chosen():
            loops.write_normals(self.key, start, flat)
        else:
            _by_place(self.key, start, flat, _normals)
        return out

    def uniforms(self, start: int, out: Floats) -> Floats:
        """Write uniform numbers start, start + 1, ... into out, a contiguous array; return it.

        They are odd multiples of 2^-24, between 0 and 1.
        """
        flat = out.reshape(-1, copy=False)
        if loops := LOOPS.chosen():
            loops.write_uniforms(self.key, start, flat)
        else:
            _by_place(self.key, start, flat, _uniforms)
        return out


def _by_place(key: np.uint64, start: int, out: Floats, made_of: Callable[[Words], Floats]) -> None:
    """Write numbers start, start + 1, ... of a stream into out (count,), by whole batches."""
    first, done = start - start % BATCH, 0
    while done < len(out):
        skipped = start + done - first
        batches = min(CHUNK, skipped + len(out) - done + BATCH - 1) // BATCH
        made = made_of(philox(key, first // 4, batches)).reshape(-1)[skipped:]
        count = min(len(made), len(out) - done)
        out[done : done + count] = made[:count]
        first, done = first + batches * BATCH, done + count


def philox(key: np.uint64, first: int, batches: int) -> Words:
    """Permute counters first, first + 1, ...: words (batches, 4, LANES), a column per counter."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    counters = np.arange(first, first + batches * LANES, dtype=np.uint64)
    zeros = np.zeros((2, len(counters)), np.uint64)
    c0, c1, c2, c3 = permuted(key, counters & low, counters >> half, *zeros)
    words = np.empty((batches, 4, LANES), np.uint32)
    for i, word in enumerate((c0, c1, c2, c3)):
        words[:, i] = word.reshape(batches, LANES)
    return words


def permuted(key: np.uint64, c0: Counters, c1: Counters, c2: Counters, c3: Counters) -> Permuted:
    """Permute counters in place; each of the four arrays holds 32 bits of every counter."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    p, q = np.empty_like(c0), np.empty_like(c0)
    keys = [key & low, key >> half]
    for _ in range(10):
        np.multiply(MULTIPLIERS[0], c0, out=p)
        np.multiply(MULTIPLIERS[1], c2, out=q)
        np.right_shift(q, half, out=c0)
        np.right_shift(p, half, out=c2)
        c0 ^= c1
        c0 ^= keys[0]
        c2 ^= c3
        c2 ^= keys[1]
        np.bitwise_and(q, low, out=c1)
        np.bitwise_and(p, low, out=c3)
        keys = [(k + np.uint64(step)) & low for k, step in zip(keys, WEYL, strict=True)]
    return c0, c1, c2, c3


def _uniforms(words: Words) -> Floats:
    return ((words >> np.uint32(9)).astype(np.float32) + HALF) * CELL


def _normals(words: Words) -> Floats:
    """Return two normal numbers per pair of words: words (batches, 4, LANES) -> the same shape.

    With u = (radius + 1/2) / 2^32 and an angle a that is uniform in the first quadrant, they are
    sqrt(-2 ln u) (cos a, sin a) with random signs.
    """
    radii, angles = words[:, 0::2], words[:, 1::2]
    # ln u: radius + 1/2 = 2^e g with g in [sqrt 1/2, sqrt 2).
    bits = (radii.astype(np.float32) + HALF).view(np.int32)
    e = (bits - ROOT_HALF) >> np.int32(23)
    g = (bits - (e << np.int32(23))).view(np.float32)
    s = (g - ONE) / (g + ONE)
    log = TWO * s * _series(LOG, s * s)
    log += (e - np.int32(32)).astype(np.float32) * LN2
    radius = np.sqrt(np.maximum(-log, ZERO))
    # a = pi/4 + pi/2 t, so sqrt 2 cos a = cos(pi/2 t) - sin(pi/2 t), and sin a with a plus.
    t = (angles >> np.uint32(2)).astype(np.float32) * QUARTER - HALF
    t2 = t * t
    sine, cosine = t * _series(SINE, t2), _series(COSINE, t2)
    made = np.empty(words.shape, np.float32)
    for i, number in enumerate((cosine - sine, cosine + sine)):  # the angle's last bits are signs
        number *= radius
        np.negative(number, out=number, where=angles & np.uint32(i + 1) == 0)
        made[:, i::2] = number
    return made


def _series(coefficients: tuple[Any, ...], x: Floats) -> Floats:
    """Return c_0 + x (c_1 + x (c_2 + ...))."""
    total = x * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        total += c
        total *= x
    total += coefficients[0]
    return total
