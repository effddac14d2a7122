"""Bins in which users' errors are counted for the chart of users' gains, in simulations only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privfed.foundation.linalg import Array


@dataclass(frozen=True)
class Scale:
    """Bins of errors.

    Errors outside the edges are counted in the first or the last bin.

    Attributes:
        edges: edges of the bins, in units of the error or of its decimal logarithm.
        log: whether the units are those of the logarithm.
    """

    edges: Array
    log: bool

    def count(self, errors: Array) -> Array:
        """Count errors (B,) by bin: (len(edges) - 1,)."""
        low, high = self.edges[0], self.edges[-1]
        places = (
            np.log10(np.clip(errors, 10**low, 10**high)) if self.log else np.clip(errors, low, high)
        )
        return np.histogram(places, self.edges)[0].astype(np.float64)


LOGARITHMIC = Scale(np.linspace(-12.0, 4.0, 65), log=True)
UNIT = Scale(np.linspace(0.0, 1.0, 51), log=False)
