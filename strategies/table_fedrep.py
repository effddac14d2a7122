"""Private personal models of a table, server side.

    slopes     Zhat = mean of clipped Z_i + symmetric noise; its eigenvectors that stand out
    factors    the same for items: mean of h_i h_i^T, whose diagonal is completed from the rest
    effects    D = covariance of users' own intercepts and slopes, by expectation and maximisation:
               w <- w + mean of b_i, D <- mean of (b_i b_i^T + V_i) - its part of w
    evidence   E = mean of the users' log(LOO_k / LOO_own mean), one entry per way to predict

A matrix is asked for only where n, mu and its size let directions stand out of the noise. How many
do needs no data: the noise is known. v is the variance of the privacy noise in an entry, and at
most psi^2 / (n d^2) more that n users of norm psi leave by chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from privfed.algorithm import table_outlook as outlook
from privfed.algorithm.phases import Phase
from privfed.algorithm.table_estimates import completed
from privfed.algorithm.table_strategy import TableStrategy
from privfed.federation.federation import Federation
from privfed.foundation.constraints import WHOLE, Key
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array, unsvec
from privfed.models.table_heads import candidates_of, families, smooth_evidence
from privfed.privacy.bounds import UNCLIPPED, NormBound, SemidefiniteBound
from privfed.privacy.settings import Clip

CHANCE = 2.0
"""Variance of what users leave by chance, in units of that of independent entries."""
AUTO_K = 24
"""Largest number of directions that are kept when k is chosen automatically."""
SPREAD = 0.12
"""A user's evidence is clipped to SPREAD sqrt(K): its entries lie within +-1, most well inside."""
STEPS = 20
"""Steps for the covariance of effects without noise."""
START = 0.1
"""Variance of an effect at the start, in units of the variance of a row."""
FEW_EFFECTS = 0.5
"""Users per effect whose covariance is taken for diagonal, in addition to those there are."""
MOST_EFFECTS = 64
"""Most effects whose covariance is asked for."""
LOUD = 0.3
"""Largest noise in an entry of the evidence; beyond, it would mislead, and is not asked for."""


class TableFedRep(TableStrategy):
    """Global model, shared directions where they can be seen, and the population's evidence."""

    def __init__(
        self,
        federation: Federation,
        rounds: Annotated[int, WHOLE, Key("rounds")],
        k: int | str,
        clip: Mapping[str, Clip],
        shares: Mapping[str, float],
    ) -> None:
        super().__init__(federation, rounds, clip, shares)
        if isinstance(k, str) and k != "auto":
            raise ConfigError.of("data.k", k, "must be a whole number, or auto")
        self.k = None if k == "auto" else int(k)

    @property
    def shows_slopes(self) -> bool:
        """Whether shared slopes can stand out, or a number of directions is asked for."""
        p = self.width - 1
        if self.k is not None:
            return not len(self.schema.items)
        seen = outlook.visibility(self.mu, self.shares["slopes"], self.federation.n, 2 * max(p, 1))
        return p > 1 and seen > outlook.DIRECTIONS_SEEN and not self.shows_effects

    @property
    def shows_effects(self) -> bool:
        """Whether the covariance of effects can be learnt: without noise."""
        return math.isinf(self.mu) and 1 < self.width <= MOST_EFFECTS

    @property
    def shows_factors(self) -> bool:
        """Whether shared directions of items can stand out, or are asked for."""
        L = len(self.schema.items)
        if not L or self.k is not None:
            return bool(L)
        seen = outlook.visibility(self.mu, self.shares["factors"], self.federation.n, L)
        return outlook.MOST_ITEMS >= L and seen > outlook.FACTORS_SEEN

    @property
    def shows_evidence(self) -> bool:
        """Whether evidence is less noisy than LOUD."""
        directions = self.shows_slopes or self.shows_factors
        K = candidates_of(self.model, directions, self.shows_effects)
        spent = self.mu * math.sqrt(self.shares["evidence"]) * self.federation.n
        return 2.0 * SPREAD * math.sqrt(K) <= LOUD * spent

    def personal_phases(self) -> list[Phase]:
        """Return the phases that can be seen; a share s of the whole goes to each of them."""
        p, L, shares = len(self.schema.dense), len(self.schema.items), self.shares
        whole = sum(self.parts.values())
        wanted = {
            "effects": self.shows_effects,
            "slopes": self.shows_slopes,
            "factors": self.shows_factors,
            "evidence": self.shows_evidence,
        }
        rest = 1.0 - sum(shares[name] for name, seen in wanted.items() if seen)
        part = {name: whole * shares[name] / rest for name in wanted}
        phases = []
        if self.shows_slopes:
            entries = (p * (p + 1) // 2,)
            phases.append(self.clipped("slopes", entries, self.find_slopes, part["slopes"]))
        if self.shows_factors:
            entries = (L * (L + 1) // 2,)
            share = part["factors"]
            phases.append(
                self.clipped(
                    "factors", entries, self.find_factors, share, bounded=SemidefiniteBound
                )
            )
        if self.shows_effects:
            Q = 2 + p + self.schema.outputs
            effects = self.clipped("effects", (Q * (Q + 1) // 2,), self.set_effects,
                                   part["effects"], STEPS, bounded=SemidefiniteBound)  # fmt: skip
            phases.append(replace(effects, announce=self.announced_effects))
        if self.shows_evidence:
            phases.append(
                self.bounded(
                    "evidence",
                    lambda: (self.candidates,),
                    lambda t: NormBound(SPREAD * math.sqrt(self.candidates)),
                    self.set_evidence,
                    part["evidence"],
                )
            )
        return phases

    @property
    def candidates(self) -> int:
        """Number of ways in which users of the present model predict."""
        return sum(len(family) for family in families(self.model))

    def announced_effects(self) -> list[Array]:
        """Return the model with the present covariance of effects, and the variance of a row."""
        if not self.model.effects.size:
            dense = np.concatenate([[0], 1 + self.schema.dense])
            L = np.zeros((self.schema.d + 1, len(dense)))
            L[dense, np.arange(len(dense))] = math.sqrt(START)
            self.model = replace(self.model, effects=L)
            self.kept["rows"] = np.ones(1)
        return [*self.model.arrays, self.kept["rows"]]

    def set_effects(self, t: int, mean: Array) -> list[Array]:
        """Take a step of maximisation: the global model, and the variances."""
        dense, C = np.concatenate([[0], 1 + self.schema.dense]), self.schema.outputs
        P = len(dense)
        M = unsvec(mean, P + C + 1)
        many = max(float(M[P, P]), 1e-9)  # share of users who have rows
        middle = M[:P, P : P + C] / many
        D = M[:P, :P] / (C * many) - middle @ middle.T / C
        few = FEW_EFFECTS * P
        D = (self.federation.n * D + few * np.diag(np.diag(D))) / (self.federation.n + few)
        s = max(float(M[-1, -1]) / many, 1e-12)
        values, E = np.linalg.eigh(D / s)
        w, L = self.model.w.copy(), np.zeros((self.schema.d + 1, P))
        w[dense] += middle
        L[dense] = E * np.sqrt(np.maximum(values, 0.0))
        self.kept["rows"] = np.array([s])
        return self.publish_model(replace(self.model, w=w, effects=L))

    def find_slopes(self, t: int, mean: Array) -> list[Array]:
        """Add the directions of dense columns that stand out."""
        p = len(self.schema.dense)
        coded = np.arange(p) >= len(self.schema.numbers) * (1 + self.schema.indicates)
        return self._add(unsvec(mean, p), "slopes", coded, self.schema.dense)

    def find_factors(self, t: int, mean: Array) -> list[Array]:
        """Add the directions of items that stand out.

        An item is rated once per user, so its entry on the diagonal holds the noise of its rows.
        """
        L = len(self.schema.items)
        return self._add(unsvec(mean, L), "factors", np.ones(L, dtype=np.bool_), self.schema.items)

    def _add(
        self, Z: Array, name: str, unknown: NDArray[np.bool_], columns: NDArray[np.int64]
    ) -> list[Array]:
        d, clip = len(Z), float(self.clips[name])
        n, unit = self.federation.n, np.ones(d)
        if clip < UNCLIPPED:
            v = self.noise_std(name) ** 2 / 2 + clip**2 / (n * d * d)
        else:
            # Without noise what n users leave by chance is all there is: 1 / n in each entry, in
            # units of the columns' own size.
            unit = np.sqrt(np.maximum(np.diag(Z), 1e-12 * np.trace(Z) / d + 1e-300))
            v = CHANCE / n
        found, vectors = completed(Z / np.outer(unit, unit), v, unknown, self.k or AUTO_K)
        k = self.k or int(np.sum(found > 0))
        vectors = vectors[:, :k] * unit[:, None]
        lengths = np.linalg.norm(vectors, axis=0)
        vectors = vectors / lengths
        signs = np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(k)])
        U = np.zeros((self.schema.d, k))
        U[columns] = vectors * signs
        scale = np.sqrt(found[:k]) * lengths
        scale = scale / scale.max() if k and scale.max() > 0 else np.zeros(k)
        return self.publish_model(
            replace(
                self.model,
                U=np.concatenate([self.model.U, U], axis=1),
                scale=np.concatenate([self.model.scale, scale]),
            )
        )

    def set_evidence(self, t: int, mean: Array) -> list[Array]:
        """Publish the evidence with less noise."""
        if not self.model.has_global:
            return self.model.arrays
        evidence = smooth_evidence(self.model, mean, self.noise_std("evidence"), self.federation.n)
        return self.publish_model(replace(self.model, evidence=evidence))

    def notes(self) -> list[str]:
        """Say how many directions stood out of the noise."""
        said = super().notes()
        if not self.started or not self.plan:
            return said
        k = int(np.sum(self.model.scale > 0))
        if self.shows_effects:
            said.append("Heads follow the covariance of users' own intercepts and slopes.")
        elif not k:
            why = "stood out" if self.shows_slopes or self.shows_factors else "could stand out"
            said.append(
                f"No shared direction {why} of the noise: personal models are the global one, "
                "a personal offset and the user's own slopes."
            )
        elif k == 1:
            said.append("1 shared direction stood out of the noise; heads live in it, too.")
        else:
            said.append(f"{k} shared directions stood out of the noise; heads live in them, too.")
        return said
