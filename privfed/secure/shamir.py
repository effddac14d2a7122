"""Shamir's threshold sharing, byte by byte over GF(256).

A secret byte is the value at 0 of a polynomial of degree t - 1 whose other coefficients are
uniformly random. Share x is its value at x = 1, 2, ... Any t shares give the secret; fewer say
nothing about it. Arithmetic is that of the field GF(2^8) with the polynomial of AES.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
MOST = 255
"""Most shares: the field has so many places besides 0."""


def _product_table() -> Bytes:
    exponents = [1]
    for _ in range(254):
        last = exponents[-1]
        doubled = (last << 1) ^ (0x11B if last & 0x80 else 0)
        exponents.append(doubled ^ last)  # 3 generates the group
    logs = {value: i for i, value in enumerate(exponents)}
    table = np.zeros((256, 256), dtype=np.uint8)
    for a in range(1, 256):
        for b in range(1, 256):
            table[a, b] = exponents[(logs[a] + logs[b]) % 255]
    return table


TIMES = _product_table()
"""Products of all pairs of field elements, (256, 256)."""
INVERSE = np.array([0, *(int(np.argmax(TIMES[a] == 1)) for a in range(1, 256))], dtype=np.uint8)


def product(A: Bytes, B: Bytes) -> Bytes:
    """Return the matrix product over the field, (a, b) times (b, c)."""
    total = np.zeros((A.shape[0], B.shape[1]), dtype=np.uint8)
    for column, row in zip(A.T, B, strict=True):
        total ^= TIMES[column[:, None], row[None, :]]
    return total


@lru_cache(maxsize=64)
def _powers(threshold: int, count: int) -> Bytes:
    """Return x^0, ..., x^(threshold - 1) for x = 1, ..., count, (count, threshold)."""
    x = np.arange(1, count + 1, dtype=np.uint8)
    columns = [np.ones(count, dtype=np.uint8)]
    for _ in range(threshold - 1):
        columns.append(TIMES[columns[-1], x])
    return np.stack(columns, axis=1)


def split(secret: bytes, threshold: int, count: int, randomness: Bytes) -> Bytes:
    """Return the shares of a secret, (count, len(secret)); share x = 1, 2, ... is row x - 1.

    Args:
        secret: any bytes.
        threshold: number of shares that give the secret, from 1 to `count`.
        count: number of shares, at most MOST.
        randomness: uniformly random bytes, (threshold - 1) * len(secret) of them.

    Raises:
        ValueError: the numbers do not fit.
    """
    if not 1 <= threshold <= count <= MOST:
        raise ValueError(f"{threshold} of {count} shares: needs 1 <= threshold <= count <= {MOST}")
    rest = randomness.reshape(threshold - 1, len(secret))
    polynomial = np.concatenate([np.frombuffer(secret, dtype=np.uint8)[None], rest])
    return product(_powers(threshold, count), polynomial)


@lru_cache(maxsize=4096)
def _weights(places: tuple[int, ...]) -> Bytes:
    """Return the weights with which shares at these places add up to the secret, (1, t)."""
    weights = []
    for x in places:
        weight = 1
        for other in places:
            if other != x:
                quotient = TIMES[other, INVERSE[other ^ x]]
                weight = int(TIMES[weight, quotient])
        weights.append(weight)
    return np.array([weights], dtype=np.uint8)


def combine(shares: Bytes, places: tuple[int, ...]) -> bytes:
    """Return the secret of as many shares as its threshold.

    Args:
        shares: (t, length).
        places: x of each share, all different.

    Raises:
        ValueError: a place is out of range or occurs twice.
    """
    if len(set(places)) < len(places) or not all(1 <= x <= MOST for x in places):
        raise ValueError("shares have different places from 1 to 255")
    return product(_weights(places), shares)[0].tobytes()
