"""Noise without a rounding error, for releases (Gaussian) and selections (exponential).

Gaussian noise comes as whole numbers distributed exactly as round(s Z), Z standard normal, s a
whole number.

Karney's algorithm (Sampling exactly from the normal distribution, 2016) makes |Z| = k + x from
uniform deviates that are only compared with each other:

    k  with probability proportional to exp(-k/2), kept with probability exp(-k (k-1) / 2)
    x  uniform, kept with probability exp(-x (2k + x) / 2)

so that (k, x) has a density proportional to exp(-(k + x)^2 / 2). Events of probability exp(-p) come
from lengths of decreasing runs of uniform deviates (von Neumann): the chance of a run x > u_1 > ...
> u_n is x^n / n!, that of an even length exp(-x). A uniform deviate is an infinite string of bits.
64 of them decide a comparison but once in 2^64; where they do not, or where they do not settle the
rounding of s x, the draw is made in `Slow`, from the same bits and as many more as it takes. No
step computes with floating-point numbers, and every bit comes from the system's cryptographic
generator.

The noise round(s Z), added to whole numbers S, is round(S + s Z): post-processing of an exact
Gaussian mechanism. So the exact accounting of Gaussian releases applies as it stands; a discrete
Gaussian would need one of its own.

Exponential deviates E = k + x (von Neumann): x is kept if its decreasing run has even length,
otherwise k grows by one. The candidate with the smallest E_c exp(-score_c) is candidate c with
probability proportional to exp(score_c): a race of Poisson clocks. E is known to 128 bits after the
point; `first_of_race` compares logarithms with an error bound and takes more digits where that does
not decide. The work does not depend on the scores.
"""

from __future__ import annotations

import decimal
import math
import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.compilation import DropIn
from privfed.foundation.linalg import Array
from privfed.privacy.exact_deviates import Slow

Words = NDArray[np.uint64]
Whole = NDArray[np.int64]
MOST = 1 << 26
"""Largest s: products of s with 64 bits, and with k up to 2^30, do not overflow."""

LOOPS = DropIn("privfed.privacy.exact_loops", 1.5, lambda job: 0.0, on_demand=True)
SLOW = 2.5e-5
"""Seconds per draw without compiled code."""

_drawn = 0
"""Draws of this process so far; compiling pays only for many draws."""


def _loops(draws: int) -> Any:
    """Return the compiled draws, or None if all draws so far take less time than compiling."""
    global _drawn
    _drawn += draws
    return LOOPS.chosen(SLOW * _drawn)


def _word_by_word(fresh: Callable[[int], Words]) -> Iterator[int]:
    while True:
        yield from fresh(4096).tolist()


def exponentials(size: int, fresh: Callable[[int], Words]) -> list[Fraction]:
    """Draw standard exponential deviates (size,), cut off after 128 bits after the binary point.

    If all these bits are 0, more are drawn.

    Args:
        size: number of deviates.
        fresh: returns the given number of new random words of 64 bits.
    """
    loops = _loops(size)
    if loops is None:
        stream = _word_by_word(fresh)
        more = partial(next, stream)
        return [Slow(stream, more).exponential(128) for _ in range(size)]
    k, x = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.uint64)
    words, place, at = fresh(6 * size + 64), 0, 0
    longer: dict[int, Fraction] = {}
    while True:
        state, place, at = loops.fill_exponentials(k, x, place, words, at)
        if state == loops.DONE:
            break
        if state == loops.TIE:
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
    """Draw an index c with probability proportional to exp(exponents[c]).

    Args:
        exponents: numbers of at most 0, (C,).
        fresh: returns the given number of new random words of 64 bits.
    """
    deviates = exponentials(len(exponents), fresh)
    times = (
        np.array([math.log(e.numerator) - math.log(e.denominator) for e in deviates]) - exponents
    )
    near = np.flatnonzero(times <= times.min() + 1e-9 * (1.0 + abs(times.min())))
    if len(near) == 1:
        return int(near[0])
    # Two clocks agree to nine digits, so more digits have to decide.
    with decimal.localcontext(prec=80):

        def time(c: int) -> decimal.Decimal:
            e = deviates[c]
            return (decimal.Decimal(e.numerator) / e.denominator).ln() - decimal.Decimal(
                float(exponents[c])
            )

        return int(min(near.tolist(), key=time))


def normals(size: int, s: int, fresh: Callable[[int], Words]) -> Whole:
    """Draw whole numbers (size,), each distributed as round(s Z), Z standard normal.

    Args:
        size: number of draws.
        s: whole number from 1 to MOST.
        fresh: returns the given number of new random words of 64 bits.

    Raises:
        ValueError: s is out of range.
    """
    if not 1 <= s <= MOST:
        raise ValueError(f"s={s} must lie between 1 and {MOST}")
    loops = _loops(size)
    if loops is None:
        stream = _word_by_word(fresh)
        more = partial(next, stream)
        return np.array([Slow(stream, more).value(s) for _ in range(size)], dtype=np.int64)
    out = np.empty(size, dtype=np.int64)
    words, place, at = fresh(18 * size + 64), 0, 0
    while True:
        state, place, at = loops.fill_normals(out, place, words, at, s)
        if state == loops.DONE:
            return out
        if state == loops.TIE:
            draw = Slow(iter(words[at:].tolist()), lambda: int(fresh(1)[0]))
            out[place] = draw.value(s)
            place, at = place + 1, at + draw.used
        # An unfinished draw keeps its words: starting again would favour draws that need few words.
        words, at = np.concatenate([words[at:], fresh(1024 + 18 * (size - place))]), 0


def system_words(count: int) -> Words:
    """Return words of the system's cryptographic generator, safe with forks and threads."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
