"""Random numbers by place: number i of a stream is a function of (key, i) alone, so any part of it can be made at any time.

Words are Philox4x32-10 (Salmon et al., Random123): a keyed permutation of a counter that passes the known batteries of tests
and, unlike a generator with a state, runs in a processor's vector units. Normal numbers are made of pairs of words by Box and
Muller, in single precision: some two nanoseconds each, a fifth of NumPy's. Additions and multiplications are not contracted or
reordered, so the same numbers come out on every machine.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

BATCH = 1024
"""Numbers made at a time."""
LANES = BATCH // 4
Words = NDArray[np.uint32]
Floats = NDArray[np.float32]

compiled = njit(nogil=True, cache=True, error_model="numpy")

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_32 = np.uint64(32)

_ZERO, _HALF, _ONE, _TWO = (np.float32(x) for x in (0.0, 0.5, 1.0, 2.0))
_CELL, _QUARTER = np.float32(2.0**-23), np.float32(2.0**-30)
_23, _BITS = np.int32(23), np.int32(32)
_ROOT_HALF = np.float32(math.sqrt(0.5)).view(np.int32)

# ln((1 + s) / (1 - s)) = 2 s (1 + s^2/3 + s^4/5 + ...), |s| <= (sqrt 2 - 1) / (sqrt 2 + 1).
_L1, _L2, _L3, _L4 = (np.float32(1 / (2 * i + 1)) for i in range(1, 5))
_LN2 = np.float32(math.log(2.0))
# sin and cos of pi t / 2 for |t| <= 1/2, by Taylor's series: the next terms are below 1e-8.
_S = tuple(
    np.float32((-1) ** i * (math.pi / 2) ** (2 * i + 1) / math.factorial(2 * i + 1))
    for i in range(5)
)
_C = tuple(
    np.float32((-1) ** i * (math.pi / 2) ** (2 * i) / math.factorial(2 * i)) for i in range(6)
)


@compiled
def _words(key, first, words):  # type: ignore[no-untyped-def]
    """Words of the counters first, first + 1, ...: column i of words (4, lanes) is the permuted counter first + i."""
    for i in range(words.shape[1]):
        counter = first + np.uint64(i)
        c0, c1, c2, c3 = np.uint32(counter), np.uint32(counter >> _32), np.uint32(0), np.uint32(0)
        k0, k1 = np.uint32(key), np.uint32(key >> _32)
        for _ in range(10):
            p, q = _M0 * np.uint64(c0), _M1 * np.uint64(c2)
            c0, c2 = (
                np.uint32(np.uint32(q >> _32) ^ c1 ^ k0),
                np.uint32(np.uint32(p >> _32) ^ c3 ^ k1),
            )
            c1, c3 = np.uint32(q), np.uint32(p)
            k0, k1 = np.uint32(k0 + _W0), np.uint32(k1 + _W1)
        words[0, i], words[1, i], words[2, i], words[3, i] = c0, c1, c2, c3


@compiled
def _normal_pairs(radii, angles, out):  # type: ignore[no-untyped-def]
    """Two normal numbers of every pair of words: radii (lanes,), angles (lanes,) -> out (2, lanes).

    With u = (radius + 1/2) / 2^32 and an angle a uniform in the first quadrant, sqrt(-2 ln u) (cos a, sin a) with random signs.
    """
    for i in range(len(radii)):
        # ln u: radius + 1/2 = 2^e g with g in [sqrt 1/2, sqrt 2).
        f = np.float32(radii[i]) + _HALF
        bits = np.float32(f).view(np.int32)
        e = np.int32(np.int32(bits - _ROOT_HALF) >> _23)
        g = np.int32(bits - np.int32(e << _23)).view(np.float32)
        s = (g - _ONE) / (g + _ONE)
        s2 = s * s
        log = (
            _TWO * s * (_ONE + s2 * (_L1 + s2 * (_L2 + s2 * (_L3 + s2 * _L4))))
            + np.float32(np.int32(e - _BITS)) * _LN2
        )
        radius = np.float32(math.sqrt(max(-log, _ZERO)))
        # a = pi/4 + pi/2 t, so sqrt 2 cos a = cos(pi/2 t) - sin(pi/2 t), and sin a with a plus. Two bits are left for signs.
        t = np.float32(angles[i] >> np.uint32(2)) * _QUARTER - _HALF
        t2 = t * t
        sine = t * (_S[0] + t2 * (_S[1] + t2 * (_S[2] + t2 * (_S[3] + t2 * _S[4]))))
        cosine = _C[0] + t2 * (_C[1] + t2 * (_C[2] + t2 * (_C[3] + t2 * (_C[4] + t2 * _C[5]))))
        first, second = radius * (cosine - sine), radius * (cosine + sine)
        out[0, i] = first if angles[i] & np.uint32(1) else -first
        out[1, i] = second if angles[i] & np.uint32(2) else -second


@compiled
def _normals(key, start, out):  # type: ignore[no-untyped-def]
    """Numbers start, start + 1, ... of a stream of normal numbers into out (count,)."""
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


@compiled
def _uniforms(key, start, out):  # type: ignore[no-untyped-def]
    """The same of a stream of uniform numbers."""
    words = np.empty((4, LANES), np.uint32)
    done = 0
    while done < len(out):
        skipped = (start + done) % BATCH
        _words(key, np.uint64((start + done - skipped) // 4), words)
        count = min(BATCH - skipped, len(out) - done)
        flat = words.ravel()
        for i in range(count):
            out[done + i] = (np.float32(flat[skipped + i] >> np.uint32(9)) + _HALF) * _CELL
        done += count


class Stream:
    """The random numbers of one (seed, purpose), each by its place."""

    def __init__(self, seed: int, *purpose: str | int) -> None:
        digest = hashlib.sha256(repr((int(seed), *purpose)).encode()).digest()
        self.key = np.uint64(int.from_bytes(digest[:8], "big"))

    def normals(self, start: int, out: Floats) -> Floats:
        """Standard normal numbers start, start + 1, ... into out, a contiguous array, in its order."""
        _normals(self.key, start, out.reshape(-1, copy=False))
        return out

    def uniforms(self, start: int, out: Floats) -> Floats:
        """The same, uniform between 0 and 1: odd multiples of 2^-24."""
        _uniforms(self.key, start, out.reshape(-1, copy=False))
        return out
