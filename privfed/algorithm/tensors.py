"""Arrays in the bytes of Flower's tensors, read without trusting them.

NumPy reads a header as a Python literal. CPython 3.11 sometimes fails when two threads parse at
the same time ("AST constructor recursion depth mismatch"). So here one thread parses at a time, and
every header is parsed once.
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
    """Return the shape, whether the order is Fortran's, and the type; None if it is no header."""
    stream = io.BytesIO(header)
    try:
        with _one_at_a_time:
            if npy.read_magic(stream) != (1, 0):
                return None
            shape, fortran, dtype = npy.read_array_header_1_0(stream)
    except Exception:  # bytes of an unknown sender must not stop the run, whatever NumPy raises
        return None
    return (shape, fortran, dtype) if stream.tell() == len(header) else None


def decoded(tensor: bytes, shape: tuple[int, ...] | None = None) -> Array | None:
    """Return the array in the bytes of a tensor, without copying.

    The size that the header states is checked against the bytes before it is used.

    Args:
        tensor: bytes in NumPy's format.
        shape: shape that the array must have; None accepts any.

    Returns:
        The array, or None if the bytes are no array of 64-bit floating-point numbers of that shape.
    """
    header = tensor[: 10 + int.from_bytes(tensor[8:10], "little")]
    known = _layout(header)
    if known is None or known[2] != np.float64 or shape not in (None, known[0]):
        return None
    if any(size < 0 for size in known[0]) or len(tensor) - len(header) != 8 * math.prod(known[0]):
        return None
    numbers = np.frombuffer(tensor, dtype=np.float64, offset=len(header))
    return numbers.reshape(known[0], order="F" if known[1] else "C")
