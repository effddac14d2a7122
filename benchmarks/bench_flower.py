"""Private FedRep on stock Flower: its simulation engine on Ray, its DP strategy, one user per node.

bench_rivals.py starts it:

    python -c "import bench_flower; bench_flower.main('PROBLEM.npz', 'ANSWER.npz', ROUNDS)"
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from bench_user import NOISE, Array, gradient, stepped
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation


@cache
def problem(path: str) -> dict[str, Array]:
    """Return the users' data, read once per process."""
    with np.load(path) as file:
        return dict(file)


def train(message: Message, context: Context) -> Message:
    """Return a user's embedding after a step of size 1: Flower's strategies expect a new model."""
    data, i = (
        problem(str(message.content.config_records["config"]["path"])),
        int(context.node_config["partition-id"]),
    )
    U = message.content.array_records["arrays"].to_numpy_ndarrays()[0]
    arrays = ArrayRecord([U - gradient(data["X"][i], data["y"][i], U).T])
    # All users have the same weight. Weights by number of examples, which are Flower's default,
    # would break the sensitivity.
    return Message(
        RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}),
        reply_to=message,
    )


class FedRep(DifferentialPrivacyServerSideFixedClipping):
    """Stock clipping, averaging and noise, then FedRep's step.

    The first round has no noise, so that its sum can be checked.
    """

    def __init__(self, n: int, bound: float) -> None:
        average = FedAvg(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
        super().__init__(average, noise_multiplier=0.0, clipping_norm=bound, num_sampled_clients=n)
        self.seconds: list[float] = []
        self.total: Any = None
        self.clock = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Start the clock."""
        self.clock = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return U <- QR(U - eta_t G)."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:
            raise RuntimeError("users failed")
        U, n = self.current_arrays.to_numpy_ndarrays()[0], self.num_sampled_clients
        total = n * (U - arrays.to_numpy_ndarrays()[0]).T
        after = ArrayRecord([stepped(U, total, n, server_round - 1)])
        self.seconds.append(time.perf_counter() - self.clock)
        if server_round == 1:
            self.total, self.noise_multiplier = total, NOISE / self.clipping_norm
        return after, metrics


def main(path: str, answer: str, rounds: int) -> None:
    """Run one round that starts processes and is checked, then `rounds` rounds that are timed."""
    data, server, client = problem(path), ServerApp(), ClientApp()
    strategy = FedRep(len(data["X"]), float(data["bound"]))
    client.train()(train)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy.start(
            grid, ArrayRecord([data["U"]]), 1 + rounds, train_config=ConfigRecord({"path": path})
        )

    # One process per core; the default reserves two cores per user.
    run_simulation(
        server, client, len(data["X"]), backend_config={"client_resources": {"num_cpus": 1}}
    )
    np.savez(answer, total=strategy.total, seconds=strategy.seconds[1:])
