"""The user side of every algorithm.

A client clips the part of each user of its cohort and adds the parts up. Only sums leave it.

What an algorithm writes:

    @task methods   what each user would send, for all users of a block at once, not clipped yet
    weights()       the users' own linear predictors, given the published model
    rivals()        predictors to compare with, in simulations

What base classes of families (networks, tables) write besides: `blocks`, `portions` and `judged`
say which users are computed together; `own_errors`, `rival_errors` and `keep` say how users are
judged, and what they keep of their own models.
"""

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

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.tensors import decoded
from privfed.data.cohort import Ids, coins, groups_of
from privfed.data.evaluation_metrics import HeldOut
from privfed.data.evaluation_tally import Tally
from privfed.federation.head_store import HeadStore
from privfed.federation.user_state import Memory
from privfed.foundation.linalg import Array
from privfed.kernels.least_squares import lstsq
from privfed.models.linear import fit_heads
from privfed.privacy.adaptive_clipping import MEASURES
from privfed.privacy.clipping import Contributions, Dense
from privfed.privacy.summation import Total

OK = Status(Code.OK, "")
Part = Contributions | Array
Task = Callable[[Any, NDArrays, Announcement], Part | tuple[Part, ...]]


def task(named: Any) -> Any:
    """Mark a method as a task that the server may ask for: `@task`, or `@task("name")`.

    The method takes (block of users, shared parameters, announcement) and returns one part per
    user, not clipped yet. The parts are an array (B, ...), or `Contributions` that need no such
    array. If a step has several sums, the method returns a tuple of these. A method that overrides
    a task replaces it under the same name.
    """
    if isinstance(named, str):
        return lambda method: _marked(method, named)
    return _marked(named, named.__name__)


def _marked(method: Any, name: str) -> Any:
    method.task_name = name
    return method


def tasks_of(owner: Any) -> dict[str, Task]:
    """Return the tasks of an object by name."""
    return {
        method.task_name: getattr(owner, name)
        for kind in type(owner).__mro__
        for name, method in vars(kind).items()
        if hasattr(method, "task_name")
    }


class FlowerClient(Client):
    """Translates between Flower's messages and a client that takes and returns arrays.

    It reads arrays with `arrays_of`, because Flower's own reader is not safe in several threads.
    """

    def __init__(self, client: NumPyClient) -> None:
        self.client = client

    def fit(self, ins: FitIns) -> FitRes:
        """Return the sums of the cohort."""
        arrays, users, metrics = self.client.fit(arrays_of(ins.parameters), ins.config)
        return FitRes(OK, ndarrays_to_parameters(arrays), users, metrics)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Hand over the published model, and return the errors that may be told."""
        loss, users, metrics = self.client.evaluate(arrays_of(ins.parameters), ins.config)
        return EvaluateRes(OK, loss, users, metrics)


def arrays_of(parameters: Parameters) -> NDArrays:
    """Return the arrays of a message, each writable and of 64-bit floating-point numbers.

    Raises:
        ValueError: if the message holds anything else.
    """
    arrays = [decoded(tensor) for tensor in parameters.tensors]
    if any(array is None for array in arrays):
        raise ValueError("the server sent something else than arrays of 64-bit numbers")
    return [np.array(array) for array in arrays]


class CohortClient(NumPyClient):
    """Serves the users of one cohort. An algorithm adds its tasks and how each user predicts."""

    train = slice(None)
    """Examples that tasks see."""
    final = slice(None)
    """Examples that final heads are fitted on."""
    takes_rows = True
    """Whether the client can learn from the rows of a real user's table."""
    nothing = 0.0
    """Target of an example that has no effect on training."""

    def __init__(self, cohort: Any, init: Any = None) -> None:
        self.cohort = cohort.without_broken_users(self.nothing)
        self.seen = self.cohort
        """The users as tasks see them; differs from `cohort` if examples are transformed once."""
        self.init = init
        """The user side of the initialiser: an object with tasks of its own."""
        self.memory: Memory | None = None
        """State that users keep between rounds; None if the algorithm keeps none."""
        self.store: HeadStore | None = None
        """Where users keep their own predictors; None if they are not kept."""

    # What an algorithm writes.

    def weights(self, block: Any, shared: NDArrays) -> Array:
        """Return the users' own predictors w_i (B, d); they never leave the client."""
        raise TypeError(f"{type(self).__name__} does not say how a user predicts")

    def blocks(self, users: Ids | None = None) -> Iterator[Any]:
        """Yield users (all, or those at the positions `users`) as tasks see them, in blocks."""
        return self.seen.blocks(users, examples=self.train)

    def portions(self, task: str, users: Ids | None) -> Iterator[Any]:
        """Yield the blocks for one task; override it if a task needs other blocks."""
        return self.blocks(users)

    def judged(self) -> Iterator[Any]:
        """Yield the users as they are judged at the end, in blocks."""
        return self.cohort.blocks()

    def own_errors(self, block: Any, shared: NDArrays) -> Array:
        """Return the error (B,) of each user's own predictor; simulations only."""
        assert block.truth is not None
        return block.truth.errors(self.weights(block, shared))

    def rival_errors(self, block: Any) -> dict[str, Array]:
        """Return the errors (B,) of what personal models are compared with."""
        assert block.truth is not None
        return {name: block.truth.errors(W) for name, W in self.rivals(block).items()}

    def judged_predictions(self, block: Any, shared: NDArrays) -> dict[str, HeldOut]:
        """Return predictions for the held-out rows of a block, `own` and rivals; simulations only.

        Only for data that hold rows out.
        """
        raise TypeError(f"{type(self).__name__} holds no rows out")

    def rivals(self, block: Any) -> dict[str, Array]:
        """Return predictors (B, d) to compare with: users alone, and the oracle that knows U*."""
        assert block.truth is not None
        X, y, U_star = block.X[:, self.final], block.y[:, self.final], block.truth.U_star
        return {
            "alone": lstsq(block.X, block.y),
            "oracle": fit_heads(U_star, X, y) @ U_star.T,
        }

    def keep(self, shared: NDArrays) -> None:
        """Save each user's own predictor in the store, if there is one."""
        if self.store is not None:
            for block in self.cohort.blocks():
                self.store.save(block.ids, self.weights(block, shared))

    # What all clients share.

    def tasks(self) -> dict[str, Task]:
        """Return the tasks of the algorithm and of its initialiser by name."""
        return {**({} if self.init is None else tasks_of(self.init)), **tasks_of(self)}

    def to_client(self) -> Client:
        """Return the client as Flower's loop calls it."""
        return FlowerClient(self)

    def fit(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Return the sums of the cohort's clipped parts, followed by counts of their norms.

        Args:
            parameters: shared parameters.
            config: announcement of the step. It decides whether sums, counts or both are sent.

        Returns:
            The arrays, the number of users of the cohort, and the number of the step.
        """
        told = Announcement.from_config(config)
        compute = self.tasks()[told.task]
        clips = told.clips if told.release else (1.0,)
        measure = MEASURES.get(told.measure)
        totals: dict[int, Total] = {}
        counts: dict[int, Any] = {}
        with np.errstate(all="ignore"):  # a user whose own numbers overflow contributes nothing
            for block in self.portions(told.task, self._asked(told)):
                mine = compute(block, parameters, told)
                for i, part in enumerate(mine if isinstance(mine, tuple) else (mine,)):
                    clip = clips[min(i, len(clips) - 1)]
                    held = Dense(part) if isinstance(part, np.ndarray) else part
                    total, norms = held.clipped(clip)
                    totals.setdefault(i, Total()).add(total)
                    if measure is not None:
                        counts[i] = counts.get(i, 0.0) + measure.count(norms, clip)
        if not totals:  # the server must not learn that no user took part
            totals = {i: Total(np.zeros(shape)) for i, shape in enumerate(told.shapes)}
            counts = {i: np.zeros(measure.size) for i in totals} if measure is not None else {}
        sums = [total.value for total in totals.values()] if told.release else []
        return sums + list(counts.values()), len(self.cohort), {"step": told.step}

    def _asked(self, told: Announcement) -> Ids | None:
        """Return the positions of the users who take part in this step; None means all."""
        if told.sampling < 1:
            thrown = coins(self.cohort.identities, told.sampling, told.seed, told.step, told.secret)
            return np.flatnonzero(thrown)
        if told.group is None:
            return None
        groups = groups_of(self.cohort.identities, told.groups, told.seed)
        return np.flatnonzero(groups == told.group)

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Take the published model; return sums of errors over the cohort if `judge` asks for them.

        Errors are not private. They are told in simulations only, in which the truth is known.

        Returns:
            The mean error, the number of users, and the sums of errors.

        Raises:
            ValueError: if errors of real users are asked for.
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
