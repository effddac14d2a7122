"""Arrays in the bytes of Flower's tensors, read without trusting them.

NumPy reads a header as a Python literal. CPython 3.11 fails now and then when two threads parse at the same time ("AST
constructor recursion depth mismatch"), so here one thread parses at a time, and every header once.
"""

from __future__ import annotations

import io
import math
import threading
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib import format as npy

from privfed.foundation.linalg import Array

_one_at_a_time = threading.Lock()


@lru_cache(maxsize=256)
def _layout(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]] | None:
    """Shape, order (whether column by column) and type that a header states; None if it is not one."""
    stream = io.BytesIO(header)
    try:
        with _one_at_a_time:
            if npy.read_magic(stream) != (1, 0):
                return None
            shape, fortran, dtype = npy.read_array_header_1_0(stream)
    except Exception:  # whatever NumPy's parser stumbles over, a stranger's bytes stop nobody
        return None
    return (shape, fortran, dtype) if stream.tell() == len(header) else None


def decoded(tensor: bytes, shape: tuple[int, ...] | None = None) -> Array | None:
    """The array in a tensor's bytes if it is one of 64-bit numbers, in this shape if one is given; nothing is allocated
    on its word."""
    header = tensor[: 10 + int.from_bytes(tensor[8:10], "little")]
    known = _layout(header)
    if known is None or known[2] != np.float64 or shape not in (None, known[0]):
        return None
    if any(size < 0 for size in known[0]) or len(tensor) - len(header) != 8 * math.prod(known[0]):
        return None
    numbers = np.frombuffer(tensor, dtype=np.float64, offset=len(header))
    return numbers.reshape(known[0], order="F" if known[1] else "C")
