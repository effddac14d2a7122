"""Exact rounded Gaussians by quantiles: one word of 64 random bits per number, in NumPy.

round(s Z) is drawn as round(s Phi^-1(U)) of a uniform deviate U, of which 64 bits are drawn first.
The quantile is computed in floating point, with a bound on its error. Where the error, or the bits
of U that were not drawn, could change the rounded result, U is compared with the probability at
the border itself, to as many digits and bits as it takes. So the result is that of exact
arithmetic, on every machine: whoever has the seed of a stream of words gets the same numbers.

One bit is the sign. The others are V in (0, 1/2], and s |Z| = -s Phi^-1(V).
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from privfed.privacy.exact_sampling import Whole

ERROR = 1e-13
"""Bound on the absolute error of `ndtri` on (2^-65, 1/2], rounding of its argument and of the
product with s included. The largest error seen is 2e-15."""
MOST = 1 << 36
"""Largest s: products with quantiles are whole numbers of at most 42 bits."""
BITS = 63
"""Bits of V in the first word; the remaining one is the sign."""

More = Callable[[int], int]
"""(place) -> 64 further bits of the deviate at that place; new ones at each call."""


def rounded_normals(words: NDArray[np.uint64], s: int | Whole, more: More) -> Whole:
    """Return whole numbers, each distributed as round(s Z), Z standard normal.

    Args:
        words: one uniformly random word of 64 bits per number.
        s: whole number from 1 to MOST, one for all or one per number.
        more: further random bits, where a word does not decide; about once in 1 / (2e-13 s).

    Raises:
        ValueError: s is out of range.
    """
    deviations = np.broadcast_to(np.asarray(s, dtype=np.int64), words.shape)
    if words.size and not 1 <= deviations.min() <= deviations.max() <= MOST:
        raise ValueError(f"s={deviations.max()} must lie between 1 and {MOST}")
    v = (words >> np.uint64(1)).astype(np.float64) + 0.5
    # V is in [v - 1/2, v + 1/2] / 2^64; the density at Phi^-1(V) is at least 0.8 V.
    size = -ndtri(v * 2.0**-64)
    error = ERROR + 1.0 / v
    low, high = np.rint(s * (size - error)), np.rint(s * (size + error))
    result = low.astype(np.int64)
    for i in np.flatnonzero(low != high).tolist():
        # The smallest V have quantiles that the error above does not bound.
        mine = int(deviations[i])
        between = int(low[i]), int(high[i]) if v[i] > 1 else 64 * mine
        result[i] = _decided(int(words[i] >> np.uint64(1)), mine, between, partial(more, i))
    return np.where(words & np.uint64(1), -result, result)


def _decided(v: int, s: int, between: tuple[int, int], further: Callable[[], int]) -> int:
    """Return round(s |Z|) for V = (v + fraction) / 2^64, the fraction having bits from `further`.

    The result is the number of borders (r + 1/2) / s, r = 0, 1, ..., below |Z|: those with
    V < P[Z > border].

    Args:
        v: bits of V that are known.
        s: see `rounded_normals`.
        between: smallest and largest possible result.
        further: returns 64 further bits.
    """
    bits = BITS + 1
    below, above = max(between[0], 0) - 1, between[1]  # border `below` is exceeded, `above` not
    while above - below > 1:
        middle = (below + above) // 2
        border, digits = Fraction(2 * middle + 1, 2 * s), 40
        while True:
            probability = tail(border, digits)
            error = Fraction(1, 10 ** (digits - 10))
            if Fraction(v + 1, 1 << bits) <= probability - error:
                below = middle
                break
            if Fraction(v, 1 << bits) >= probability + error:
                above = middle
                break
            v, bits, digits = (v << 64) | further(), bits + 64, digits + 20
    return above


def tail(c: Fraction, digits: int) -> Fraction:
    """Return P[Z > c] for c > 0, with an absolute error far below 10^-(digits - 10).

    It is 1/2 - phi(c) (c + c^3 / 3 + c^5 / (3 5) + ...), a sum of positive terms.

    Args:
        c: at most 64.
        digits: decimal digits after the point.
    """
    # Terms reach exp(c^2 / 2), which phi(c) takes away again.
    with decimal.localcontext(prec=digits + 20 + int(c * c)):
        x = decimal.Decimal(c.numerator) / c.denominator
        term = total = x
        n = 1
        while term > total * decimal.Decimal(10) ** -(digits + 10 + int(c * c)):
            n += 2
            term = term * x * x / n
            total += term
        density = (-x * x / 2).exp() / (2 * _pi(digits + 20 + int(c * c))).sqrt()
        return Fraction(decimal.Decimal("0.5") - density * total)


@lru_cache(maxsize=256)
def _pi(digits: int) -> decimal.Decimal:
    """Return pi by Machin's formula."""
    with decimal.localcontext(prec=digits + 10) as context:

        def arctan_of_inverse(m: int) -> decimal.Decimal:
            power = total = decimal.Decimal(1) / m
            n, sign = 1, 1
            while abs(power) > decimal.Decimal(10) ** -(context.prec + 2):
                power /= m * m
                n, sign = n + 2, -sign
                total += sign * power / n
            return total

        return 16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)
