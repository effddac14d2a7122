"""What a run will probably reach: the whole run with simulated users, several times, without data.

The arithmetic of strategies/rehearsal.py plans a run: it is quick, and looks at the mean. Single
runs scatter, and their middle differs from what the mean gives: where k (d - k) is small one noisy
direction counts, and the filter that follows the spread errs. So the run that was planned is played
with n simulated users and noise of the planned size, by the code that real users and the server
run, with at most ACTS rounds; the median of its errors, times what the arithmetic says about more
rounds, is the prediction. Large runs are not played: they end at the
level of label noise, which the arithmetic knows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from privfed.foundation.linalg import polar, retraction
from privfed.foundation.seeding import generator
from privfed.models.personal_predictors import personal_predictors
from privfed.models.posterior import Prior, unit
from privfed.privacy.bounds import NormBound
from strategies.initialisers.cascade import CascadeStart
from strategies.rehearsal import (
    SEED,
    Forecast,
    forecast,
    rehearsal_of,
    stage_stds,
    symmetric_noise,
)
from strategies.spread_filter import SpreadFilter

WORK = 1.5e9
"""Numbers of users' examples that all performances may read: a few seconds."""
ACTS = 100
"""Rounds that are played at most. More rounds share the same budget, and end nearly alike."""
MOST, FEWEST = 31, 3
"""Performances; a run that cannot be played FEWEST times is not played."""
JUDGED = 400
"""Simulated users whose final errors are averaged."""


@lru_cache(maxsize=64)
def prediction(
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
    """Plan a run, play it if it is small enough, and predict its error; see :func:`forecast`."""
    planned = forecast(n, d, k, m, noise, mu, relation, share, rounds)
    steps = min(planned.rounds, ACTS) + len(planned.cascade.gaps)
    times = int(min(MOST, WORK // (n * m * d * steps)))
    if times < FEWEST:
        return planned
    errors = [
        performance(planned, n, d, k, m, noise, min(mu, 1e6), relation, turn)
        for turn in range(times)
    ]
    # The arithmetic knows what more rounds than were played are worth.
    scene, acts = rehearsal_of(d, k, m, noise), min(planned.rounds, ACTS)
    std = NormBound(1.0).sensitivity(relation) * math.sqrt(acts)
    std /= min(mu, 1e6) * math.sqrt(1.0 - planned.share)
    played = scene.error(scene.rounds_in_detail(planned.cascade.sines, n, acts, std))
    return replace(planned, error=float(np.median(errors)) * planned.error / played)


def performance(
    planned: Forecast,
    n: int,
    d: int,
    k: int,
    m: int,
    noise: float,
    mu: float,
    relation: str,
    turn: int,
) -> float:
    """Play a planned run; return the population MSE of users' final predictors."""
    rng = generator(SEED, "performance", d, k, m, n, turn)
    truth = retraction(rng.standard_normal((d, k)))
    X, heads = rng.standard_normal((n, m, d)), rng.standard_normal((n, k))
    W = heads @ truth.T
    y = np.matmul(X, W[..., None])[..., 0] + noise * rng.standard_normal((n, m))

    gram = np.matmul(X, X.transpose(0, 2, 1)) if m <= d else None
    cascade = planned.cascade
    start = CascadeStart(m, noise)
    start.begin(d)
    stds = stage_stds(cascade.columns, mu * math.sqrt(planned.share), relation)
    for j, std in enumerate(stds):
        prior = Prior.of_fraction(start.V, k, float(cascade.captured[j]), noise)
        u = unit(prior.fit(X, y, gram) @ start.V)
        M = u.T @ u / n + symmetric_noise(u.shape[1], std / n, rng)
        start.absorb(M, float(cascade.gaps[j]), std, k, cascade.columns[j + 1])

    U, root = start.V, start.heads(n)
    filtered = SpreadFilter.start(rehearsal_of(d, k, m, noise), cascade.spread, cascade.variance)
    acts = min(planned.rounds, ACTS)
    std = NormBound(1.0).sensitivity(relation) * math.sqrt(acts)
    std /= mu * math.sqrt(1.0 - planned.share) * n
    variance = k * (d - k) * std**2 + 1.0 / n
    for _ in range(acts):
        prior = Prior.of_spread(U, root, filtered.x, noise)
        v, delta = prior.parts(prior.fit(X, y, gram))
        M = unit(delta).T @ unit(v) / n + std * rng.standard_normal((d, k))
        tangent = M - U @ (U.T @ M)
        U = polar(U + filtered.length(tangent, variance) * tangent @ np.linalg.inv(root))
    shared = [U, root, np.array([filtered.x])]
    told = personal_predictors(shared, X[:JUDGED], y[:JUDGED], safety=True)
    return float(np.mean(np.sum((told - W[:JUDGED]) ** 2, axis=1))) + noise**2
