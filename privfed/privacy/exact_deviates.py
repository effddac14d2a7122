"""Uniform deviates with any number of bits, and exact draws from them, in plain Python.

`privfed.privacy.exact_sampling` uses them if few draws are needed. Compiled draws
(`privfed.privacy.exact_loops`) give the same numbers, and need these once in 2^39 draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction


class Deviate:
    """Uniform deviate on (0, 1) whose bits are drawn when they are needed.

    Args:
        word: the first 64 bits.
        more: returns 64 further bits.
        exact: whether all further bits are 0.
    """

    def __init__(self, word: int, more: Callable[[], int], exact: bool = False) -> None:
        self.bits, self.known, self.more, self.exact = word, 64, more, exact

    def extend(self) -> None:
        """Draw 64 more bits."""
        self.bits, self.known = (
            (self.bits << 64) | (0 if self.exact else self.more()),
            self.known + 64,
        )

    def below(self, other: Deviate) -> bool:
        """Return whether this deviate is less than `other`."""
        while True:
            while self.known < other.known:
                self.extend()
            while other.known < self.known:
                other.extend()
            if self.bits != other.bits:
                return self.bits < other.bits
            self.extend()


class Slow:
    """One exact draw, from deviates with any number of bits.

    Args:
        words: words that the draw reads first; compiled draws read the same ones.
        more: returns further bits of a deviate.
    """

    def __init__(self, words: Iterator[int], more: Callable[[], int]) -> None:
        self.words, self.more, self.used = words, more, 0

    def word(self) -> int:
        """Return the next word: from `words`, or a fresh one if these are used up."""
        self.used += 1
        word = next(self.words, None)
        return self.more() if word is None else word

    def deviate(self) -> Deviate:
        """Return a new uniform deviate."""
        return Deviate(self.word(), self.more)

    def run(self, x: Deviate, m: int = 0) -> bool:
        """Return whether the run x > u_1 > u_2 > ... has even length, of probability exp(-x).

        With m = 2k + 2, every member of the run also needs an event of probability (m - 2 + x) / m.
        The probability of even length is then exp(-x (2k + x) / (2k + 2)).
        """
        even, bound = True, x
        while True:
            u = self.deviate()
            if not u.below(bound):
                return even
            if m:
                case = self.word()
                while case >= (1 << 64) // m * m:
                    case = self.word()
                if case % m == 0 or (case % m == 1 and not self.deviate().below(x)):
                    return even
            even, bound = not even, u

    def half(self) -> bool:
        """Draw an event of probability exp(-1/2)."""
        return self.run(Deviate(1 << 63, self.more, exact=True))

    def exponential(self, bits: int = 64) -> Fraction:
        """Draw a positive exponential deviate, with at least `bits` bits after the binary point."""
        k = 0
        while True:
            x = self.deviate()
            if self.run(x):
                while x.known < bits or not (k or x.bits):
                    x.extend()
                return k + Fraction(x.bits, 1 << x.known)
            k += 1

    def value(self, s: int) -> int:
        """Draw round(s Z), Z standard normal."""
        while True:
            k = 0
            while self.half():
                k += 1
            if not all(self.half() for _ in range(k * (k - 1))):
                continue
            x = self.deviate()
            if not all(self.run(x, 2 * k + 2) for _ in range(k + 1)):
                continue
            negative = self.word() & 1
            while (rounded := _rounded(s * x.bits, x.known)) != _rounded(
                s * (x.bits + 1) - 1, x.known
            ):
                x.extend()
            return -(k * s + rounded) if negative else k * s + rounded


def _rounded(numerator: int, bits: int) -> int:
    """Return numerator / 2^bits, rounded to the nearest whole number."""
    return (numerator + (1 << (bits - 1))) >> bits
