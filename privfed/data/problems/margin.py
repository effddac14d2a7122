"""Classification with a margin: labels +-1, features in the unit ball, users who share a k-dimensional representation.

    x = s U* z + sqrt(1 - s^2) u        z = t v* + sqrt(1 - t^2) e        y = sign(t), flipped with probability label_noise

    U*  shared representation (d, k)    v*  a user's head, |v*| = 1       w* = U* v*, so <x, w*> = s t
    s   strength of the subspace part   t   in [-1, 1], |t| >= margin / s, uniform there
    e   a unit vector perpendicular to v* in R^k (none for k = 1)         u   uniform on the unit sphere perpendicular to U*

Hence |x| <= 1 and |<x, w*>| >= margin by construction, whatever d is, and w* makes no error when label_noise = 0.

Users are drawn by small public blocks, each from streams keyed by (seed, purpose, block), row by row: user i has the same
data whatever n is and however users are spread over nodes. Features are kept in single precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import betainc

from privfed.data.cohort import Cohort, Ids
from privfed.data.error_bins import UNIT, Scale
from privfed.foundation.errors import ConfigError, check_number, check_whole
from privfed.foundation.linalg import Array, dist, retraction
from privfed.foundation.seeding import generator

BLOCK = 32
FRESH = 1024
INSIDE = 1.0 - 1e-6
"""Rounding to single precision must not carry an example out of the unit ball."""


@dataclass(frozen=True)
class MarginTruth:
    """True heads V_star (B, k) of norm 1 and the law of a user's examples.

    A fresh example (x, y) has y <x, w> = s (t a + sqrt(1 - t^2) e_1 b) + sqrt(1 - s^2) c |w_perp| with t > 0, since (x, y) and
    (-x, -y) are equally likely. Here a = <v*, U*^T w>, b is the length of U*^T w perpendicular to v*, and w_perp the part
    of w perpendicular to U*. Both e and u are uniform on spheres, so only their coordinates e_1 and c along one
    direction matter: of the d dimensions k + 1 matter at most. The square of a coordinate of a uniform point on the sphere in
    D dimensions is Beta(1/2, (D - 1)/2), so the probability over c that the prediction is wrong is known exactly; t and e_1
    are drawn once, t from each of FRESH strata and e_1 with either sign in turn, the same for all users. A prediction of 0 is
    wrong, as in the paper.
    """

    scale: ClassVar[Scale] = UNIT

    V_star: Array
    U_star: Array
    strength: float
    label_noise: float
    fresh: Array
    """t and e_1 (2, FRESH) of the fresh examples."""

    @property
    def W_star(self) -> Array:
        """The true predictors (B, d)."""
        return self.V_star @ self.U_star.T

    def errors(self, W: Array) -> Array:
        """0-1 risk on fresh examples: W (B, d) -> (B,)."""
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
        """Some of the users."""
        return MarginTruth(
            self.V_star[users], self.U_star, self.strength, self.label_noise, self.fresh
        )


def sphere_cdf(c: Array, D: int) -> Array:
    """P(coordinate <= c) for a uniform point on the unit sphere in D dimensions (D = 0: the coordinate is 0)."""
    if D <= 1:
        return np.where(c >= D, 1.0, np.where(c >= -D, 0.5, 0.0))
    square = np.minimum(c * c, 1.0)
    return 0.5 + 0.5 * np.sign(c) * betainc(0.5, 0.5 * (D - 1), square)


class Margin:
    """n users with m labelled examples of d features each, separable with the given margin before labels are flipped.

    strength: length s of the part of an example in the shared subspace; the rest of its unit length is perpendicular to it.
    """

    simulated = True
    personal = True
    error, scale, floor = "risk", MarginTruth.scale, 0.0

    def __init__(
        self,
        n: int,
        m: int,
        d: int,
        k: int,
        margin: float,
        strength: float,
        label_noise: float,
        seed: int,
    ) -> None:
        for key, value in (("data.n", n), ("data.m", m), ("data.d", d), ("data.k", k)):
            check_whole(key, value)
        if k > d:
            raise ConfigError.of(
                "data.k", k, f"the representation cannot have more dimensions than data.d={d}"
            )
        check_number(
            "data.strength",
            strength,
            lambda x: 0 < x <= 1,
            "must lie between 0 and 1, the radius of the unit ball",
        )
        check_number(
            "data.margin",
            margin,
            lambda x: 0 <= x < strength,
            f"must lie between 0 and data.strength={strength}",
        )
        check_number(
            "data.label_noise", label_noise, lambda x: 0 <= x < 0.5, "must lie between 0 and 1/2"
        )
        self.n, self.m, self.d, self.k, self.seed = n, m, d, k, seed
        self.margin, self.strength, self.label_noise = (
            float(margin),
            float(strength),
            float(label_noise),
        )
        self.U_star = retraction(generator(seed, "representation").standard_normal((d, k)))
        rng = generator(seed, "fresh")
        t = self._margins((np.arange(FRESH) + rng.random(FRESH)) / FRESH)
        e = np.abs(random_directions(rng, (FRESH, max(1, k - 1)))[:, 0]) * (k > 1)
        self.fresh = np.stack([t, e * (-1.0) ** np.arange(FRESH)])

    def cohort(self, first: int, last: int) -> Cohort:
        """Users first..last-1."""
        return self._users("user", first, last)

    def validation(self, users: int | None = None) -> Cohort:
        """Fresh users who never take part; few of them where features are many."""
        return self._users(
            "validation", 0, users or int(np.clip((1 << 23) // (self.m * self.d), 32, 512))
        )

    def compare(self, model: dict[str, Array]) -> dict[str, float]:
        """Principal-angle distance of an orthonormal representation to the true one.

        A sketched one spans another space altogether, far from the true one however well it classifies.
        """
        U = model.get("U")
        orthonormal = U is not None and np.allclose(U.T @ U, np.eye(U.shape[1]), atol=1e-6)
        return {"dist": dist(U, self.U_star)} if U is not None and orthonormal else {}

    def _margins(self, uniform: Array) -> Array:
        """t > 0 from uniform numbers; a hair above margin / s, so that rounding keeps the margin."""
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
        """X (rows, m, d), y (rows, m) and V* (rows, k): the first users of one public block."""

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
            X -= (
                X @ U
            ) @ U.T  # a vector that was mostly in the subspace still had some of it, by rounding
        else:
            X[:] = 0.0
        X += (s * z).astype(np.float32) @ U.T
        X *= np.float32(INSIDE)
        flips = np.where(stream("flips").random(shape) < self.label_noise, -1.0, 1.0)
        return X, signs * flips, V


def random_directions(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Uniform points on the unit sphere, along the last axis."""
    g = rng.standard_normal(shape)
    return g / np.linalg.norm(g, axis=-1, keepdims=True)
