"""Finite sets of candidate matrices: explicit covers if small enough, else random candidates.

Nothing here looks at data. A set is made from public numbers only: sizes, a radius, a seed, and
what was published before.

Distances are Frobenius norms, up to a rotation of the columns. A representation U with head v and
a representation U O with head O^T v predict the same. So of several candidates with the same U U^T
one is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from privfed.foundation.linalg import Array
from privfed.foundation.seeding import generator

MOST_POINTS = 2**22
"""Largest number of points of a product grid that are searched for candidates."""
CHUNK = 2**18
"""Number of grid points that are held in memory at a time."""
REDRAWN = 0.25
"""Fraction of the candidates around a choice that differ from it by one whole direction."""


def polar(M: Array) -> Array:
    """Return the nearest matrices with orthonormal columns; M: (..., d, k) with d >= k."""
    P, _, Qt = np.linalg.svd(M, full_matrices=False)
    return P @ Qt


def grid_size(entries: int, reach: float, spacing: float) -> tuple[int, float]:
    """Return the size of a product grid of which some point is near every matrix within `reach`.

    Args:
        entries: number of entries of a matrix, which is the dimension of the grid.
        reach: largest absolute value of an entry.
        spacing: distance of neighbouring points along one entry.

    Returns:
        The number of steps to either side of 0 that come within half a step of everything up to
        `reach`, and the number of points of the grid (capped at e^700).
    """
    steps = max(0, math.ceil(reach / spacing - 0.5))
    return steps, math.exp(min(700.0, entries * math.log(2 * steps + 1)))


def sphere_spacing(d: int, k: int, gamma: float) -> float:
    """Return the spacing of the grid behind :func:`orthonormal_net`."""
    return gamma / math.sqrt(d * k)


def ball_spacing(rows: int, k: int, gamma: float) -> float:
    """Return the spacing of the grid behind :func:`ball_net`."""
    return 2 * gamma / math.sqrt(rows * k)


def orthonormal_net(d: int, k: int, gamma: float) -> Array:
    """Return a gamma-cover (C, d, k) of the matrices with orthonormal columns.

    On a grid of spacing h = gamma / sqrt(d k) every U has a point G with
    |G - U| <= sqrt(d k) h / 2 = gamma / 2. The nearest orthonormal matrix polar(G) then has
    |polar(G) - G| <= |U - G| <= gamma / 2. So G is kept if |polar(G) - G| <= gamma / 2, and
    |polar(G) - U| <= gamma.
    """
    kept = []
    for G in _grid((d, k), 1.0, sphere_spacing(d, k, gamma)):
        lengths = np.linalg.norm(G, axis=1)
        G = G[np.all(np.abs(lengths - 1.0) <= gamma / 2, axis=1)]
        singular = np.linalg.svd(G, compute_uv=False)
        G = G[(np.linalg.norm(singular - 1.0, axis=1) <= gamma / 2) & (singular[:, -1] > 1e-6)]
        kept.append(unique(polar(G)))
    return unique(np.concatenate(kept))


def ball_net(rows: int, k: int, radius: float, gamma: float) -> Array:
    """Return a gamma-cover (C, rows, k) of the ball |U| <= radius.

    On a grid of spacing h = 2 gamma / sqrt(rows k) every U of the ball has a point G with
    |G - U| <= gamma. Points with |G| > radius + gamma are near no U of the ball and are dropped.
    The others are projected on the ball. The ball is convex, so no projection moves G away from U.
    """
    kept = []
    for G in _grid((rows, k), radius, ball_spacing(rows, k, gamma)):
        lengths = np.linalg.norm(G, axis=(1, 2))
        near = lengths <= radius + gamma
        factors = radius / np.maximum(lengths[near], radius)
        kept.append(unique(G[near] * factors[:, None, None]))
    return unique(np.concatenate(kept))


def random_orthonormal(rng: np.random.Generator, count: int, d: int, k: int) -> Array:
    """Return uniformly random matrices with orthonormal columns (count, d, k)."""
    return polar(rng.standard_normal((count, d, k)))


def around(rng: np.random.Generator, U: Array, count: int, radius: float) -> Array:
    """Return U and count - 1 random orthonormal matrices near it: (count, d, k).

    Most lie at a distance of about `radius`. Their steps are perpendicular to U, because only such
    steps turn the column space. The last ones (a fraction REDRAWN) keep k - 1 directions of U's
    column space and replace one. Small steps alone would never leave a U of which one direction
    is perpendicular to everything useful: there no small turn improves the score.

    Args:
        rng: source of the public randomness.
        U: orthonormal matrix (d, k).
        count: number of matrices.
        radius: distance of the small steps.
    """
    d, k = U.shape
    Z = rng.standard_normal((count - 1, d, k))
    near = U + (Z - U @ (U.T @ Z)) * (radius / math.sqrt(max(1, (d - k) * k)))
    anew = slice(count - 1 - int(REDRAWN * (count - 1)), None)
    near[anew] = U @ random_orthonormal(rng, len(Z[anew]), k, k)
    near[anew, :, 0] = Z[anew, :, 0] / math.sqrt(d)
    return np.concatenate([U[None], polar(near)])


def sketch_matrix(seed: int, rows: int, d: int) -> Array:
    """Return M (rows, d) with entries +-1/sqrt(rows): public, so every node makes it by itself."""
    signs = generator(seed, "sketch").integers(0, 2, (rows, d))
    return np.where(signs == 1, 1.0, -1.0) / math.sqrt(rows)


def unique(U: Array) -> Array:
    """Return the first of all candidates with the same U U^T; U: (C, d, k)."""
    if not len(U):
        return U
    # Adding 0.0 removes negative zeros: they equal 0.0 but have other bits.
    gram = np.round(U @ U.transpose(0, 2, 1), 9) + 0.0
    _, first = np.unique(gram.reshape(len(U), -1), axis=0, return_index=True)
    return U[np.sort(first)]


def _grid(shape: tuple[int, int], reach: float, spacing: float) -> Iterator[Array]:
    """Yield the points of the product grid over the entries of a matrix in chunks (c, *shape)."""
    entries = shape[0] * shape[1]
    steps, _ = grid_size(entries, reach, spacing)
    side = 2 * steps + 1
    for start in range(0, side**entries, CHUNK):
        numbers = np.arange(start, min(start + CHUNK, side**entries))
        digits = np.stack(np.unravel_index(numbers, (side,) * entries), axis=1)
        yield np.asarray(spacing * (digits - steps), dtype=np.float64).reshape(-1, *shape)
