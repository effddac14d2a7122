"""Private initialisation, server side (PMPR Algorithm 2).

    Zhat = (1/n) sum_i clip(Z_i, psi_init) + symmetric Gaussian noise
    U_0  = top-k eigenvectors of Zhat by |eigenvalue|

The sum travels as its isometric half-vectorisation, d (d + 1) / 2 numbers: the same sensitivity,
and half the noise power off the diagonal.
"""

from __future__ import annotations

from functools import partial

from privfed.algorithm.initialiser import Initialiser
from privfed.algorithm.phases import LAST, Measurement, Phase, Sum
from privfed.federation.federation import Federation
from privfed.foundation.linalg import Array, top_eigenvectors, unsvec
from privfed.privacy.settings import Clip


class SpectralStart(Initialiser):
    """One release of d (d + 1) / 2 numbers."""

    task = "spectral"

    def __init__(self, clip: Clip) -> None:
        self.clip = clip

    def phases(self, federation: Federation) -> list[Phase]:
        """Return the one release."""
        d, k = federation.d, federation.k
        Z = Sum((d * (d + 1) // 2,), self.clip, "init.clip")
        update = partial(self.update, d=d, k=k)
        return [Phase(self.task, Z, update, measurement=Measurement(again=False), model=LAST)]

    def update(self, t: int, Z: Array, d: int, k: int) -> list[Array]:
        """Return U_0 from the released mean."""
        return [top_eigenvectors(unsvec(Z, d), k)]
