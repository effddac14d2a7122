"""Floating-point results that are never too small: exact rational arithmetic, rounded up."""

from __future__ import annotations

import math
from fractions import Fraction


def up(exact: Fraction) -> float:
    """Return the smallest float that is at least `exact`."""
    near = float(exact)
    return near if near >= exact else math.nextafter(near, math.inf)


def quotient_up(a: float, b: float) -> float:
    """Return a / b, rounded up; both are positive and finite."""
    return up(Fraction(a) / Fraction(b))


def product_up(a: float, b: float) -> float:
    """Return a b, rounded up; infinite if a factor is."""
    if math.isinf(a) or math.isinf(b):
        return a * b
    return up(Fraction(a) * Fraction(b))


def root_up(square: Fraction) -> float:
    """Return the square root, rounded up to one of the two floats next to it."""
    root = math.sqrt(up(square))
    return root if Fraction(root) ** 2 >= square else math.nextafter(root, math.inf)
