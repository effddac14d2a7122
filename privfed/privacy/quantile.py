"""A clip norm from the data, privately: a noised histogram of contribution norms on public, scale-free bins.

A user adds one count to one bin, so its contribution has norm 1 and the histogram is a sum like any other: it passes the
noise gate and is charged. The quantile of the noised histogram is post-processing.
"""

from __future__ import annotations

import numpy as np

from privfed.linalg import Array

AUTO = "auto"
BOTTOM = -32
BINS = 64
LIMIT = 2.0
"""While rounds go on, a clip norm changes by at most this factor a round."""
"""Bin j holds norms in [2^(BOTTOM + j), 2^(BOTTOM + j + 1)); the first and the last also take what lies outside."""


def histogram(norms: Array) -> Array:
    """Counts of norms (B,) on the public bins: (BINS,)."""
    exponent = np.frexp(norms)[1] - 1 - BOTTOM
    exponent = np.where(norms > 0, exponent, 0)
    return np.bincount(np.clip(exponent, 0, BINS - 1), minlength=BINS).astype(np.float64)


def quantile(counts: Array, n: int, q: float) -> float:
    """The norm below which a fraction q of n users lies, by the noised counts (BINS,); always a positive number.

    Ranks are counted from both ends, which halves the worst accumulated noise, and made monotone; inside the bin where
    they cross q n the norm is interpolated.
    """
    below = np.concatenate([[0.0], np.cumsum(counts)])
    above = np.concatenate([np.cumsum(counts[::-1])[::-1], [0.0]])
    rank = (below + (n - above)) / 2.0
    rank = (np.maximum.accumulate(rank) + np.minimum.accumulate(rank[::-1])[::-1]) / 2.0
    j = int(np.argmax(rank[1:] >= q * n)) if np.any(rank[1:] >= q * n) else BINS - 1
    width = rank[j + 1] - rank[j]
    inside = float(np.clip((q * n - rank[j]) / width, 0.0, 1.0)) if width > 0 else 1.0
    return float(2.0 ** (BOTTOM + j + inside))
