"""Compiled draws of `exact_deviates`, from words of 64 bits, as long as 64 bits decide."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.compilation import compiled

Words = NDArray[np.uint64]
Whole = NDArray[np.int64]
DONE, EMPTY, TIE = 0, 1, 2
"""How a draw ended: with a value, out of words, or undecided by 64 bits."""
HALF = np.uint64(1 << 63)


@compiled(reorder=False)
def draw(words: Words, start: int, s: int) -> tuple[int, int, int]:
    """Draw round(s Z) from words[start:].

    Returns:
        The state, the index of the next word, and the value. The draw may run out of words, or end
            in a tie.
    """
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
        # Keep x with probability exp(-x (2k + x) / 2): k + 1 events in a row, each of probability
        # exp(-x (2k + x) / (2k + 2)).
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
        # s x = (high + low / 2^64) + less than s / 2^64 from bits not drawn yet. Those matter only
        # next to a rounding border.
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


@compiled(reorder=False)
def _run(words: Words, at: int, x: np.uint64, m: np.uint64, plain: bool) -> tuple[int, int, bool]:
    """Return (state, index of the next word, even): whether x > u_1 > u_2 > ... has even length.

    If `plain`, the probability is exp(-x). Otherwise, every member of the run also needs an event
    of probability (m - 2 + x) / m with m = 2k + 2, which makes it exp(-x (2k + x) / (2k + 2)). Of m
    equally likely cases, one fails, one asks whether another uniform deviate is below x, and all
    others succeed.
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


@compiled(reorder=False)
def fill_normals(out: Whole, first: int, words: Words, at: int, s: int) -> tuple[int, int, int]:
    """Write draws into out[first:] until a draw cannot be finished.

    Returns:
        The state of that draw, its index in `out`, and the index of its first word.
    """
    for i in range(first, len(out)):
        state, after, value = draw(words, at, s)
        if state != DONE:
            return state, i, at
        out[i] = value
        at = after
    return DONE, len(out), at


@compiled(reorder=False)
def fill_exponentials(
    k: Whole, x: Words, first: int, words: Words, at: int
) -> tuple[int, int, int]:
    """Write deviates k + x / 2^64 into k[first:], x[first:]; returns as `fill_normals`."""
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


def prepare_exact_loops(variant: str) -> None:
    """Compile the functions of this module that are used."""
    words = np.arange(4, dtype=np.uint64)
    # Words of the system's generator are read-only, which is a type of its own for Numba.
    words.flags.writeable = False
    fill_normals(np.empty(1, dtype=np.int64), 0, words, 0, 1)
    fill_normals(np.empty(1, dtype=np.int64), 0, np.arange(4, dtype=np.uint64), 0, 1)
    for each in (words, np.arange(4, dtype=np.uint64)):
        fill_exponentials(np.empty(1, np.int64), np.empty(1, np.uint64), 0, each, 0)
