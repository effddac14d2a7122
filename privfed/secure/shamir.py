"""Shamir's threshold sharing over the prime field of p = 2^31 - 1, as products of matrices.

A secret number is the value at 0 of a polynomial of degree t - 1 whose other coefficients are
uniformly random. Share x is its value at x = 1, 2, ... Any t shares give the secret; fewer say
nothing about it. A secret of 32 bytes is 9 numbers of 30 bits, all shared at the same places.

Products of numbers below p are added up exactly in floating point: one factor is cut in two halves
of 16 bits, and sums of up to BLOCK products of 47 bits stay below 2^53.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privfed.secure.keys import KEY, Words

Residues = NDArray[np.int64]
"""Numbers from 0 to p - 1."""
PRIME = 2**31 - 1
BITS = 30
"""Bits of a secret per number."""
NUMBERS = -(-8 * KEY // BITS)
"""Numbers per secret of KEY bytes."""
SHARE = 4 * NUMBERS
"""Bytes of a share of such a secret."""
MOST = 2**16 - 1
"""Most shares."""
BLOCK = 64


def product(A: Residues, B: Residues) -> Residues:
    """Return the matrix product over the field, (a, b) times (b, c)."""
    total = np.zeros((A.shape[0], B.shape[1]), dtype=np.int64)
    for start in range(0, A.shape[1], BLOCK):
        part, right = A[:, start : start + BLOCK], B[start : start + BLOCK].astype(np.float64)
        high = ((part >> 16).astype(np.float64) @ right).astype(np.int64) % PRIME
        low = ((part & 0xFFFF).astype(np.float64) @ right).astype(np.int64)
        total = (total + (high << 16) + low) % PRIME
    return total


@lru_cache(maxsize=64)
def _powers(threshold: int, count: int) -> Residues:
    """Return x^0, ..., x^(threshold - 1) for x = 1, ..., count, (count, threshold)."""
    x = np.arange(1, count + 1, dtype=np.int64)
    columns = [np.ones(count, dtype=np.int64)]
    for _ in range(threshold - 1):
        columns.append(columns[-1] * x % PRIME)
    return np.stack(columns, axis=1)


def uniform(words: Words) -> Residues:
    """Return numbers of the field, uniformly random, from uniformly random words of 64 bits.

    A word has two parts of 31 bits. The second one counts where the first one is p, which is none
    of the field's numbers; both are p with probability 2^-62, and count as 0 then.
    """
    first = (words & np.uint64(PRIME)).astype(np.int64)
    second = (words >> np.uint64(33)).astype(np.int64)
    return np.where(first < PRIME, first, second) % PRIME


def split(secrets: bytes, threshold: int, count: int, randomness: Words) -> list[bytes]:
    """Return the shares of secrets, SHARE bytes per secret; share x = 1, 2, ... is at x - 1.

    Args:
        secrets: secrets of KEY bytes each, one after another.
        threshold: number of shares that give the secrets, from 1 to `count`.
        count: number of shares, at most MOST.
        randomness: uniformly random words, `coefficients` of them.

    Raises:
        ValueError: the numbers do not fit.
    """
    if not 1 <= threshold <= count <= MOST:
        raise ValueError(f"{threshold} of {count} shares: needs 1 <= threshold <= count <= {MOST}")
    known = np.array([_numbers(secrets[i : i + KEY]) for i in range(0, len(secrets), KEY)])
    rest = uniform(randomness).reshape(threshold - 1, known.size)
    polynomial = np.concatenate([known.reshape(1, -1), rest])
    rows = product(_powers(threshold, count), polynomial).astype("<u4")
    return [row.tobytes() for row in rows]


def coefficients(secrets: int, threshold: int) -> int:
    """Return the number of random words that sharing this number of secrets takes."""
    return (threshold - 1) * secrets * NUMBERS


def _numbers(secret: bytes) -> list[int]:
    whole = int.from_bytes(secret, "little")
    return [whole >> (BITS * i) & ((1 << BITS) - 1) for i in range(NUMBERS)]


@lru_cache(maxsize=65536)
def _weights(places: tuple[int, ...]) -> Residues:
    """Return the weights with which shares at these places add up to the secret, (1, t)."""
    weights = []
    for x in places:
        above = below = 1
        for other in places:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return np.array([weights], dtype=np.int64)


def combine(shares: list[bytes], places: tuple[int, ...]) -> list[bytes]:
    """Return the secrets of as many shares as their threshold; shares that are none give any bytes.

    Args:
        shares: share of each place, SHARE bytes per secret.
        places: x of each share, all different.

    Raises:
        ValueError: a place is out of range or occurs twice.
    """
    if len(set(places)) < len(places) or not all(1 <= x <= MOST for x in places):
        raise ValueError(f"shares have different places from 1 to {MOST}")
    held = np.frombuffer(b"".join(shares), dtype="<u4").reshape(len(places), -1).astype(np.int64)
    found = product(_weights(places), held % PRIME)[0].tolist()
    return [_secret(found[i : i + NUMBERS]) for i in range(0, len(found), NUMBERS)]


def _secret(numbers: list[int]) -> bytes:
    whole = sum(number << (BITS * i) for i, number in enumerate(numbers))
    return (whole & ((1 << 8 * KEY) - 1)).to_bytes(KEY, "little")
