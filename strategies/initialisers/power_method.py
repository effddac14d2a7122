"""Private power method with cross-validation, server side (CENTAUR Algorithms 3-5).

    X_c  copy c = 1..T_0 of the iterate (d, k), from a public random start       M_i  user i's matrix, see clients/initialisers/power_method.py

    for l = 1..L, all copies at once:  X_c <- QR( (1/n) sum_i clip(M_i X_c) + noise )
    then pick a copy c that at least half of the copies c' agree with: all singular values of X_c'^T X_c >= 1 - 2 eps_i^2

One release an iteration holds all T_0 copies: stacked, they have norm at most `clip` a user, and the noise is that of T_0
separate releases of norm clip / sqrt(T_0) composed. So all T_0 L releases are charged. Picking is post-processing. Where no
copy finds half of the others in agreement, the one with the largest median agreement is taken, and the result says so.
"""

from __future__ import annotations

import numpy as np

from privfed.algorithm.initialiser import Initialiser
from privfed.federation.federation import Federation
from privfed.foundation.errors import check_number, check_whole
from privfed.foundation.linalg import Array, retraction
from privfed.foundation.seeding import generator


class PowerMethod(Initialiser):
    """L releases of d x T_0 k numbers."""

    task = "ppm"

    def __init__(self, copies: int, iterations: int, clip: float | str, agreement: float) -> None:
        check_number(
            "init.agreement", agreement, lambda x: 0 < x < 0.5**0.5, "must lie between 0 and 0.707"
        )
        self.copies, self.rounds = (
            check_whole("init.copies", copies),
            check_whole("init.iterations", iterations),
        )
        self.clip, self.agreement = clip, agreement

    def before(self, federation: Federation) -> list[Array]:
        """The copies' starts (T_0, d, k)."""
        shape = (federation.d, federation.k)
        starts = (
            generator(federation.seed, "power method", c).standard_normal(shape)
            for c in range(self.copies)
        )
        return [np.stack([retraction(start) for start in starts])]

    def shape(self, federation: Federation) -> tuple[int, ...]:
        """All copies' products, side by side."""
        return (federation.d, self.copies * federation.k)

    def step(self, federation: Federation, t: int, shared: list[Array], mean: Array) -> list[Array]:
        """X_c <- QR of the released mean; after the last iteration the copy that is picked."""
        columns = mean.reshape(federation.d, self.copies, federation.k).transpose(1, 0, 2)
        X = np.stack([retraction(copy) for copy in columns])
        return [X] if t < self.rounds else [self.pick(X)]

    def pick(self, X: Array) -> Array:
        """One of the copies X (T_0, d, k)."""
        overlap = np.matmul(X.transpose(0, 2, 1)[:, None], X[None])
        least = np.linalg.svd(overlap, compute_uv=False)[..., -1]
        agreeing = np.sum(least >= 1 - 2 * self.agreement**2, axis=1)
        if agreeing.max() * 2 >= self.copies and agreeing.max() > 1:
            others = f"{agreeing.max() - 1} of the {self.copies - 1} others"
            self.notes = (f"The power method's start was picked because {others} agree with it.",)
            return X[int(np.argmax(agreeing))]
        if self.copies > 1:
            self.notes = (
                "No half of the power method's copies agree; the one nearest to most of the others was taken.",
            )
        return X[int(np.argmax(np.median(least, axis=1)))]
