"""Private FedRep on tables, server side.

    spectral   Zhat = mean of clipped Z_i + symmetric noise; its eigenvalues l_1 >= l_2 >= ... and eigenvectors
    gradient   T times:  U <- QR(U - eta_t G),  eta_t = step decay^(t-1) / psi

How many eigenvectors to keep needs no data. Noise of variance v in every entry beside the diagonal moves an eigenvalue s to
l = s + v d / s if s^2 > v d, and hides it below 2 sqrt(v d) otherwise; the eigenvector then keeps a part 1 - v d / s^2 of its
direction (Benaych-Georges and Nadakuditi 2011). So s is known from l, k is the number of those above the edge, and heads in a
direction are taken to be of length sqrt(s (1 - v d / s^2)). v is the variance of the privacy noise, and at most psi^2 / (n d^2)
more that n users of norm psi leave by chance.

A category that a user has in one row only (an item rated once) never meets itself in Z_i, so its entry on the diagonal is empty
though the shared part has one there. It is completed from the low-rank part of the rest (Zhang, Cai and Wu 2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from privfed.algorithm.phases import Step
from privfed.algorithm.steps_of import Clip
from privfed.algorithm.table_strategy import TableStrategy
from privfed.federation.federation import Federation
from privfed.foundation.errors import ConfigError, check_positive, check_whole
from privfed.foundation.linalg import Array, retraction, unsvec

COMPLETIONS = 20
AUTO_K = 12
"""Most directions that are kept when k is chosen automatically."""


class FedRep(TableStrategy):
    """Global model, spectral start, gradient steps on what it found."""

    def __init__(
        self, federation: Federation, rounds: int, global_rounds: int, k: int | str,
        clip: Mapping[str, Clip], shares: Mapping[str, float], step: float, decay: float,
    ) -> None:  # fmt: skip
        for key, value in (("algo.step", step), ("algo.decay", decay)):
            check_positive(key, value)
        if isinstance(k, str) and k != "auto":
            raise ConfigError.of("data.k", k, "must be a whole number, or auto")
        self.k = None if k == "auto" else int(k)
        self.relative_step, self.decay, self.turns = (
            step,
            decay,
            check_whole("rounds", rounds, least=0),
        )
        super().__init__(federation, max(1, rounds), global_rounds, clip, shares)
        self.rounds = self.turns

    def stages(self) -> dict[str, int]:
        """Two tasks more."""
        return {
            **super().stages(),
            "spectral": 1,
            **({"gradient": self.turns} if self.turns else {}),
        }

    def sums_of(self, step: Step) -> dict[str, tuple[int, ...]]:
        """Clients send half of Z, and G^T."""
        d = self.federation.d
        shapes = {"spectral": (d * (d + 1) // 2,), "gradient": self.model.U.T.shape}
        return {step.task: shapes[step.task]} if step.task in shapes else super().sums_of(step)

    def take_spectral(self, t: int, mean: Array, noise: float) -> None:
        """The representation, and how long heads are in it."""
        d, psi = self.federation.d, float(self.clips["spectral"])
        v = noise**2 / 2 + psi**2 / (self.federation.n * d * d)
        found, vectors = completed(
            unsvec(mean, d), v, np.arange(d) >= d - int(self.federation.schema.sizes.sum())
        )
        k = self.k or int(np.clip(np.sum(found > 0), 1, min(d, AUTO_K)))
        U = vectors[:, :k]
        signs = np.sign(U[np.argmax(np.abs(U), axis=0), np.arange(k)])
        largest = found[0] if found[0] > 0 else 1.0
        self.model = replace(
            self.model, U=np.ascontiguousarray(U * signs), scale=np.sqrt(found[:k] / largest)
        )
        self.started = True

    def take_gradient(self, t: int, mean: Array, noise: float) -> None:
        """U <- QR(U - eta_t G)."""
        eta = self.relative_step / float(self.clips["gradient"]) * self.decay ** (t - 1)
        self.model = replace(self.model, U=retraction(self.model.U - eta * mean.T))

    @property
    def notes(self) -> list[str]:
        """How many directions stood out of the noise."""
        said = super().notes
        if not self.started:
            return said
        k = int(np.sum(self.model.scale > 0))
        if not k:
            said.append(
                "No shared direction stood out of the noise: personal models are the global one and a personal offset."
            )
        elif k == 1:
            said.append("1 shared direction stood out of the noise; heads live in it.")
        else:
            said.append(f"{k} shared directions stood out of the noise; heads live in them.")
        return said


def completed(Z: Array, v: float, unknown: NDArray[np.bool_]) -> tuple[Array, Array]:
    """What stands out of the noise in Z (d, d): eigenvalues (d,) as `signal` has them, and eigenvectors (d, d).

    unknown (d,): whose own entry on the diagonal says nothing. It is put in from the others, again and again.
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
    """What eigenvalues (d,) of a symmetric matrix with noise of variance v say of those without, less what was lost: (d,)."""
    d = len(values)
    edge = 2.0 * math.sqrt(v * d)
    clear = values > edge * (
        1.0 + d ** (-2 / 3)
    )  # the largest eigenvalue of noise alone strays by about that much
    s = np.where(clear, (values + np.sqrt(np.maximum(values**2 - edge**2, 0.0))) / 2.0, 1.0)
    return np.where(clear, np.maximum(s - v * d / s, 0.0), 0.0)
