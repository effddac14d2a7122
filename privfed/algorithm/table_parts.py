"""Parts of users of a table that need no array per user: matrices by factors, sparse vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privfed.foundation.linalg import Array, svec
from privfed.privacy.clipping import clip_factors
from privfed.privacy.summation import sum_of_products, widened


@dataclass(frozen=True)
class Outer:
    """Parts F_i^T F_i - E_i^T E_i (d, d) by their factors, sent as svec of the clipped sum.

    Attributes:
        F: rows (B, r, d).
        norms: Frobenius norms (B,) of the parts; 0 where F or E are not finite.
        E: rows (B, e, d) to subtract; None for none.
    """

    F: Array
    norms: Array
    E: Array | None = None

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """See :class:`Contributions`."""
        d, fine = self.F.shape[2], np.isfinite(self.norms)
        norms = np.where(fine, self.norms, 0.0)
        wide = 1.0 if self.E is None else widened(d, self.F.shape[1] + self.E.shape[1])
        root = np.sqrt(np.where(fine, clip_factors(norms * wide, clip), 0.0))

        def weighted(rows: Array) -> Array:
            scaled = np.where(fine[:, None, None], rows, 0.0) * root[:, None, None]
            flat = scaled.reshape(-1, d)
            return sum_of_products(flat, flat)

        return svec(weighted(self.F) - (0.0 if self.E is None else weighted(self.E))), norms


@dataclass(frozen=True)
class Sparse:
    """Parts (L, C) of which most rows are 0.

    Attributes:
        who: user (N,) of each entry, 0..B-1.
        place: row (N,) of the part; a user has each row at most once.
        values: entries (N, C).
        shape: (B, L).
    """

    who: NDArray[np.int64]
    place: NDArray[np.int64]
    values: Array
    shape: tuple[int, int]

    @property
    def norms(self) -> Array:
        """Norm (B,) of each user's part."""
        squares = np.vecdot(self.values, self.values)
        return np.sqrt(np.bincount(self.who, squares, minlength=self.shape[0]))

    def times(self, factors: Array) -> Sparse:
        """Return the parts, each times its user's factor (B,)."""
        return Sparse(self.who, self.place, self.values * factors[self.who][:, None], self.shape)

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """See :class:`Contributions`."""
        norms = self.norms
        fine = np.isfinite(norms)
        norms = np.where(fine, norms, 0.0)
        factors = np.where(fine, clip_factors(norms, clip), 0.0)[self.who]
        entries = np.where(fine[self.who][:, None], self.values, 0.0) * factors[:, None]
        sums = [np.bincount(self.place, column, minlength=self.shape[1]) for column in entries.T]
        return np.stack(sums, axis=1), norms


@dataclass(frozen=True)
class SparseOuter:
    """Parts sum_c h_c h_c^T (L, L) of sparse h (L, C), sent as svec of the clipped sum.

    Attributes:
        h: the vectors of each user.
        norms: Frobenius norms (B,) of the parts.
    """

    h: Sparse
    norms: Array

    def clipped(self, clip: float) -> tuple[Array, Array]:
        """See :class:`Contributions`."""
        fine = np.isfinite(self.norms)
        norms = np.where(fine, self.norms, 0.0)
        root = np.sqrt(np.where(fine, clip_factors(norms, clip), 0.0))[self.h.who]
        total: Any = 0.0
        for column in self.h.values.T:
            values = np.where(fine[self.h.who], column, 0.0) * root
            H = sparse.csr_array((values, (self.h.who, self.h.place)), shape=self.h.shape)
            total = total + (H.T @ H).toarray()
        return svec(np.asarray(total)), norms


def gram_square(P: Array, Q: Array) -> Array:
    """Return the sum of <p, q>^2 over rows p and q of each user: (B, a, d), (B, b, d) -> (B,).

    It is computed from a x b or from d x d matrices, depending on the sizes.
    """
    if min(P.shape[1], Q.shape[1]) <= P.shape[2]:
        return np.sum(np.matmul(P, Q.transpose(0, 2, 1)) ** 2, axis=(1, 2))
    return np.sum(
        np.matmul(P.transpose(0, 2, 1), P) * np.matmul(Q.transpose(0, 2, 1), Q), axis=(1, 2)
    )


def by_item(items: NDArray[np.int64], values: Array, size: int) -> Sparse:
    """Add up the values of each user's rows by item.

    Args:
        items: place (B, m, q) of each row's items, -1 for none.
        values: values (B, m, C) of the rows.
        size: number of items.
    """
    B, _, q = items.shape
    key = np.where(items >= 0, np.arange(B)[:, None, None] * size + items, -1).ravel()
    seen = key >= 0
    cells, inverse = np.unique(key[seen], return_inverse=True)
    spread = np.repeat(values.reshape(-1, values.shape[2]), q, axis=0)[seen]
    sums = [np.bincount(inverse, column, minlength=len(cells)) for column in spread.T]
    return Sparse(cells // size, cells % size, np.stack(sums, axis=1), (B, size))
