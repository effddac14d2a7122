"""Personal predictors of linear models: the federated one, mixed with the user's own.

    U       shared embedding (d, k)              w   a user's predictor (d,): y = X w + noise
    w_fed   what the shared parameters give: a least-squares head, w = U v, or a posterior mean
    w_own   the user's own fit, which uses nothing shared

A federated embedding may be worse than none. Model f is a Gaussian prior of w that has a fraction f
of its energy in U (privfed/models/posterior.py): with f = 1 the predictor lies in U, with f = k/d U
says nothing. A user's own examples judge a model by

    N(y; 0, s^2 K_f),     K_f the covariance of the user's targets under the model

This density is the product over examples of how well each is predicted from those before it, so
that no example judges a predictor that was fitted to it. The scale s^2 is the user's own, and
several amounts of label noise are tried. All is closed-form: one factorisation of size min(m, d)
per model and noise.

The population judges first: users' bounded log-densities, relative to those of the model before,
are released with noise (`evidence`), and choose f, which is published as a spread. Then each user
mixes,

    w = p w_fed + (1 - p) w_own,     p / (1 - p) = ODDS * (density of the chosen f) / (of f = k/d)

which never leaves the user. Where p is 1 but for 1e-4, w is w_fed itself; where U says nothing to
the population, w is w_own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import backward, factor, forward, lstsq
from privfed.kernels.tolerances import TINY
from privfed.models.linear import fit_heads
from privfed.models.posterior import Prior

ODDS = 30.0
"""Prior odds of the model that the population chose, in a user's own decision."""
FRACTIONS = (0.5, 0.85, 0.97, 1.0 - 1e-6)
"""Fractions f of users' energy in U that the population chooses from, besides k/d."""
NOISES = (0.01, 0.03, 0.1, 0.25, 0.5, 1.0)
"""Label noises that are tried, in units of heads."""
MOST = 2.0
"""Bound on a user's log-density, relative to that of the model before."""
CLEAR = 1e4
"""Odds from which a federated predictor is taken as it is."""
NEAR = 1.0 / FRACTIONS[-1] - 1.0
"""Spread over k up to which heads are fitted by least squares."""
NOT_JUDGED, SAYS_NOTHING = 0.0, 1e9
"""Spreads of an embedding that nobody has judged, and of one that says nothing."""
SIGNIFICANT = 1.5
"""Standard deviations of noise by which evidence has to exceed 0."""
TIE = 0.15
"""Difference of log-densities per user up to which the larger fraction is chosen."""
BLOCK = 1 << 17
"""Numbers of X that are processed at a time, so that intermediate results stay in cache."""


@dataclass(frozen=True)
class Rows:
    """Examples of users, with at most d rows each, as Gaussian likelihoods see them.

    Attributes:
        X: rows (B, q, d), q <= d.
        y: targets (B, q).
        rest: sum of squares of targets that no linear predictor explains, (B,).
        left: number of rows that were saved, m - q.
        unit: mean square of features (B,): the unit of label noise.
    """

    X: Array
    y: Array
    rest: Array
    left: int
    unit: Array

    @classmethod
    def of(cls, X: Array, y: Array) -> Rows:
        """Return examples (B, m, d) and targets (B, m) in at most d rows per user."""
        B, m, d = X.shape
        unit = np.maximum(np.mean(np.vecdot(X, X), axis=1) / d, TINY)
        if m <= d:
            return cls(X, y, np.zeros(B), 0, unit)
        Q, R = np.linalg.qr(X)
        inside = np.matmul(y[:, None, :], Q)[:, 0]
        rest = np.maximum(np.vecdot(y, y) - np.vecdot(inside, inside), 0.0)
        return cls(R, inside, rest, m - d, unit)


def judged(prior: Prior, rows: Rows) -> tuple[Array, Array]:
    """Judge a prior by users' targets, and mix its posterior means over NOISES.

    Densities are those for the scale s^2 at which they are largest.

    Returns:
        Logarithm of the mean density (B,), -inf if it cannot be had, and posterior means (B, d).
    """
    XS = prior.scaled(rows.X)
    K = np.ascontiguousarray(np.matmul(XS, XS.transpose(0, 2, 1)).transpose(1, 2, 0))
    q, m, y = len(K), len(K) + rows.left, np.ascontiguousarray(rows.y.T)
    logs, alphas = [], []
    for noise in NOISES:
        ridge = noise**2 * rows.unit
        L, margin = factor(K + ridge * np.eye(q)[..., None], 0.0)
        z = forward(L, y)
        size = np.maximum((np.sum(z * z, axis=0) + rows.rest / ridge) / m, TINY)
        determinant = -2.0 * np.sum(np.log(np.diagonal(L)), axis=1) + rows.left * np.log(ridge)
        density = -0.5 * (determinant + m * np.log(size))
        alpha = backward(L, z)
        known = (margin > 0) & np.isfinite(density) & np.isfinite(alpha).all(axis=0)
        logs.append(np.where(known, density, -np.inf))
        alphas.append(np.where(known, alpha, 0.0))
    largest = np.max(logs, axis=0)
    parts = np.exp(np.array(logs) - np.where(np.isfinite(largest), largest, 0.0))
    total = np.maximum(np.sum(parts, axis=0), TINY)
    alpha = np.einsum("hb,hqb->bq", parts / total, np.array(alphas))
    v, outer = prior.parts(np.matmul(alpha[:, None, :], np.where(np.isfinite(XS), XS, 0.0))[:, 0])
    W = v @ prior.root @ prior.U.T + prior.outside * outer
    return largest + np.log(total / len(NOISES)), W


def in_blocks(X: Array, y: Array) -> Iterator[tuple[slice, Rows]]:
    """Yield users' places and rows, few users at a time."""
    size = max(1, BLOCK // max(1, X[0].size if len(X) else 1))
    for start in range(0, len(X), size):
        users = slice(start, start + size)
        yield users, Rows.of(X[users], y[users])


def evidence(U: Array, X: Array, y: Array) -> Array:
    """Return what users' examples say about U, of norm at most 1: (B, len(FRACTIONS)).

    Entry h is the log-density of model h relative to that of the model before it, "U says nothing"
    at first, bounded by MOST, over MOST sqrt(len(FRACTIONS)).
    """
    d, k = U.shape
    told = np.zeros((len(X), len(FRACTIONS)))
    with np.errstate(all="ignore"):
        for users, rows in in_blocks(X, y):
            before = judged(nothing(U), rows)[0]
            for h, f in enumerate(FRACTIONS):
                density = judged(Prior.of_fraction(U, k, max(f, k / d)), rows)[0]
                told[users, h] = np.clip(density - before, -MOST, MOST)
                before = density
    return np.nan_to_num(told) / (MOST * math.sqrt(len(FRACTIONS)))


def chosen_spread(mean: Array, std: float, d: int, k: int) -> float:
    """Return the spread that the population's evidence speaks for; SAYS_NOTHING if none.

    Args:
        mean: released mean of `evidence`.
        std: standard deviation of its noise, per entry.
        d: features.
        k: dimension of the embedding.
    """
    steps = np.arange(1, 1 + len(mean))
    sums = np.cumsum(mean) - SIGNIFICANT * std * np.sqrt(steps)
    if np.max(sums) <= 0.0:
        return SAYS_NOTHING
    close = TIE / (MOST * math.sqrt(len(mean)))
    best = int(np.flatnonzero(sums >= np.max(sums) - close)[-1])
    return k * (1.0 / max(FRACTIONS[best], k / d) - 1.0)


def nothing(U: Array) -> Prior:
    """Return the prior under which U says nothing."""
    d, k = U.shape
    return Prior.of_fraction(U, k, k / d)


def personal_predictors(shared: Sequence[Array], X: Array, y: Array, safety: bool = False) -> Array:
    """Return users' predictors w_i (B, d).

    Args:
        shared: published parameters: nothing; U; U with its spread, which is NOT_JUDGED before the
            population has judged it; or U with the root of the covariance of heads and the spread.
        X: examples, (B, m, d).
        y: targets, (B, m).
        safety: whether users mix the federated predictor with their own. They always do if the
            covariance of heads is known, since that costs no release.
    """
    if not len(shared):
        return lstsq(X, y)
    safety = safety or len(shared) == 3
    U, spread = shared[0], float(shared[-1][0]) if len(shared) > 1 else NOT_JUDGED
    d, k = U.shape
    if len(shared) < 3 and spread >= SAYS_NOTHING:
        return lstsq(X, y)
    if spread <= NEAR * k and len(shared) < 3:
        W, given = fit_heads(U, X, y) @ U.T, True
    else:
        W, given = np.empty((len(X), d)), False
    if given and (not safety or d == k or spread == NOT_JUDGED):
        return W
    prior = Prior.of_spread(U, shared[1] if len(shared) == 3 else np.eye(k), spread)
    with np.errstate(all="ignore"):
        for users, rows in in_blocks(X, y):
            for_all, federated = judged(prior, rows)
            if given:
                federated = W[users]
            W[users] = federated
            if safety:
                for_own, own = judged(nothing(U), rows)
                odds = ODDS * np.exp(np.clip(for_all - for_own, -700.0, 700.0))
                p = np.where(odds < CLEAR, odds / (1.0 + odds), 1.0)[:, None]
                W[users] = np.where(p == 1.0, federated, p * federated + (1.0 - p) * own)
    return W
