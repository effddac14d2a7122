"""DP-RGrad's step against a full SVD of the same size: python scripts/bench_rgrad.py [--quick]."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from privfed.config import compose
from privfed.experiment import Experiment
from privfed.linalg import retraction

SIZE, RANK, USERS = 1000, 5, 8


def seconds(work: Callable[[], Any], repetitions: int) -> float:
    """Median time of one call."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def low_rank_step(repetitions: int) -> Table:
    """The server's whole update from a released gradient, and a user's gradient, beside what the manifold avoids."""
    rng = np.random.default_rng(0)
    sizes = [f"data.n={USERS}", f"data.d1={SIZE}", f"data.d2={SIZE}", f"data.r={RANK}"]
    experiment = Experiment(compose(["algo=rgrad", *sizes]))
    strategy, client = experiment.strategy, experiment.make_client("0")
    users = len(experiment.nodes["0"])
    U, V = (retraction(rng.standard_normal((SIZE, RANK))) for _ in range(2))
    start = [U, np.linspace(1.0, 0.7, RANK), V]
    mean = 1e-3 * rng.standard_normal(strategy.shape())
    full = rng.standard_normal((SIZE, SIZE))

    def step() -> None:
        strategy.shared = start
        strategy.step(1, mean)

    cost = {
        "full SVD": seconds(lambda: np.linalg.svd(full), repetitions),
        "server's step: project, retract": seconds(step, 10 * repetitions),
        "one user's projected gradient": seconds(lambda: client.gradient(client.cohort, start, {}), repetitions) / users,
    }
    table = Table(title=f"DP-RGrad at d1 = d2 = {SIZE}, r = {RANK} (medians)", title_justify="left")
    for column in ("work", "ms", "of a full SVD"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for name, each in cost.items():
        table.add_row(name, f"{1e3 * each:.2f}", f"1/{cost['full SVD'] / each:.0f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one repetition of everything")
    Console(highlight=False).print(low_rank_step(1 if parser.parse_args().quick else 5))


if __name__ == "__main__":
    main()
