"""Estimates from released sums of a table: post-processing, given the noise alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from privfed.foundation.linalg import Array

MARGIN = 2.0
"""Standard deviations by which a run of bins has to exceed what it should hold."""
SURELY = 6.0
"""Standard deviations by which the share of users who have a column has to exceed 0."""
PEAK, LEAST_MASS = 6, 0.05
"""Number of bins of a peak (a factor of 8 in the spread), and the least share of users in it."""
TINY = 1e-9
"""Ridge without noise, in units of the curvature's mean: redundant columns are no obstacle."""
RESIDUAL = 0.7
"""Variance of a row's encoded target around its prediction, as assumed for biases of items."""
COMPLETIONS, MANY = 20, 500
"""Number of times a diagonal is completed; a tenth of it for more than MANY columns."""


def fullest(column: Array, noise: float, part: float) -> tuple[int, int] | None:
    """Return the shortest run of bins first..last-1 that surely holds a part of the values.

    Args:
        column: noised share of the values per bin, (bins,).
        noise: standard deviation of the noise per bin.
        part: part of the values that the run has to hold.

    Returns:
        (first, last), or None if there is no such run.
    """
    sums = np.concatenate([[0.0], np.cumsum(column)])
    for width in range(1, len(column) + 1):
        mass = sums[width:] - sums[:-width]
        # The margin keeps noise from being taken for values.
        if mass.max() >= part + MARGIN * noise * math.sqrt(width):
            first = int(np.argmax(mass))
            return first, first + width
    return None


def fullest_runs(mean: Array, noise: float, part: float) -> list[tuple[int, int] | None]:
    """Return, per column, the shortest run of bins that holds a part of what users have.

    Users whose values are all 0 do not count. A column that only few users have needs a run
    that holds a part of these few.

    Args:
        mean: noised shares (c, bins + 1), the last bin for users without a value.
        noise: standard deviation of the noise per bin.
        part: see :func:`fullest`.
    """
    whole = 1.0 - mean[:, -1]
    return [
        fullest(column, noise, part * having) if having > SURELY * noise else None
        for column, having in zip(mean[:, :-1], whole, strict=True)
    ]


def peak(column: Array, noise: float) -> float | None:
    """Return where the broad peak of a noised histogram has its middle, in bins.

    Args:
        column: noised share of the users per bin, (bins,).
        noise: standard deviation of the noise per bin.

    Returns:
        Mean place of the best run of PEAK bins; None if its mass is not above that of noise.
    """
    mass = np.convolve(column, np.ones(PEAK), "valid")
    first = int(np.argmax(mass))
    if mass[first] <= max(MARGIN * noise * math.sqrt(PEAK), LEAST_MASS):
        return None
    kept = np.maximum(column[first : first + PEAK], 0.0)
    return first + 0.5 + float(kept @ np.arange(PEAK)) / float(kept.sum())


def root_inverse(G: Array, ridge: float) -> Array:
    """Return (G_+ + ridge I)^(-1/2), G_+ the positive part of symmetric G (P, P)."""
    values, E = np.linalg.eigh(G)
    values = np.maximum(values, 0.0) + ridge + TINY * max(float(np.trace(G)) / len(G), 1e-9)
    return np.asarray((E / np.sqrt(values)) @ E.T)


def shrunk(raw: Array, S: Array) -> Array:
    """Return estimates shrunk toward 0, all but the first row, as far as noise explains them.

    Slopes are taken for independent with a common variance tau, and noise for Gaussian of
    covariance S in each column. tau is the value at which the squares of the raw slopes, in
    units of what tau and noise together let expect, are 1 on average; 0 if noise explains them.
    The intercept follows by its correlation with the slopes.

    Args:
        raw: intercept and slopes, (P, C).
        S: covariance of the noise (P, P), positive definite or 0.
    """
    if len(raw) == 1 or not np.any(S):
        return raw
    v, E = np.linalg.eigh(S[1:, 1:])
    v = np.maximum(v, 1e-300)
    u = E.T @ raw[1:]
    squares = np.mean(u * u, axis=1)

    def excess(tau: float) -> float:
        return float(np.sum(squares / (tau + v))) - len(v)

    tau = 0.0
    if excess(0.0) > 0:
        high = 1.0
        while excess(high) > 0:
            high *= 4.0
        tau = float(brentq(excess, 0.0, high))
    kept = u * (tau / (tau + v))[:, None]
    intercept = raw[0] + (S[0, 1:] @ E / v) @ (kept - u)
    return np.concatenate([intercept[None], E @ kept])


def item_biases(
    S: Array, N: Array, noise_S: float, noise_N: float, n: int, weighted: bool
) -> Array:
    """Return biases (L, C) of items from released sums and counts.

    Args:
        S: mean over users of their residuals per item, (L, C).
        N: mean over users of their weighted counts per item, (L,).
        noise_S: standard deviation of the noise in S.
        noise_N: the same of N.
        n: number of users.
        weighted: whether users' rows have weights 1/|c_i|; otherwise 1.
    """
    counts = np.maximum(N, 0.0)
    # A row weighs 1 / sqrt(m), and a user's rows sqrt(m) together: what users have in all gives
    # the weight of a row.
    weight = 1.0 / max(float(np.sum(N)), 1e-9) if weighted else 1.0
    chance = RESIDUAL * weight * counts / n + noise_S**2
    known = max(float(np.sum(N * N)) - len(N) * noise_N**2, 1e-12)
    tau = max(float(np.sum(np.mean(S * S, axis=1) - chance)) / known, 0.0)
    whole = tau * (counts**2 + noise_N**2) + chance
    return S * np.divide(tau * counts, whole, out=np.zeros_like(whole), where=whole > 0)[:, None]


def signal(values: Array, v: float) -> Array:
    """Return the eigenvalues without noise, reduced by the part of their direction that was lost.

    Noise of variance v in every entry beside the diagonal moves an eigenvalue s to l = s + v d / s
    if s^2 > v d, and hides it below 2 sqrt(v d) otherwise. The eigenvector then keeps a part
    1 - v d / s^2 of its direction (Benaych-Georges and Nadakuditi 2011).

    Args:
        values: eigenvalues with noise (d,).
        v: variance of the noise in every entry of the symmetric matrix.

    Returns:
        s - v d / s (d,) with s the eigenvalue without noise; 0 where noise hides it.
    """
    d = len(values)
    edge = 2.0 * math.sqrt(v * d)
    # The largest eigenvalue of noise alone exceeds the edge by up to about d^(-2/3) of it.
    clear = values > edge * (1.0 + d ** (-2 / 3))
    s = np.where(clear, (values + np.sqrt(np.maximum(values**2 - edge**2, 0.0))) / 2.0, 1.0)
    return np.where(clear, np.maximum(s - v * d / s, 0.0), 0.0)


def completed(Z: Array, v: float, unknown: NDArray[np.bool_], k: int) -> tuple[Array, Array]:
    """Return what stands out of the noise in Z (d, d).

    Args:
        Z: symmetric matrix (d, d).
        v: variance of the noise in every entry beside the diagonal.
        unknown: columns (d,) whose own entry on the diagonal says nothing; it is completed from
            the others (Zhang, Cai and Wu 2018), COMPLETIONS times.
        k: largest number of directions that count.

    Returns:
        Eigenvalues (d,) as `signal` has them, and eigenvectors (d, d).
    """
    Z = Z.copy()
    Z[unknown, unknown] = 0.0
    times = COMPLETIONS if len(Z) <= MANY else COMPLETIONS // 10
    for _ in range(times):
        values, vectors = np.linalg.eigh(Z)
        found, vectors = signal(values[::-1], v), vectors[:, ::-1]
        found[k:] = 0.0
        if not unknown.any():
            break
        Z[unknown, unknown] = (vectors[unknown] ** 2) @ found
    return found, vectors
