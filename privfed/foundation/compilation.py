"""Compiling loops over users: Numba, once on a machine."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit

SHARED = (
    "kernels/least_squares.py",
    "kernels/simd.py",
    "kernels/example_weights.py",
    "privacy/clipping.py",
)
"""Where compiled code of other files has functions and constants from."""


@cache
def _sources() -> str:
    """A digest of the shared files."""
    here = Path(__file__).parent.parent
    return hashlib.sha256(b"".join((here / name).read_bytes() for name in SHARED)).hexdigest()


def compiled(function: Any) -> Any:
    """Compile a function of numbers and arrays, once on a machine.

    Sums may be reordered (vector units), but NaN, infinity and division by zero behave as IEEE says. Numba compiles again when
    the function's own file has changed; here also when a shared file has, as its constants and functions are in the code.
    """
    made: Any = njit(
        nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"}
    )(function)
    index = getattr(
        getattr(made, "_cache", None), "_cache_file", None
    )  # neither is there with Numba's cache or compiler off
    if index is not None:
        index._source_stamp = (index._source_stamp, _sources())
    return made
