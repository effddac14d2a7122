"""What every client shares: a cohort of users, clipped one by one, summed, and nothing else leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from flwr.client import Client, NumPyClient
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    NDArrays,
    Parameters,
    Scalar,
    Status,
    ndarrays_to_parameters,
)

from privfed.algorithm.tensors import decoded
from privfed.data.cohort import Cohort, Ids, coins, groups_of
from privfed.data.error_tally import Tally
from privfed.federation.head_store import HeadStore
from privfed.federation.user_state import Memory
from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import lstsq
from privfed.models.linear import fit_heads
from privfed.privacy.clip_norms import MEASURES
from privfed.privacy.clipping import Contributions, Dense

OK = Status(Code.OK, "")
Part = Contributions | Array
Task = Callable[[Cohort, NDArrays, dict[str, Any]], Part | tuple[Part, ...]]


class FlowerClient(Client):
    """Takes Flower's messages apart for a client that speaks in arrays; its own reader is safe in several threads."""

    def __init__(self, client: NumPyClient) -> None:
        self.client = client

    def fit(self, ins: FitIns) -> FitRes:
        """The cohort's sums."""
        arrays, users, metrics = self.client.fit(arrays_of(ins.parameters), ins.config)
        return FitRes(OK, ndarrays_to_parameters(arrays), users, metrics)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """The published model, and what may be told of it."""
        loss, users, metrics = self.client.evaluate(arrays_of(ins.parameters), ins.config)
        return EvaluateRes(OK, loss, users, metrics)


def arrays_of(parameters: Parameters) -> NDArrays:
    """The arrays of a message, each writable and of 64-bit numbers."""
    arrays = [decoded(tensor) for tensor in parameters.tensors]
    if any(array is None for array in arrays):
        raise ValueError("the server sent something else than arrays of 64-bit numbers")
    return [np.array(array) for array in arrays]


class CohortClient(NumPyClient):
    """Serves the users of one cohort. An algorithm adds its tasks and how a user predicts."""

    train = slice(None)
    """The examples that tasks see."""
    final = slice(None)
    """The examples a final head is fitted on."""

    takes_rows = True
    """Whether a real user's table can be learnt from."""
    nothing = 0.0
    """A target that teaches nothing."""

    def __init__(self, cohort: Cohort, init: Any = None) -> None:
        self.cohort = cohort.without_broken_users(self.nothing)
        self.seen = self.cohort
        """The users as tasks see them, where an algorithm transforms their examples once."""
        self.init = init
        self.memory: Memory | None = None
        """What users remember from round to round, where an algorithm has them remember anything."""
        self.store: HeadStore | None = None
        """Where users keep their own predictors; nowhere unless a folder is given."""

    # What an algorithm writes.

    def tasks(self) -> dict[str, Task]:
        """Name of a task -> function of (block of users, shared parameters, announced settings).

        It returns one contribution a user, not clipped yet: an array (B, ...), or Contributions that need no such array; a
        tuple of these where a round has several sums.
        """
        return {} if self.init is None else {self.init.task: self.init.contributions}

    def weights(self, block: Cohort, shared: NDArrays) -> Array:
        """The users' own predictors w_i (B, d) given the published model; they never leave the client."""
        raise TypeError(f"{type(self).__name__} does not say how a user predicts")

    def blocks(self, users: Ids | None = None) -> Iterator[Cohort]:
        """The users (all, or those at the given places) with the examples that tasks see, some users at a time."""
        return self.seen.blocks(users, examples=self.train)

    def portions(self, task: str, users: Ids | None) -> Iterator[Cohort]:
        """The same for one task, where it wants them otherwise."""
        return self.blocks(users)

    def judged(self) -> Iterator[Cohort]:
        """The users as they are judged at the end, some at a time."""
        return self.cohort.blocks()

    def own_errors(self, block: Cohort, shared: NDArrays) -> Array:
        """The error (B,) of each user's own predictor, given the published model; simulations only."""
        assert block.truth is not None
        return block.truth.errors(self.weights(block, shared))

    def rival_errors(self, block: Cohort) -> dict[str, Array]:
        """The errors (B,) of those to compare with."""
        assert block.truth is not None
        return {name: block.truth.errors(W) for name, W in self.rivals(block).items()}

    def rivals(self, block: Cohort) -> dict[str, Array]:
        """Predictors (B, d) to compare with: each user alone, and the oracle that knows the true representation."""
        assert block.truth is not None
        X, y, U_star = block.X[:, self.final], block.y[:, self.final], block.truth.U_star
        return {"alone": lstsq(block.X, block.y), "oracle": fit_heads(U_star, X, y) @ U_star.T}

    # What all share.

    def to_client(self) -> Client:
        """As Flower's loop calls it."""
        return FlowerClient(self)

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """The cohort's sums of clipped contributions and, where asked for, where their norms lie."""
        task = self.tasks()[str(config["task"])]
        clips = np.frombuffer(config["clip"]) if config["release"] else np.ones(1)  # type: ignore[arg-type]
        measure = MEASURES.get(str(config["measure"]))
        totals: dict[int, Any] = {}
        counts: dict[int, Any] = {}
        with np.errstate(all="ignore"):  # a user whose own numbers overflow contributes nothing
            for block in self.portions(str(config["task"]), self._asked(config)):
                mine = task(block, parameters, config)
                for i, part in enumerate(mine if isinstance(mine, tuple) else (mine,)):
                    clip = float(clips[min(i, len(clips) - 1)])
                    total, norms = (Dense(part) if isinstance(part, np.ndarray) else part).clipped(
                        clip
                    )
                    totals[i] = totals.get(i, 0.0) + total
                    if measure is not None:
                        counts[i] = counts.get(i, 0.0) + measure.count(norms, clip)
        if "sampling" in config and not totals:  # nobody took part, which nobody is to know
            totals[0] = np.zeros(sum(array.size for array in parameters))
        sums = [np.asarray(total) for total in totals.values()] if config["release"] else []
        return sums + list(counts.values()), len(self.cohort), {"step": config["step"]}

    def _asked(self, config: dict[str, Scalar]) -> Ids | None:
        """Places of those who take part in this step: all (None), by coins of their own, or those of the announced group."""
        if "sampling" in config:
            return np.flatnonzero(coins(self.cohort.ids, config))
        if "group" not in config:
            return None
        groups = groups_of(
            self.cohort.ids, *(int(config[key]) for key in ("users", "groups", "seed"))
        )
        return np.flatnonzero(groups == config["group"])

    def keep(self, shared: NDArrays) -> None:
        """Put every user's own predictor where the user keeps it, if there is such a place."""
        if self.store is not None:
            for block in self.cohort.blocks():
                self.store.save(block.ids, self.weights(block, shared))

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Take the published model; where it is asked for, tell sums of errors over the cohort.

        Errors are not private: they are told in simulations only, where the truth is known.
        """
        self.keep(parameters)
        if not config["judge"]:
            return 0.0, 1, {}
        if self.cohort.truth is None:
            raise ValueError(
                "errors of real users are not told: they would leave without passing the noise gate"
            )
        tally = Tally()
        for block in self.judged():
            assert block.truth is not None
            errors = {"own": self.own_errors(block, parameters), **self.rival_errors(block)}
            tally.add(errors, block.truth.scale, block.judging, block.m)
        return tally.sums["own"] / len(self.cohort), len(self.cohort), tally.metrics()
