"""What every client shares: a cohort of users, clipped one by one, summed, and nothing else leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar

from privfed.data.cohort import Cohort
from privfed.kernels import lstsq
from privfed.linalg import Array
from privfed.models.linear import ERROR_BINS, fit_heads, population_error
from privfed.privacy.mechanisms import Contributions, Dense
from privfed.privacy.quantile import MEASURES

Task = Callable[[Cohort, NDArrays, dict[str, Any]], Contributions | Array]


class CohortClient(NumPyClient):
    """Serves the users of one cohort. An algorithm adds its tasks and how a user predicts."""

    train = slice(None)
    """The examples that tasks see."""
    final = slice(None)
    """The examples a final head is fitted on."""

    def __init__(self, cohort: Cohort, init: Any = None) -> None:
        self.cohort = cohort.without_broken_users()
        self.init = init

    # What an algorithm writes.

    def tasks(self) -> dict[str, Task]:
        """Name of a task -> function of (block of users, shared parameters, announced settings).

        It returns one contribution a user, not clipped yet: an array (B, ...), or Contributions that need no such array.
        """
        return {} if self.init is None else {self.init.task: self.init.contributions}

    def weights(self, block: Cohort, shared: NDArrays) -> Array:
        """The users' own predictors w_i (B, d) given the published model; they never leave the client."""
        raise TypeError(f"{type(self).__name__} does not say how a user predicts")

    # What all share.

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """The cohort's sum of clipped contributions and, where asked for, where their norms lie."""
        task = self.tasks()[str(config["task"])]
        clip = float(config["clip"]) if config["release"] else 1.0
        total: Any = 0.0
        measure = MEASURES.get(str(config["measure"]))
        counts: Any = 0.0
        with np.errstate(all="ignore"):  # a user whose own numbers overflow contributes nothing
            for block in self.cohort.blocks(self.train):
                mine = task(block, parameters, config)
                part, norms = (Dense(mine) if isinstance(mine, np.ndarray) else mine).clipped(clip)
                total = total + part
                if measure is not None:
                    counts = counts + measure.count(norms, clip)
        sums = ([np.asarray(total)] if config["release"] else []) + ([counts] if measure is not None else [])
        return sums, len(self.cohort), {}

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        """Sums of population errors over the cohort. Not private: simulations only, where the truth is known."""
        if self.cohort.W_star is None:
            raise ValueError("errors of real users are not told: they would leave without passing the noise gate")
        sums = {"own": 0.0, "alone": 0.0, "oracle": 0.0}
        counts = {name: np.zeros(len(ERROR_BINS) - 1) for name in ("own", "alone")}
        U_star = np.frombuffer(config["U_star"], dtype=np.float64).reshape(self.cohort.X.shape[2], -1)  # type: ignore[arg-type]
        for block in self.cohort.blocks():
            assert block.W_star is not None
            X, y = block.X[:, self.final], block.y[:, self.final]
            predictors = {
                "own": self.weights(block, parameters),
                "alone": lstsq(block.X, block.y),
                "oracle": fit_heads(U_star, X, y) @ U_star.T,
            }
            for name, W in predictors.items():
                error = population_error(W, block.W_star)
                sums[name] += float(np.sum(error))
                if name in counts:
                    logs = np.log10(np.clip(error, 10 ** ERROR_BINS[0], 10 ** ERROR_BINS[-1]))
                    counts[name] += np.histogram(logs, ERROR_BINS)[0]
        metrics: dict[str, Scalar] = {**sums, **{f"histogram_{k}": v.tobytes() for k, v in counts.items()}}
        return sums["own"] / len(self.cohort), len(self.cohort), metrics
