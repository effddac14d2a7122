"""Classification with a margin: labels +-1, features in the unit ball, a shared representation.

    x = s U* z + sqrt(1 - s^2) u     z = t v* + sqrt(1 - t^2) e
    y = sign(t), flipped with probability label_noise

    U*  shared representation (d, k)
    v*  head of a user, |v*| = 1; w* = U* v*, so that <x, w*> = s t
    s   strength of the part in the shared subspace
    t   uniform in [-1, 1] where |t| >= margin / s
    e   unit vector perpendicular to v* in R^k (0 for k = 1)
    u   uniform on the unit sphere perpendicular to U*

Hence |x| <= 1 and |<x, w*>| >= margin by construction for any d, and w* makes no error if
label_noise = 0.

Users are drawn in small public blocks from streams keyed by (seed, purpose, block), row by row.
User i therefore has the same data for any n and any distribution of users over nodes. Features are
stored in single precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from scipy.special import betainc

from privfed.data.cohort import Cohort, Ids
from privfed.data.evaluation_bins import UNIT, Scale
from privfed.data.source import DataSource
from privfed.foundation.constraints import WHOLE, Number
from privfed.foundation.errors import ConfigError, check_number
from privfed.foundation.linalg import Array, dist, retraction
from privfed.foundation.seeding import generator

BLOCK = 32
"""Users per public block."""
FRESH = 1024
"""Fresh examples by which risks are computed."""
INSIDE = 1.0 - 1e-6
"""Factor on all examples, so that rounding to single precision keeps them in the unit ball."""

STRENGTH = Number(lambda x: 0 < x <= 1, "must lie between 0 and 1, the radius of the unit ball")
FLIPS = Number(lambda x: 0 <= x < 0.5, "must lie between 0 and 1/2")


@dataclass(frozen=True)
class MarginTruth:
    """True heads V_star (B, k) of norm 1, and the distribution of a user's examples.

    A fresh example (x, y) satisfies

        y <x, w> = s (t a + sqrt(1 - t^2) e_1 b) + sqrt(1 - s^2) c |w_perp|     with t > 0,

    since (x, y) and (-x, -y) are equally likely. Here a = <v*, U*^T w>, b is the length of the part
    of U*^T w that is perpendicular to v*, and w_perp is the part of w that is perpendicular to U*.
    Both e and u are uniform on spheres, so that only their coordinates e_1 and c along one
    direction matter.

    The square of a coordinate of a uniform point on the sphere in D dimensions has the distribution
    Beta(1/2, (D - 1)/2). The probability over c that a prediction is wrong is therefore known
    exactly. The numbers t and e_1 are drawn once and are the same for all users: t from each of
    FRESH strata, e_1 with alternating signs. A prediction of 0 is wrong, as in the paper.
    """

    scale: ClassVar[Scale] = UNIT

    V_star: Array
    U_star: Array
    strength: float
    label_noise: float
    fresh: Array
    """The numbers t and e_1 (2, FRESH) of the fresh examples."""

    @property
    def W_star(self) -> Array:
        """True predictors (B, d)."""
        return self.V_star @ self.U_star.T

    def errors(self, W: Array) -> Array:
        """Return the 0-1 risk (B,) of the predictors W (B, d) on fresh examples."""
        d, k = self.U_star.shape
        inside = W @ self.U_star
        along = np.vecdot(inside, self.V_star)
        across = np.linalg.norm(inside - along[:, None] * self.V_star, axis=1)
        outside = np.sqrt(np.maximum(np.vecdot(W, W) - np.vecdot(inside, inside), 0.0)) * math.sqrt(
            1 - self.strength**2
        )
        t, e = self.fresh
        signal = self.strength * (along[:, None] * t + across[:, None] * (np.sqrt(1 - t * t) * e))
        with np.errstate(divide="ignore", invalid="ignore"):
            c = np.where(
                outside[:, None] > 0,
                -signal / outside[:, None],
                np.where(signal > 0, -np.inf, np.inf),
            )
        wrong = np.mean(sphere_cdf(c, d - k), axis=1)
        return np.where(
            np.any(W != 0, axis=1), self.label_noise + (1 - 2 * self.label_noise) * wrong, 1.0
        )

    def __getitem__(self, users: slice | Ids) -> MarginTruth:
        """Return the same for some of the users."""
        return MarginTruth(
            self.V_star[users], self.U_star, self.strength, self.label_noise, self.fresh
        )


def sphere_cdf(c: Array, D: int) -> Array:
    """Return P(coordinate <= c) for a uniform point on the unit sphere in D dimensions.

    Args:
        c: any array of numbers.
        D: dimension; for D = 0 the coordinate is 0.

    Returns:
        Probabilities in the shape of c.
    """
    if D <= 1:
        return np.where(c >= D, 1.0, np.where(c >= -D, 0.5, 0.0))
    square = np.minimum(c * c, 1.0)
    return 0.5 + 0.5 * np.sign(c) * betainc(0.5, 0.5 * (D - 1), square)


class Margin(DataSource):
    """Users whose examples are separable with a margin before labels are flipped.

    Args:
        n: number of users.
        m: examples per user.
        d: features per example.
        k: dimension of the shared representation.
        margin: least |<x, w*>| of an example.
        strength: length s of an example's part in the shared subspace. The rest of its unit length
            is perpendicular to the subspace.
        label_noise: probability that a label is flipped.
        seed: seed of everything.

    Raises:
        ConfigError: if k > d, or the margin is not below the strength.
    """

    simulated = True
    personal = True
    error, scale = "risk", MarginTruth.scale
    U_star: Array

    def __init__(
        self,
        n: Annotated[int, WHOLE],
        m: Annotated[int, WHOLE],
        d: Annotated[int, WHOLE],
        k: Annotated[int, WHOLE],
        margin: float,
        strength: Annotated[float, STRENGTH],
        label_noise: Annotated[float, FLIPS],
        seed: int,
    ) -> None:
        if k > d:
            raise ConfigError.of(
                "data.k", k, f"the representation cannot have more dimensions than data.d={d}"
            )
        check_number(
            "data.margin",
            margin,
            lambda x: 0 <= x < strength,
            f"must lie between 0 and data.strength={strength}",
        )
        self.n, self.m, self.d, self.k, self.seed = n, m, d, k, seed
        self.margin, self.strength = float(margin), float(strength)
        self.label_noise = float(label_noise)
        self.U_star = retraction(generator(seed, "representation").standard_normal((d, k)))
        rng = generator(seed, "fresh")
        t = self._margins((np.arange(FRESH) + rng.random(FRESH)) / FRESH)
        e = np.abs(random_directions(rng, (FRESH, max(1, k - 1)))[:, 0]) * (k > 1)
        self.fresh = np.stack([t, e * (-1.0) ** np.arange(FRESH)])

    def constants(self) -> dict[str, float]:
        """Return the margin rho, the norm Gamma of true heads, and the radius of the features."""
        return {"rho": self.margin, "Gamma": 1.0, "radius": 1.0}

    def cohort(self, first: int, last: int) -> Cohort:
        """Return the users first..last-1."""
        return self._users("user", first, last)

    def validation(self, users: int | None = None) -> Cohort:
        """Return fresh users who never take part in training.

        Args:
            users: their number; None: between 32 and 512, fewer where examples are larger.
        """
        return self._users(
            "validation", 0, users or int(np.clip((1 << 23) // (self.m * self.d), 32, 512))
        )

    def compare(self, model: dict[str, Array]) -> dict[str, float]:
        """Return the principal-angle distance `dist` of an orthonormal U (d, k) to the true one.

        A sketched representation spans another space, so that a distance would say nothing about
        how well it classifies.
        """
        U = model.get("U")
        orthonormal = U is not None and np.allclose(U.T @ U, np.eye(U.shape[1]), atol=1e-6)
        return {"dist": dist(U, self.U_star)} if U is not None and orthonormal else {}

    def _margins(self, uniform: Array) -> Array:
        """Turn uniform numbers into t > 0.

        The bound margin / s is scaled by 1 + 1e-5 so that rounding cannot fall below the margin.
        """
        least = min(1.0, self.margin / self.strength * (1 + 1e-5))
        return least + (1 - least) * uniform

    def _users(self, purpose: str, first: int, last: int) -> Cohort:
        X = np.empty((last - first, self.m, self.d), dtype=np.float32)
        y, V = np.empty((last - first, self.m)), np.empty((last - first, self.k))
        for block in range(first // BLOCK, -(-last // BLOCK)):
            start = block * BLOCK
            a, b = max(first, start), min(last, start + BLOCK)
            made = self._block(purpose, block, b - start)
            mine = slice(a - first, b - first)
            X[mine], y[mine], V[mine] = (whole[a - start :] for whole in made)
        truth = MarginTruth(V, self.U_star, self.strength, self.label_noise, self.fresh)
        return Cohort(np.arange(first, last), X, y, truth)  # type: ignore[arg-type]

    def _block(self, purpose: str, block: int, rows: int) -> tuple[Any, Array, Array]:
        """Return X (rows, m, d), y (rows, m) and V* (rows, k) of a block's first users."""

        def stream(name: str) -> np.random.Generator:
            return generator(self.seed, purpose, name, block)

        shape, s = (rows, self.m), self.strength
        V = random_directions(stream("heads"), (rows, self.k))
        signs = np.where(stream("signs").random(shape) < 0.5, -1.0, 1.0)
        t = signs * self._margins(stream("margins").random(shape))
        e = stream("across").standard_normal((*shape, self.k))
        e -= np.vecdot(e, V[:, None])[..., None] * V[:, None]
        e *= (
            np.sqrt(1 - t * t)[..., None] / np.linalg.norm(e, axis=-1, keepdims=True)
            if self.k > 1
            else 0.0
        )
        z = t[..., None] * V[:, None] + e
        U = self.U_star.astype(np.float32)
        X = stream("features").standard_normal((*shape, self.d), dtype=np.float32)
        X -= (X @ U) @ U.T
        if self.d > self.k:
            X *= np.float32(math.sqrt(1 - s * s)) / np.sqrt(np.vecdot(X, X))[..., None]
            # By rounding, a vector that was mostly in the subspace still has a part in it.
            X -= (X @ U) @ U.T
        else:
            X[:] = 0.0
        X += (s * z).astype(np.float32) @ U.T
        X *= np.float32(INSIDE)
        flips = np.where(stream("flips").random(shape) < self.label_noise, -1.0, 1.0)
        return X, signs * flips, V


def random_directions(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draw uniform points on the unit sphere along the last axis of `shape`."""
    g = rng.standard_normal(shape)
    return g / np.linalg.norm(g, axis=-1, keepdims=True)
