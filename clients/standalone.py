"""Each user alone: (ridge or minimum-norm) least squares on all of its own examples."""

from __future__ import annotations

from typing import Annotated, Any

from flwr.common import NDArrays

from privfed.algorithm.client import CohortClient
from privfed.data.cohort import Cohort
from privfed.foundation.constraints import AT_LEAST_ZERO
from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import lstsq


class StandaloneClient(CohortClient):
    """w_i = argmin |X_i w - y_i|^2 + ridge |w|^2, of minimum norm when ridge = 0."""

    def __init__(self, cohort: Cohort, init: Any, ridge: Annotated[float, AT_LEAST_ZERO]) -> None:
        super().__init__(cohort)
        self.ridge = ridge

    def weights(self, block: Cohort, shared: NDArrays) -> Array:
        """Return w_i (B, d); nothing shared is used."""
        return lstsq(block.X, block.y, self.ridge)
