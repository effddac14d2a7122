"""A cascade of spectral releases, server side: each stage looks closer at what the last one left.

    V_j   columns (d, q_j) that stage j starts from: q_1 = d > q_2 > ... > k
    u_i   unit vector (q_j,): user i's predictor in these columns, see the client
    M_j   (1/n) sum_i u_i u_i^T + symmetric Gaussian noise
    g_j   gap of M_j between true and other directions, and
    c_j   fraction of users' energy in V_j: both from a rehearsal without data

    for each stage j:  A <- V^T A V + (g_j / std_j^2) M_j     the matrices so far, in V's columns
                       V <- V (top q_{j+1} eigenvectors of A)

Privacy: |u u^T - u' u'^T|_F^2 = 2 - 2 <u, u'>^2 <= 2. Replacing a user therefore moves the sum by
at most sqrt(2), not 2: the diameter of these matrices is smaller than twice their norm. A stage has
a share of the cascade's mu^2 in proportion to q_j. Fewer columns later let users spend their unit
of length on fewer directions, so that each stage sees the truth more clearly than the one before.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

import numpy as np

from privfed.algorithm.initialiser import Initialiser
from privfed.algorithm.phases import LAST, NEVER, Phase, Sum
from privfed.federation.federation import Federation
from privfed.foundation.constraints import AT_LEAST_ZERO, WHOLE
from privfed.foundation.linalg import Array, unsvec
from privfed.privacy.accounting import GaussianRelease
from privfed.privacy.bounds import OuterProductBound
from strategies.rehearsal import Cascade, columns, rehearsal_of, stage_stds, weight

SMALLEST_HEAD = 0.05
"""Least deviation of heads in any direction, in units of the largest."""
TIMES = 4
"""Rehearsals of a cascade."""
GOOD_ENOUGH = 0.01
"""Mean of sin^2 of the largest angle, up to which a single stage is taken."""
DEFAULT_SHARE = 0.55
"""Share of the budget that is assumed if an algorithm does not say what it gives."""


class CascadeStart(Initialiser):
    """Releases of q (q + 1) / 2 numbers, with q from d down to k."""

    def __init__(self, m: Annotated[int, WHOLE], noise: Annotated[float, AT_LEAST_ZERO]) -> None:
        self.m, self.noise = m, noise
        self.expected: Cascade | None = None
        """What an algorithm that rehearses the whole run expects; None rehearses the cascade."""
        self.V, self.A = np.empty((0, 0)), np.empty((0, 0))
        self.information = 0.0
        """Sum of g_j^2 / std_j^2: A divided by it estimates the second moment of heads."""

    def expect(self, federation: Federation) -> Cascade:
        """Return what this cascade is expected to do."""
        if self.expected is None:
            d, k, budget = federation.d, federation.k, federation.gate.ledger.budget
            share = federation.privacy.init_share or DEFAULT_SHARE
            mu = min(budget.mu, 1e6) * math.sqrt(share)
            kept = columns(d, k)
            stds = stage_stds(kept, mu, budget.neighbouring)
            scene = rehearsal_of(d, k, self.m, self.noise)
            self.expected = scene.cascade(federation.n, kept, stds, TIMES)
            one = columns(d, k, 0.0)
            stds = stage_stds(one, mu, budget.neighbouring)
            single = scene.cascade(federation.n, one, stds, TIMES)
            if single.sines[-1] <= max(1.1 * self.expected.sines[-1], GOOD_ENOUGH):
                self.expected = single
        return self.expected

    def phases(self, federation: Federation) -> list[Phase]:
        """Return one phase per stage."""
        d, k = federation.d, federation.k
        expected = self.expect(federation)
        kept = expected.columns
        self.begin(d)
        phases = []
        for j, q in enumerate(kept[:-1]):
            last = kept[j + 1] == k
            phases.append(
                Phase(
                    "cascade",
                    {f"cascade {j + 1}": Sum((q * (q + 1) // 2,), OuterProductBound())},
                    partial(self.update, stage=j, federation=federation),
                    share=q / sum(kept[:-1]),
                    announce=partial(self.announce, float(expected.captured[j]), k),
                    model=LAST if last else NEVER,
                )
            )
        return phases

    def announce(self, captured: float, k: int) -> list[Array]:
        """Return the columns V, the fraction of users' energy that is expected in them, and k."""
        return [self.V, np.array([captured, k])]

    def update(self, t: int, M: Array, stage: int, federation: Federation) -> list[Array]:
        """Return V <- V (top eigenvectors of the matrices so far)."""
        expected = self.expect(federation)
        last = federation.gate.ledger.releases[-1]
        std = last.std if isinstance(last, GaussianRelease) else 0.0
        released = unsvec(M, self.V.shape[1])
        gap, kept = float(expected.gaps[stage]), expected.columns[stage + 1]
        return [self.absorb(released, gap, std, federation.k, kept)]

    def begin(self, d: int) -> None:
        """Start from all d columns."""
        self.V, self.A, self.information = np.eye(d), np.zeros((d, d)), 0.0

    def absorb(self, M: Array, gap: float, std: float, k: int, kept: int) -> Array:
        """Return the columns that a stage leaves.

        Args:
            M: released mean of u u^T, (q, q).
            gap: its expected gap.
            std: noise of its sum, per entry of its svec.
            k: dimension of the representation.
            kept: number of columns that are left.
        """
        q = self.V.shape[1]
        # u u^T has trace 1. What all directions have in common says nothing about them.
        common = (1.0 - k * gap) / q * np.eye(q)
        A = self.A + weight(gap, std) * (M - common)
        top = np.linalg.eigh(A)[1][:, ::-1][:, :kept]
        self.V, self.A = np.ascontiguousarray(self.V @ top), top.T @ A @ top
        self.information += gap * weight(gap, std)
        return self.V

    def heads(self, n: int) -> Array:
        """Return the square root of the covariance of heads (k, k), as far as A shows it.

        A / information estimates the mean of v v^T / |v|^2, up to a factor. For k = 2 its
        eigenvalues are in the ratio of the *standard deviations* of heads: of w_1^2 / (w_1^2 +
        w_2^2) with deviations r_1, r_2 the mean is r_1 / (r_1 + r_2). For larger k this is an
        approximation. Differences between eigenvalues that noise explains are shrunk away.
        """
        k = len(self.A)
        H = self.A / max(self.information, 1e-300)
        mean = float(np.trace(H)) / k
        if mean <= 0:
            return np.eye(k)
        apart = H / mean - np.eye(k)
        noise = (k * (k + 1) / 2 - 1) / (self.information * (n * mean) ** 2)
        seen = float(np.sum(apart**2))
        root = np.eye(k) + (max(0.0, 1.0 - noise / seen) if seen > 0 else 0.0) * apart
        values, vectors = np.linalg.eigh(root)
        values = np.maximum(values, SMALLEST_HEAD * values[-1])
        values *= math.sqrt(k / np.sum(values**2))
        return np.asarray((vectors * values) @ vectors.T)

    def memory(self) -> dict[str, Array]:
        """Return the columns and the matrices so far."""
        return {"V": self.V, "A": self.A, "information": np.array(self.information)}

    def recall(self, memory: dict[str, Array]) -> None:
        """See :meth:`memory`."""
        self.V, self.A = memory["V"], memory["A"]
        self.information = float(memory["information"])
