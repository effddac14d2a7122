"""Sums of users' errors at the end of a simulation.

They contain nothing of a single user. They are not private and marked so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.common import Scalar
from numpy.typing import NDArray

from privfed.data.evaluation_bins import Scale
from privfed.foundation.linalg import Array

SIZES = 2 ** np.arange(18)
"""Lower edges of the classes of users by their number of rows: 1, 2-3, 4-7, 8-15, ..."""
RATIOS = Scale(np.linspace(-1.0, 1.0, 41), log=False)
"""Bins of users' gains over training alone.

A gain is the decimal logarithm of the ratio of errors. Where errors are fractions of wrong answers,
it is their difference.
"""


class Tally:
    """Adds up the errors of users, block by block."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.counts: dict[str, Any] = {}

    def add(
        self,
        errors: Mapping[str, Array],
        scale: Scale,
        weights: NDArray[np.int64] | None,
        rows: int,
    ) -> None:
        """Add the errors of one block of users.

        Users who are judged by no row do not count.

        Args:
            errors: errors (B,) by name of the predictor; `own` must be there.
            scale: bins in which errors are counted.
            weights: number of rows (B,) that judge each user; None: every user counts once.
            rows: number of training rows of each user.
        """
        told = np.ones(len(errors["own"]), dtype=np.int64) if weights is None else weights
        for name, values in errors.items():
            self._sum(name, float(told @ values))
            if name in ("own", "alone"):
                self._count(f"histogram_{name}", scale.count(values[told > 0]))
        if weights is None:
            return
        self._sum("judged", float(told.sum()))
        self._sum("judged_users", float(np.sum(told > 0)))
        if "alone" in errors:
            own, alone = (errors[name][told > 0] for name in ("own", "alone"))
            gains = np.log10((alone + 1e-12) / (own + 1e-12)) if scale.log else alone - own
            self._count("histogram_gain", RATIOS.count(gains))
            place = int(np.searchsorted(SIZES, rows, side="right")) - 1
            table = np.zeros((len(SIZES), 4))
            table[place] = (
                len(own),
                float(np.sum(alone > own)),
                float(np.sum(own)),
                float(np.sum(alone)),
            )
            self._count("by_size", table.ravel())

    def _sum(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value

    def _count(self, name: str, values: Array) -> None:
        self.counts[name] = self.counts.get(name, 0.0) + values

    def metrics(self) -> dict[str, Scalar]:
        """Return all sums and counts as a node sends them."""
        return {**self.sums, **{name: values.tobytes() for name, values in self.counts.items()}}
