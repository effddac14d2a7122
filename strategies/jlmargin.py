"""Margin classification in a sketch, server side (PMPR Algorithm 3).

    M     public sketch (k', d), entries +-1/sqrt(k'); after it d does not matter
    U~    candidate (k', k)
    U     = M^T U~, the published embedding (d, k)
    B_F   ball of radius sqrt(2k) that holds the candidates
    s_i   user i's score, see the client

    U~ <- one of a gamma-cover of B_F by the exponential mechanism,
          with score (1/n) sum_i s_i(U~) of sensitivity 1/n
    U  <- M^T U~

A longer U~ has larger margins with the same heads. So random candidates lie on the boundary of the
ball: sqrt(2) times an orthonormal matrix. The margin loss then is that of an orthonormal embedding
at margin rho / sqrt(2).

The defaults were chosen by measurement: mean risk of seeds 0-4 on the standard problem (n=2000,
m=40, k=2, eps=2). It is .018 at d=50 and .037 at d=5000, against .31 and .32 with an uninformed U~,
and .17 and .18 by one selection. Users alone (ridge) make almost no error: the theorem's bound has
a term sqrt(r^2 Gamma^2 / (m rho^2)) that a user's own large-margin classifier has too.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from privfed.algorithm import candidate_covers
from privfed.algorithm.exponential_mechanism import SelectionStrategy
from privfed.federation.federation import Federation
from privfed.foundation.constraints import WHOLE
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array

LENGTH = math.sqrt(2.0)


class JLMargin(SelectionStrategy):
    """Candidates are embeddings of the sketch."""

    def __init__(
        self, federation: Federation, sketch: Annotated[int, WHOLE], **settings: Any
    ) -> None:
        if federation.error != "risk":
            raise ConfigError(
                "data: algo=jlmargin classifies, so its data need labels -1 and 1, as data=margin "
                "has them"
            )
        if sketch < federation.k:
            allowed = f"cannot be smaller than model.k={federation.k}"
            raise ConfigError.of("algo.sketch", sketch, allowed)
        super().__init__(federation, **settings)
        self.sketch = sketch

    @property
    def M(self) -> Array:
        """Public sketch (k', d)."""
        return candidate_covers.sketch_matrix(self.federation.seed, self.sketch, self.federation.d)

    def entries(self) -> tuple[int, int]:
        """Return the shape (k', k)."""
        return self.sketch, self.federation.k

    def cover_points(self) -> float:
        """Return the number of points of the grid behind the cover."""
        rows, k = self.entries()
        return candidate_covers.grid_size(
            rows * k, math.sqrt(2 * k), candidate_covers.ball_spacing(rows, k, self.gamma)
        )[1]

    def cover(self) -> Array:
        """Return a gamma-cover of the ball of radius sqrt(2k): (C, k', k)."""
        rows, k = self.entries()
        return candidate_covers.ball_net(rows, k, math.sqrt(2 * k), self.gamma)

    def drawn(self, rng: np.random.Generator) -> Array:
        """Return random candidates on the boundary of the ball (count, k', k)."""
        return LENGTH * candidate_covers.random_orthonormal(rng, self.count, *self.entries())

    def nearby(self, rng: np.random.Generator, choice: Array, radius: float) -> Array:
        """Return the last choice, and random candidates on the boundary around it."""
        moved = LENGTH * candidate_covers.around(
            rng, candidate_covers.polar(choice), self.count, radius
        )
        moved[0] = choice
        return moved

    def published(self, choice: Array) -> list[Array]:
        """Return U = M^T U~."""
        return [self.M.T @ choice]

    def diagnostics(self, data: Any) -> dict[str, float]:
        """Return the distortion of the sketch on fresh public users.

        It is the root mean square of <Mx, Mw*> - <x, w*> for unit vectors x and w*.
        """
        fresh, M = data.validation(), self.M
        X = fresh.X / np.linalg.norm(fresh.X, axis=2, keepdims=True)
        W = fresh.truth.W_star
        error = np.matmul(X @ M.T, (W @ M.T)[..., None]) - np.matmul(X, W[..., None])
        return {"distortion": float(np.sqrt(np.mean(error**2)))}
