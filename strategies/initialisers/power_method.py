"""Private power method with cross-validation, server side (CENTAUR Algorithms 3 and 5).

    X_c   copy c = 1..T_0 of the iterate (d, k), from a public random start
    M_i   user i's matrix, see the client

    for l = 1..L, all copies at once:  X_c <- QR( (1/n) sum_i clip(M_i X_c) + noise )
    then pick a copy c with which at least half of the copies c' agree:
        all singular values of X_c'^T X_c >= 1 - 2 eps_i^2

One release per iteration holds all T_0 copies. Stacked, they have norm at most `clip` per user,
and the noise is that of T_0 separate releases of norm clip / sqrt(T_0), composed. So all T_0 L
releases are charged. Picking is post-processing. Where no copy finds half of the others in
agreement, the one with the largest median agreement is taken, and the result says so.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import numpy as np

from privfed.algorithm.initialiser import Initialiser
from privfed.algorithm.phases import LAST, Measurement, Phase, Sum
from privfed.federation.federation import Federation
from privfed.foundation.constraints import WHOLE, Number
from privfed.foundation.linalg import Array, retraction
from privfed.foundation.seeding import generator
from privfed.privacy.settings import Clip

AGREEMENT = Number(lambda x: 0 < x < 0.5**0.5, "must lie between 0 and 0.707")


class PowerMethodStart(Initialiser):
    """L releases of d x T_0 k numbers."""

    def __init__(
        self,
        copies: Annotated[int, WHOLE],
        iterations: Annotated[int, WHOLE],
        clip: Clip,
        agreement: Annotated[float, AGREEMENT],
    ) -> None:
        self.copies, self.iterations = copies, iterations
        self.clip, self.agreement = clip, agreement

    def start(self, federation: Federation) -> list[Array]:
        """Return the starts of the copies (T_0, d, k)."""
        shape, seed = (federation.d, federation.k), federation.seed
        streams = (generator(seed, "power method", c) for c in range(self.copies))
        return [np.stack([retraction(rng.standard_normal(shape)) for rng in streams])]

    def phases(self, federation: Federation) -> list[Phase]:
        """Return L iterations; users send the products of all copies, side by side."""
        d, k = federation.d, federation.k
        MX = Sum((d, self.copies * k), self.clip, "init.clip")
        update = partial(self.update, d=d, k=k)
        once = Measurement(again=False)
        return [Phase("ppm", MX, update, self.iterations, measurement=once, model=LAST)]

    def update(self, t: int, MX: Array, d: int, k: int) -> list[Array]:
        """Return X_c <- QR of the released mean; after the last iteration the picked copy."""
        columns = MX.reshape(d, self.copies, k).transpose(1, 0, 2)
        X = np.stack([retraction(copy) for copy in columns])
        return [X] if t < self.iterations else [self.pick(X)]

    def pick(self, X: Array) -> Array:
        """Return one of the copies X (T_0, d, k)."""
        overlap = np.matmul(X.transpose(0, 2, 1)[:, None], X[None])
        least = np.linalg.svd(overlap, compute_uv=False)[..., -1]
        agreeing = np.sum(least >= 1 - 2 * self.agreement**2, axis=1)
        if agreeing.max() * 2 >= self.copies and agreeing.max() > 1:
            others = f"{agreeing.max() - 1} of the {self.copies - 1} others"
            self.notes = (f"The power method's start was picked because {others} agree with it.",)
            return X[int(np.argmax(agreeing))]
        if self.copies > 1:
            self.notes = (
                "No half of the power method's copies agree; the one nearest to most of the "
                "others was taken.",
            )
        return X[int(np.argmax(np.median(least, axis=1)))]
