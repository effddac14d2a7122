"""Priv-AltMin's initialiser, server side (DPMP Algorithm 3).

    What = (1/n) sum_i clip(W_i, clip) + symmetric Gaussian noise
    U_0  = top-k eigenvectors of What by |eigenvalue|

The same release as PMPR's spectral initialiser, of another statistic.
"""

from __future__ import annotations

from strategies.initialisers.spectral import SpectralStart


class PairsStart(SpectralStart):
    """One release of d (d + 1) / 2 numbers."""

    task = "pairs"
