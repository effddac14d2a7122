"""Private FedRep on Apple's pfl, in one process or several (torchrun). bench_rivals.py starts it:

    python bench_pfl.py PROBLEM.npz ANSWER.npz ROUNDS

A user is a pfl dataset. pfl's Gaussian mechanism clips and adds noise, its simulated backend adds
up. User and server compute in NumPy. One process uses NumPy's statistics, which pfl handles
fastest. Several processes use PyTorch's, because pfl adds up over processes only with those.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
from bench_user import NOISE, Array, gradient, stepped
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import FederatedAlgorithm
from pfl.common_types import Population
from pfl.context import CentralContext
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import AlgorithmHyperParams, ModelHyperParams
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Metrics
from pfl.model.base import Model
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from pfl.stats import MappedVectorStatistics

SEVERAL = "TORCHELASTIC_RUN_ID" in os.environ
if SEVERAL:
    import torch
    from pfl.internal.ops import pytorch_ops

    set_framework_module(pytorch_ops)
    torch.set_num_threads(1)


class Representation(Model):
    """The shared embedding U (d, k)."""

    def __init__(self, U: Array, n: int) -> None:
        self.U, self.n, self.t = U, n, 0
        self.total = np.zeros(U.T.shape)

    def apply_model_update(
        self, statistics: MappedVectorStatistics
    ) -> tuple[Representation, Metrics]:
        """Take a gradient step, then QR."""
        self.total = np.asarray(statistics["U"], dtype=np.float64)
        self.U = stepped(self.U, self.total, self.n, self.t)
        self.t += 1
        return self, Metrics()


class FedRep(FederatedAlgorithm):
    """Asks every user in every round; keeps the time at the end of each round."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds, self.clock = rounds, [time.perf_counter()]

    def get_next_central_contexts(
        self,
        model: Any,
        iteration: int,
        algorithm_params: Any,
        model_train_params: Any,
        model_eval_params: Any = None,
    ) -> tuple[Any, Any, Any]:
        """Return one query per round."""
        if iteration == self.rounds:
            return None, model, Metrics()
        context = CentralContext(
            current_central_iteration=iteration,
            do_evaluation=False,
            cohort_size=model.n,
            population=Population.TRAIN,
            model_train_params=model_train_params,
            model_eval_params=None,
            algorithm_params=algorithm_params,
            seed=self._get_seed(),
        )
        return (context,), model, Metrics()

    def simulate_one_user(
        self, model: Any, user_dataset: Any, central_context: Any
    ) -> tuple[Any, Any]:
        """Return the user's gradient, not clipped yet."""
        X, y = user_dataset.raw_data
        G = gradient(X, y, model.U)
        return MappedVectorStatistics({"U": torch.from_numpy(G) if SEVERAL else G}), Metrics()

    def process_aggregated_statistics(
        self, central_context: Any, aggregate_metrics: Any, model: Any, statistics: Any
    ) -> Any:
        """Take the server's step."""
        updated = model.apply_model_update(statistics)
        self.clock.append(time.perf_counter())
        return updated


def run(
    X: Array, y: Array, U: Array, bound: float, noise: float, rounds: int
) -> tuple[Array, list[float]]:
    """Return the noised sum (k, d) of the last round, and the seconds of every round."""
    np.random.seed(0)  # noqa: NPY002 (pfl's processes agree on users by NumPy's global seed)
    users = FederatedDataset.from_slices(
        list(zip(X, y, strict=True)), MinimizeReuseUserSampler(range(len(X)))
    )
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(bound, noise / bound))
    algorithm, model = FedRep(rounds), Representation(U, len(X))
    backend = SimulatedBackend(users, users, [mechanism])
    algorithm.run(
        AlgorithmHyperParams(), backend, model, ModelHyperParams(), send_metrics_to_platform=False
    )
    return model.total, list(np.diff(algorithm.clock))


def main(problem: str, answer: str, rounds: str) -> None:
    with np.load(problem) as file:
        X, y, U, bound = file["X"], file["y"], file["U"], float(file["bound"])
    total, _ = run(X, y, U, bound, 0.0, 1)  # also warms up
    _, seconds = run(X, y, U, bound, NOISE, int(rounds))
    if os.environ.get("RANK", "0") == "0":
        np.savez(answer, total=total, seconds=seconds)
    if SEVERAL:  # otherwise a thread of PyTorch may abort the process when it ends
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
