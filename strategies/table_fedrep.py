"""Private FedRep on tables, server side.

    spectral   Zhat = mean of clipped Z_i + symmetric noise; its eigenvalues l_1 >= l_2 >= ... and
               eigenvectors
    gradient   T times:  U <- QR(U - eta_t G),  eta_t = step decay^(t-1) / psi

How many eigenvectors to keep needs no data. Noise of variance v in every entry beside the diagonal
moves an eigenvalue s to l = s + v d / s if s^2 > v d, and hides it below 2 sqrt(v d) otherwise. The
eigenvector then keeps a part 1 - v d / s^2 of its direction (Benaych-Georges and Nadakuditi 2011).
So s is known from l, k is the number of eigenvalues above the edge, and heads in a direction are
taken to be of length sqrt(s (1 - v d / s^2)). v is the variance of the privacy noise, and at most
psi^2 / (n d^2) more that n users of norm psi leave by chance.

A category that a user has in one row only (an item rated once) never meets itself in Z_i. Its entry
on the diagonal is empty, though the shared part has one there. It is completed from the low-rank
part of the rest (Zhang, Cai and Wu 2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from privfed.algorithm.phases import LAST, Phase
from privfed.algorithm.table_strategy import TableStrategy
from privfed.federation.federation import Federation
from privfed.foundation.constraints import POSITIVE, WHOLE, Key, Whole
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array, retraction, unsvec
from privfed.privacy.settings import Clip

COMPLETIONS = 20
AUTO_K = 12
"""Largest number of directions that are kept when k is chosen automatically."""


class TableFedRep(TableStrategy):
    """Global model, spectral start, gradient steps on what it found."""

    def __init__(
        self,
        federation: Federation,
        rounds: Annotated[int, Whole(0), Key("rounds")],
        global_rounds: Annotated[int, WHOLE],
        k: int | str,
        clip: Mapping[str, Clip],
        shares: Mapping[str, float],
        step: Annotated[float, POSITIVE],
        decay: Annotated[float, POSITIVE],
    ) -> None:
        super().__init__(federation, global_rounds, clip, shares)
        if isinstance(k, str) and k != "auto":
            raise ConfigError.of("data.k", k, "must be a whole number, or auto")
        self.k = None if k == "auto" else int(k)
        self.rounds, self.relative_step, self.decay = rounds, step, decay

    def phases(self) -> list[Phase]:
        """Return the phases of all table algorithms, then one of svec(Z) and T rounds of G^T."""
        d = self.federation.d
        Z = self.clipped_phase("spectral", (d * (d + 1) // 2,), self.find_representation)
        phases = [*super().phases(), replace(Z, model=LAST)]
        if self.rounds:
            G = self.clipped_phase("gradient", self.gradient_shape, self.descend, self.rounds)
            phases.append(G)
        return phases

    def gradient_shape(self) -> tuple[int, ...]:
        """Return the shape of G^T, (k, d)."""
        return self.model.U.T.shape

    def find_representation(self, t: int, mean: Array) -> list[Array]:
        """Return the model with the representation, and the length of heads per direction."""
        d, psi = self.federation.d, float(self.clips["spectral"])
        v = self.noise_std("spectral") ** 2 / 2 + psi**2 / (self.federation.n * d * d)
        unknown = np.arange(d) >= d - int(self.schema.sizes.sum())
        found, vectors = completed(unsvec(mean, d), v, unknown)
        k = self.k or int(np.clip(np.sum(found > 0), 1, min(d, AUTO_K)))
        U = vectors[:, :k]
        signs = np.sign(U[np.argmax(np.abs(U), axis=0), np.arange(k)])
        largest = found[0] if found[0] > 0 else 1.0
        scale = np.sqrt(found[:k] / largest)
        return self.publish_model(
            replace(self.model, U=np.ascontiguousarray(U * signs), scale=scale)
        )

    def descend(self, t: int, G: Array) -> list[Array]:
        """Return the model with U <- QR(U - eta_t G); the argument G is the released G^T."""
        eta = self.relative_step / float(self.clips["gradient"]) * self.decay ** (t - 1)
        return self.publish_model(replace(self.model, U=retraction(self.model.U - eta * G.T)))

    def notes(self) -> list[str]:
        """Say how many directions stood out of the noise."""
        said = super().notes()
        if not self.started:
            return said
        k = int(np.sum(self.model.scale > 0))
        if not k:
            said.append(
                "No shared direction stood out of the noise: personal models are the global one "
                "and a personal offset."
            )
        elif k == 1:
            said.append("1 shared direction stood out of the noise; heads live in it.")
        else:
            said.append(f"{k} shared directions stood out of the noise; heads live in them.")
        return said


def completed(Z: Array, v: float, unknown: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return what stands out of the noise in Z (d, d).

    Args:
        Z: symmetric matrix (d, d).
        v: variance of the noise in every entry beside the diagonal.
        unknown: columns (d,) whose own entry on the diagonal says nothing; it is completed from
            the others, COMPLETIONS times.

    Returns:
        Eigenvalues (d,) as `signal` has them, and eigenvectors (d, d).
    """
    Z = Z.copy()
    Z[unknown, unknown] = 0.0
    for _ in range(COMPLETIONS):
        values, vectors = np.linalg.eigh(Z)
        found, vectors = signal(values[::-1], v), vectors[:, ::-1]
        if not unknown.any():
            break
        Z[unknown, unknown] = (vectors[unknown] ** 2) @ found
    return found, vectors


def signal(values: Array, v: float) -> Array:
    """Return the eigenvalues without noise, reduced by the part of their direction that was lost.

    Args:
        values: eigenvalues with noise (d,).
        v: variance of the noise in every entry of the symmetric matrix.

    Returns:
        s - v d / s (d,) with s the eigenvalue without noise; 0 where noise hides it.
    """
    d = len(values)
    edge = 2.0 * math.sqrt(v * d)
    # The largest eigenvalue of noise alone exceeds the edge by up to about d^(-2/3) of it.
    clear = values > edge * (1.0 + d ** (-2 / 3))
    s = np.where(clear, (values + np.sqrt(np.maximum(values**2 - edge**2, 0.0))) / 2.0, 1.0)
    return np.where(clear, np.maximum(s - v * d / s, 0.0), 0.0)
