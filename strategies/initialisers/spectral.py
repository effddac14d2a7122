"""Private initialisation, server side (PMPR Algorithm 2).

Zhat = (1/n) sum_i clip(Z_i, psi_init) + symmetric Gaussian noise        U_0 = top-k eigenvectors of Zhat by |eigenvalue|
"""

from __future__ import annotations

from privfed.algorithm.initialiser import Initialiser
from privfed.federation.federation import Federation
from privfed.foundation.linalg import Array, top_eigenvectors, unsvec


class Spectral(Initialiser):
    """One release of d (d + 1) / 2 numbers."""

    task = "spectral"

    def __init__(self, clip: float | str) -> None:
        self.clip = clip

    def shape(self, federation: Federation) -> tuple[int, ...]:
        """The half-vectorised sum: isometric, so it has the same sensitivity and half the noise power off the diagonal."""
        return (federation.d * (federation.d + 1) // 2,)

    def step(self, federation: Federation, t: int, shared: list[Array], mean: Array) -> list[Array]:
        """U_0 from the released mean."""
        return [top_eigenvectors(unsvec(mean, federation.d), federation.k)]
