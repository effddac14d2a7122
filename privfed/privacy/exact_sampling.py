"""Noise without a rounding error, for releases (Gaussian) and selections (exponential), from a cryptographic generator.

Gaussian noise comes as whole numbers distributed exactly as round(s Z), Z standard normal, s a whole number.

Karney's algorithm (Sampling exactly from the normal distribution, 2016) makes |Z| = k + x from uniform deviates that are only
compared with each other:

    k  with probability proportional to exp(-k/2), kept with probability exp(-k (k-1) / 2)
    x  uniform, kept with probability exp(-x (2k + x) / 2)

so that (k, x) has a density proportional to exp(-(k + x)^2 / 2). Events of probability exp(-p) come from lengths of decreasing
runs of uniform deviates (von Neumann): the chance of a run x > u_1 > ... > u_n is x^n / n!, that of an even length exp(-x).
A uniform deviate is an infinite string of bits. 64 of them decide a comparison but once in 2^64; where they do not, or where
they do not settle the rounding of s x, the draw is made again in `Slow`, from the same bits and as many more as it takes. No
step computes with floating-point numbers, and every bit comes from the system's cryptographic generator.

The noise round(s Z), added to whole numbers S, is round(S + s Z): post-processing of an exact Gaussian mechanism. So the exact
accounting of Gaussian releases applies as it stands; a discrete Gaussian would need one of its own.

Exponential deviates E = k + x (von Neumann): x is kept if its decreasing run has even length, otherwise k grows by one. The
candidate with the smallest E_c exp(-score_c) is candidate c with probability proportional to exp(score_c): a race of Poisson
clocks. E is known to 128 bits after the point; `first_of_race` compares logarithms with an error bound and takes more digits
where that does not decide. The work does not depend on the scores.
"""

from __future__ import annotations

import decimal
import math
import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numba import njit
from numpy.typing import NDArray

from privfed.foundation.linalg import Array
from privfed.privacy.exact_deviates import Slow

Words = NDArray[np.uint64]
Whole = NDArray[np.int64]
DONE, EMPTY, TIE = 0, 1, 2
HALF = np.uint64(1 << 63)
MOST = 1 << 26
"""Largest s: s times 64 bits, and k up to 2^30 times s, stay within what is computed with."""


@njit(cache=True)
def _draw(words: Words, start: int, s: int) -> tuple[int, int, int]:
    """One draw from words[start:]: (state, place of the next word, value); it may run out of words or into a tie."""
    at, n = start, len(words)
    while True:
        # k: how often an event of probability exp(-1/2) happens in a row.
        k = 0
        while True:
            state, at, even = _run(words, at, HALF, np.uint64(0), True)
            if state != DONE:
                return state, at, 0
            if not even:
                break
            k += 1
        # Keep k with probability exp(-k (k-1) / 2): k (k-1) such events in a row.
        kept = True
        for _ in range(k * (k - 1)):
            state, at, kept = _run(words, at, HALF, np.uint64(0), True)
            if state != DONE:
                return state, at, 0
            if not kept:
                break
        if not kept:
            continue
        if at >= n:
            return EMPTY, at, 0
        x = words[at]
        at += 1
        # Keep x with probability exp(-x (2k + x) / 2): k + 1 events of probability exp(-x (2k + x) / (2k + 2)) in a row.
        for _ in range(k + 1):
            state, at, kept = _run(words, at, x, np.uint64(2 * k + 2), False)
            if state != DONE:
                return state, at, 0
            if not kept:
                break
        if not kept:
            continue
        if at >= n:
            return EMPTY, at, 0
        negative = words[at] & np.uint64(1)
        at += 1
        # s x = (high + low / 2^64) + less than s / 2^64 from bits not drawn yet; they matter only next to a rounding border.
        mask = np.uint64(0xFFFFFFFF)
        part = np.uint64(s) * (x & mask)
        upper = np.uint64(s) * (x >> np.uint64(32)) + (part >> np.uint64(32))
        high, low = upper >> np.uint64(32), (upper << np.uint64(32)) | (part & mask)
        shifted = low + HALF
        if shifted >= np.uint64(0) - np.uint64(s):
            return TIE, at, 0
        if shifted < low:
            high += np.uint64(1)
        value = k * s + np.int64(high)
        return DONE, at, int(-value if negative else value)


@njit(cache=True)
def _run(words: Words, at: int, x: np.uint64, m: np.uint64, plain: bool) -> tuple[int, int, bool]:
    """Whether the run x > u_1 > u_2 > ... has even length: (state, place of the next word, even).

    plain: probability exp(-x). Otherwise every member of the run also needs an event of probability (m - 2 + x) / m
    with m = 2k + 2, which makes it exp(-x (2k + x) / (2k + 2)): of m equally likely cases one fails, one asks whether another
    uniform deviate is below x, and all others succeed.
    """
    even, bound, n = True, x, len(words)
    while True:
        if at >= n:
            return EMPTY, at, even
        u = words[at]
        at += 1
        if u == bound:
            return TIE, at, even
        if u > bound:
            return DONE, at, even
        if not plain:
            limit = (
                np.uint64(0xFFFFFFFFFFFFFFFF)
                - (np.uint64(0xFFFFFFFFFFFFFFFF) % m + np.uint64(1)) % m
            )
            while True:
                if at >= n:
                    return EMPTY, at, even
                case = words[at]
                at += 1
                if case <= limit:
                    break
            case = case % m
            if case == np.uint64(0):
                return DONE, at, even
            if case == np.uint64(1):
                if at >= n:
                    return EMPTY, at, even
                r = words[at]
                at += 1
                if r == x:
                    return TIE, at, even
                if r > x:
                    return DONE, at, even
        bound = u
        even = not even


@njit(cache=True)
def _fill(out: Whole, first: int, words: Words, at: int, s: int) -> tuple[int, int, int]:
    """Draws into out[first:] until a draw cannot be finished: (its state, its place in out, the place of its first word)."""
    for i in range(first, len(out)):
        state, after, value = _draw(words, at, s)
        if state != DONE:
            return state, i, at
        out[i] = value
        at = after
    return DONE, len(out), at


@njit(cache=True)
def _fill_exponentials(
    k: Whole, x: Words, first: int, words: Words, at: int
) -> tuple[int, int, int]:
    """Exponential deviates k + x / 2^64 into k[first:], x[first:]; returns as `_fill`."""
    n = len(words)
    for i in range(first, len(k)):
        start, whole = at, 0
        while True:
            if at >= n:
                return EMPTY, i, start
            u = words[at]
            state, at, even = _run(words, at + 1, u, np.uint64(0), True)
            if state != DONE:
                return state, i, start
            if even:
                break
            whole += 1
        k[i], x[i] = whole, u
    return DONE, len(k), at


def exponentials(size: int, fresh: Callable[[int], Words]) -> list[Fraction]:
    """Standard exponential deviates (size,), cut off after 128 bits behind the point, or more where all those are 0."""
    k, x = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.uint64)
    words, place, at = fresh(6 * size + 64), 0, 0
    longer: dict[int, Fraction] = {}
    while True:
        state, place, at = _fill_exponentials(k, x, place, words, at)
        if state == DONE:
            break
        if state == TIE:
            draw = Slow(iter(words[at:].tolist()), lambda: int(fresh(1)[0]))
            longer[place] = draw.exponential()
            place, at = place + 1, at + draw.used
        words, at = np.concatenate([words[at:], fresh(1024 + 6 * (size - place))]), 0
    further = fresh(size).tolist()
    deviates = [
        Fraction((whole << 128) | (high << 64) | low, 1 << 128)
        for whole, high, low in zip(k.tolist(), x.tolist(), further, strict=True)
    ]
    for i, deviate in longer.items():
        deviates[i] = deviate
    return [deviate or Fraction(1 + int(fresh(1)[0]), 1 << 192) for deviate in deviates]


def first_of_race(exponents: Array, fresh: Callable[[int], Words]) -> int:
    """The index c with probability proportional to exp(exponents[c]), exponents (C,) being at most 0."""
    deviates = exponentials(len(exponents), fresh)
    times = (
        np.array([math.log(e.numerator) - math.log(e.denominator) for e in deviates]) - exponents
    )
    near = np.flatnonzero(times <= times.min() + 1e-9 * (1.0 + abs(times.min())))
    if len(near) == 1:
        return int(near[0])
    with decimal.localcontext(prec=80):  # two clocks that ring together to nine digits: look closer

        def time(c: int) -> decimal.Decimal:
            e = deviates[c]
            return (decimal.Decimal(e.numerator) / e.denominator).ln() - decimal.Decimal(
                float(exponents[c])
            )

        return int(min(near.tolist(), key=time))


def normals(size: int, s: int, fresh: Callable[[int], Words]) -> Whole:
    """Whole numbers (size,), each distributed as round(s Z). fresh: so many new random words of 64 bits."""
    if not 1 <= s <= MOST:
        raise ValueError(f"s={s} must lie between 1 and {MOST}")
    out = np.empty(size, dtype=np.int64)
    words, place, at = fresh(18 * size + 64), 0, 0
    while True:
        state, place, at = _fill(out, place, words, at, s)
        if state == DONE:
            return out
        if state == TIE:
            draw = Slow(iter(words[at:].tolist()), lambda: int(fresh(1)[0]))
            out[place] = draw.value(s)
            place, at = place + 1, at + draw.used
        # A draw goes on with the words it has had: starting anew would favour draws that need few.
        words, at = np.concatenate([words[at:], fresh(1024 + 18 * (size - place))]), 0


def system_words(count: int) -> Words:
    """Words from the system's cryptographic generator, which knows of forks and of threads."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
