"""What a run can be expected to learn, from public numbers alone: a rehearsal with simulated users.

    n users, m examples each    d, k   sizes of the embedding      mu   privacy budget
    y   sum of sin^2 of the principal angles between U and the true embedding
    x   spread y / (1 - y/k): for equal angles the sum of tan^2
    s   signal: mean inner product of what users send with the unit tangent vector to the truth
    g   gap: eigenvalue of the mean of u u^T in the true directions, less that in the others

Rehearsed users have standard normal features, heads and label noise, drawn from a fixed seed. They
give s(x), the gaps and the error of final predictors by the very code that real users run, so that
no constant is fitted. The rest is arithmetic: noise of known size is added, and the embedding that
results is compared with the true one. No user's data are touched, and nothing is spent.

    rounds:  rho^2 = s(x)^2 / (variance of the released mean),  gain g_t = rho^2 / (1 + rho^2)
             y <- y ((1 - g_t)^2 + g_t^2 / rho^2)                     the scalar Kalman filter
             (a step by phi, along a great circle or across it, changes tan^2 theta by a factor
             1 + tan^2 theta more than in flat space, so that sin^2 theta is what shrinks by rho^2)
    cascade: noise is added to g P, P the projector on the true directions, and eigenvectors are
             taken, stage by stage

The budget's split and the number of rounds minimise the predicted error. Where theory ends: heads
are taken as isotropic, and features as Gaussian of identity covariance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from privfed.foundation.linalg import Array, retraction, unsvec
from privfed.foundation.seeding import generator
from privfed.models.personal_predictors import personal_predictors
from privfed.models.posterior import Prior, unit
from privfed.privacy.bounds import NormBound, OuterProductBound

SEED = 2025
"""Seed of the rehearsal. It is public and fixed, so that equal settings have equal predictions."""
SHRINK = 2 / 3
"""Each stage of a cascade keeps this fraction of its columns. Predicted errors are flat from .6 to
.75, and 10 to 30% larger for .4."""
LARGEST_GAIN = 0.5
"""Longest step of a round, as a fraction of the predicted way to the truth. Far from the truth the
tangent space is only an approximation."""
SHARES = (0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.65)
"""Shares of mu^2 that are tried for the cascade."""
ROUNDS = (10, 15, 20, 30, 50, 100, 200)
"""Numbers of rounds that are tried."""
ENOUGH = 1.002
"""The fewest rounds are taken whose predicted error is within this factor of the least."""
TRUSTED = 0.6
"""Largest mean of sin^2 of the largest angle from which rounds are trusted to find the truth: about
50 degrees, and single runs scatter by 10. A direction that the start has lost altogether may stay
lost, which the rounds' arithmetic does not see: theory ends there."""
SEMICIRCLE = np.array([-0.752, -0.466, -0.226, 0.0, 0.226, 0.466, 0.752])
"""Quantiles of the semicircle law on [-1, 1], whose variance is 1/4."""
REPETITIONS, AT_LAST = 8, 16
"""Rehearsals of a cascade per share that is tried, and of the one that is taken."""


def information(n: int, d: int, k: int, m: int, mu: float, sensitivity: float = 2.0) -> float:
    """Return S^2 = (n mu)^2 (m - k) / (sensitivity k (d - k))^2.

    All rounds together shrink the squared distance to the truth by about exp(-S^2). It is 0 if
    users have no more examples than heads have numbers, or if there is nothing to learn.
    """
    if m <= k or d <= k:
        return 0.0
    return (n * mu / (sensitivity * k * (d - k))) ** 2 * (m - k)


def columns(d: int, k: int, shrink: float = SHRINK) -> tuple[int, ...]:
    """Return the columns that the stages of a cascade start from, and at last k.

    Args:
        d: features.
        k: dimension of the embedding.
        shrink: fraction of its columns that each stage keeps; 0 makes a single stage.
    """
    kept = [d]
    while kept[-1] > k:
        kept.append(max(k, math.floor(shrink * kept[-1])))
    return tuple(kept)


def sines(U: Array, truth: Array) -> Array:
    """Return sin^2 of the principal angles between two embeddings (d, k), increasing: (k,)."""
    cosines = np.clip(np.linalg.svd(U.T @ truth, compute_uv=False), 0.0, 1.0)
    return np.asarray(np.clip(1.0 - cosines**2, 1e-12, 1.0))


def spread_of(y: float, k: int) -> float:
    """Return the spread x = y / (1 - y/k) of k angles whose sin^2 add up to y < k."""
    return y / max(1.0 - y / k, 1e-9)


def symmetric_noise(q: int, std: float, rng: np.random.Generator) -> Array:
    """Return the noise of a released symmetric matrix (q, q), `std` per entry of its svec."""
    return unsvec(std * rng.standard_normal(q * (q + 1) // 2), q)


class Rehearsal:
    """Simulated users with m examples of d features, whose predictors share k dimensions.

    Args:
        d: features.
        k: dimension of the embedding.
        m: examples per user.
        noise: standard deviation of the label noise, in units of heads.
    """

    def __init__(self, d: int, k: int, m: int, noise: float) -> None:
        self.d, self.k, self.m, self.noise = d, k, m, noise
        # The signal's relative variance is about 1 / (m users); memory limits large problems.
        users = int(min(max(100, 4000 // m), max(20, 2_000_000 // (m * d))))
        rng = generator(SEED, "rehearsal", d, k, m)
        self.X = rng.standard_normal((users, m, d))
        self.V = rng.standard_normal((users, k))
        self.label_noise = noise * rng.standard_normal((users, m))

    def targets(self, truth: Array) -> Array:
        """Return targets (users, m) if users' predictors lie in `truth` (d, k)."""
        W = self.V @ truth.T
        return np.matmul(self.X, W[..., None])[..., 0] + self.label_noise

    def _apart(self, squares: Array) -> tuple[Array, Array, Array]:
        """Return U, orthonormal tangent directions D, and the truth: all (d, k).

        Angle j between U and the truth lies between their columns j and has tan^2 = squares[j].
        """
        d, k = self.d, self.k
        angles = min(k, d - k)
        U, D = np.eye(d, k), np.zeros((d, k))
        D[k : k + angles, k - angles :] = np.eye(angles)
        return U, D, retraction(U + np.sqrt(squares) * D)

    @cached_property
    def shape(self) -> Array:
        """Parts of x that the angles have, increasing, (k,): those of a tangent vector of noise."""
        rng = generator(SEED, "shape", self.d, self.k)
        drawn = rng.standard_normal((20, max(self.d - self.k, 1), self.k))
        squares = np.mean(np.linalg.svd(drawn, compute_uv=False) ** 2, axis=0)[::-1]
        parts = np.zeros(self.k)
        parts[self.k - len(squares) :] = squares / np.sum(squares)
        return parts

    def _usual(self, x: float) -> Array:
        """Return tan^2 that add up to x, (k,)."""
        return x * self.shape

    def signals(self, squares: Array) -> Array:
        """Return the mean of M in the directions toward the truth, (k,), as users show it.

        Args:
            squares: tan^2 of the principal angles, (k,).
        """
        U, D, truth = self._apart(squares)
        prior = Prior.of_spread(U, np.eye(self.k), float(np.sum(squares)), self.noise)
        v, outer = prior.parts(prior.fit(self.X, self.targets(truth)))
        return np.mean((unit(outer) @ D) * unit(v), axis=0)

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        x = np.geomspace(1e-8, 2.0 * self.d, 16)
        toward = np.sqrt(self.shape)
        s = [float(toward @ self.signals(self._usual(each))) for each in x]
        return np.log(x), np.log(np.maximum(s, 1e-6))

    def signal(self, x: float) -> float:
        """Return s(x) for angles of the usual shape, interpolated between measured values."""
        return float(np.exp(np.interp(math.log(max(x, 1e-8)), *self._table)))

    def error(self, x: float) -> float:
        """Return the population MSE of users' final predictors, given an embedding of spread x."""
        U, _, truth = self._apart(self._usual(x))
        shared = [U, np.eye(self.k), np.array([x])]
        W = personal_predictors(shared, self.X, self.targets(truth), safety=True)
        return float(np.mean(np.sum((W - self.V @ truth.T) ** 2, axis=1))) + self.noise**2

    @cached_property
    def alone(self) -> float:
        """Population MSE of users who have no embedding."""
        return self.error(1e9)

    def cascade(self, n: int, kept: tuple[int, ...], stds: Array, times: int = 1) -> Cascade:
        """Rehearse a cascade.

        Args:
            n: number of users.
            kept: columns that its stages start from, and at last k.
            stds: noise of each stage's sum, per entry of its svec.
            times: how often; numbers are averaged.
        """
        d, k = self.d, self.k
        rng = generator(SEED, "cascade", d, k, self.m)
        truths = [retraction(rng.standard_normal((d, k))) for _ in range(times)]
        bases, sums = [np.eye(d)] * times, [np.zeros((d, d))] * times
        captured, gaps = np.empty(len(stds)), np.empty(len(stds))
        for j, (q, std) in enumerate(zip(kept, stds, strict=False)):
            inside = [V.T @ truth for V, truth in zip(bases, truths, strict=True)]
            captured[j] = np.mean([np.sum(C**2) for C in inside]) / k
            prior = Prior.of_fraction(bases[0], k, float(captured[j]), self.noise)
            u = unit(prior.fit(self.X, self.targets(truths[0])) @ bases[0])
            energy = float(np.mean(np.sum((u @ retraction(inside[0])) ** 2, axis=1)))
            gaps[j] = max(energy / k - (1.0 - energy) / max(q - k, 1), 1e-3 / q)
            sampling = 1.0 / (q * math.sqrt(n))  # of u u^T, were its directions all alike
            noise = math.hypot(std / n, sampling)
            for r in range(times):
                Q = retraction(inside[r])
                M = gaps[j] * Q @ Q.T + symmetric_noise(q, noise, rng)
                sums[r] = sums[r] + weight(gaps[j], std) * M
                top = np.linalg.eigh(sums[r])[1][:, ::-1][:, : kept[j + 1]]
                bases[r], sums[r] = bases[r] @ top, top.T @ sums[r] @ top
        ends = np.array([sines(V, truth) for V, truth in zip(bases, truths, strict=True)])
        logs = np.log([spread_of(float(np.sum(each)), k) for each in ends])
        usual, variance = math.exp(np.mean(logs)), float(np.var(logs))
        return Cascade(kept, captured, gaps, usual, variance, np.mean(ends, axis=0))

    def rounds(self, x: float, n: int, T: int, std: float) -> float:
        """Return the spread after T rounds from spread x; `std` is the noise of each sum."""
        size = self.k * (self.d - self.k)
        for _ in range(T):
            x = Filter.of(self.signal(x), size * (std / n) ** 2 + 1.0 / n).after(x, self.k)
        return x

    def rounds_in_detail(self, sines: Array, n: int, T: int, std: float) -> float:
        """Return the same in detail: for angles of another shape, and for few users.

        Users' unit vectors make larger angles shrink more slowly. What they show is measured again
        whenever x has fallen by a fifth.

        The same users answer in every round. User i shows Delta in m - k of its D = k (d - k)
        dimensions only, so that n of them together show some directions better than others: the
        mean over users multiplies tangent vectors by eigenvalues lambda of mean 1 and variance
        c = (D / (m - k) - 1) / n. They are taken from the semicircle law. Directions that users
        show worst are what is left at last.

        Args:
            sines: sin^2 of the principal angles at first, (k,).
            n: number of users.
            T: number of rounds.
            std: noise of each round's sum.
        """
        k, size = self.k, self.k * (self.d - self.k)
        variance, limit = size * (std / n) ** 2 + 1.0 / n, 1.0 - 1.0 / self.d
        c = max(size / max(self.m - k, 1) - 1.0, 0.0) / n
        eigenvalues = np.maximum(1.0 + 2.0 * math.sqrt(c) * SEMICIRCLE, 0.05)
        parts = np.minimum(sines, limit)[:, None] * np.full(len(SEMICIRCLE), 1 / len(SEMICIRCLE))
        measured, signals = math.inf, np.zeros(k)
        for _ in range(T):
            y = np.minimum(np.sum(parts, axis=1), limit)
            x, left, tangents = spread_of(float(np.sum(y)), k), 1.0 - y, y / (1.0 - y)
            if x < 0.8 * measured:
                measured, signals = x, self.signals(tangents)
            step = Filter.of(self.signal(x), variance)
            length = math.sqrt(x) * step.gain / step.signal
            removed = (length * signals / np.sqrt(tangents))[:, None] * eigenvalues
            noise = length**2 * variance * self.shape[:, None] / len(SEMICIRCLE)
            parts = parts * (1.0 - removed) ** 2 + left[:, None] * noise
            parts = np.maximum(parts, 1e-14)
        return spread_of(float(np.sum(np.minimum(np.sum(parts, axis=1), limit))), k)


def weight(gap: float, std: float) -> float:
    """Return the weight of a stage's matrix among others: its signal over its noise variance."""
    return gap / max(std, 1e-9) ** 2


@dataclass(frozen=True)
class Cascade:
    """What a cascade is expected to do.

    Attributes:
        columns: columns that its stages start from, and at last k.
        captured: fraction of users' energy in the columns that each stage starts from.
        gaps: gap of each stage's mean of u u^T.
        spread: spread of its result, geometric mean.
        variance: variance of the logarithm of the spread.
        sines: sin^2 of the principal angles of its result, (k,), mean.
    """

    columns: tuple[int, ...]
    captured: Array
    gaps: Array
    spread: float
    variance: float
    sines: Array


@dataclass(frozen=True)
class Filter:
    """One step of the scalar Kalman filter: rho^2 and the gain."""

    signal: float
    rho2: float
    gain: float

    @classmethod
    def of(cls, signal: float, variance: float) -> Filter:
        """Return the step for a signal s and the total variance of the released mean."""
        rho2 = signal**2 / variance
        return cls(signal, rho2, min(rho2 / (1.0 + rho2), LARGEST_GAIN))

    def after(self, x: float, k: int) -> float:
        """Return the expected spread of k angles after the step, from spread x."""
        y = x / (1.0 + x / k) * ((1.0 - self.gain) ** 2 + self.gain**2 / self.rho2)
        return spread_of(y, k)


@dataclass(frozen=True)
class Forecast:
    """How a run is planned, and what it will probably reach.

    Attributes:
        share: share of mu^2 for the cascade.
        rounds: number of rounds T.
        cascade: what the cascade is expected to do.
        spread: spread at the end.
        error: population MSE of users' final predictors, in units of the mean square of heads.
        alone: the same for users who have no embedding.
    """

    share: float
    rounds: int
    cascade: Cascade
    spread: float
    error: float
    alone: float


def stage_stds(kept: tuple[int, ...], mu: float, relation: str) -> Array:
    """Return the noise of each stage's sum if the cascade costs mu in all.

    A stage with q columns has a share in proportion to q. The noise's largest eigenvalue grows
    with sqrt(q), so that it is the same for all stages.
    """
    sizes = np.array(kept[:-1], dtype=np.float64)
    return OuterProductBound().sensitivity(relation) / (mu * np.sqrt(sizes / np.sum(sizes)))


@lru_cache(maxsize=64)
def rehearsal_of(d: int, k: int, m: int, noise: float) -> Rehearsal:
    """Return rehearsed users, the same object for the same sizes."""
    return Rehearsal(d, k, m, noise)


@lru_cache(maxsize=64)
def forecast(
    n: int,
    d: int,
    k: int,
    m: int,
    noise: float,
    mu: float,
    relation: str,
    share: float | None = None,
    rounds: int | None = None,
) -> Forecast:
    """Plan a run and predict its error.

    Args:
        n: users.
        d: features.
        k: dimension of the embedding.
        m: examples per user.
        noise: assumed label noise, in units of heads.
        mu: total budget.
        relation: neighbouring relation.
        share: share of mu^2 for the cascade; None takes the best of SHARES.
        rounds: number of rounds; None takes the fewest of ROUNDS that are ENOUGH.
    """
    scene, mu = rehearsal_of(d, k, m, noise), min(mu, 1e6)
    sensitivity = NormBound(1.0).sensitivity(relation)

    def run(part: float, T: int, start: float) -> float:
        std = sensitivity * math.sqrt(T) / (mu * math.sqrt(1.0 - part))
        return scene.rounds(start, n, T, std)

    def rehearse(kept: tuple[int, ...], part: float, times: int) -> Cascade:
        stds = stage_stds(kept, mu * math.sqrt(part), relation)
        return scene.cascade(n, kept, stds, max(2, min(times, 100 * times // d)))

    most = ROUNDS[-1] if rounds is None else rounds
    parts, kept = SHARES if share is None else (share,), columns(d, k)
    tried = {part: rehearse(kept, part, REPETITIONS) for part in parts}

    trusted = [part for part in parts if tried[part].sines[-1] <= TRUSTED]
    errors = {part: scene.error(run(part, most, tried[part].spread)) for part in trusted}
    best = min(parts, key=lambda part: float(tried[part].sines[-1]))
    if trusted:
        best = min(part for part in trusted if errors[part] <= ENOUGH * min(errors.values()))
    cascade = rehearse(kept, best, AT_LAST)
    least = scene.error(run(best, most, cascade.spread))
    single = rehearse(columns(d, k, 0.0), best, REPETITIONS)
    enough = scene.error(run(best, most, single.spread)) <= ENOUGH * least
    if single.sines[-1] <= TRUSTED and enough:
        cascade = single
    for T in ROUNDS if rounds is None else (rounds,):
        x = run(best, T, cascade.spread)
        error = scene.error(x)
        if error <= ENOUGH * least:
            break
    std = sensitivity * math.sqrt(T) / (mu * math.sqrt(1.0 - best))
    x = scene.rounds_in_detail(cascade.sines, n, T, std)
    return Forecast(best, T, cascade, x, scene.error(x), scene.alone)
