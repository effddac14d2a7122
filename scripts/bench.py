"""What a run costs, as ratios measured in one process: make bench, or python scripts/bench.py [--quick].

The reference is a plain vectorised NumPy implementation of the same rounds (same estimator, clip, noise and retraction) on the
same data, with all of BLAS's threads. Both sides are timed in turn and compared by medians, as machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_linear import alternating_minimisation, low_rank_step
from bench_networks import networks
from bench_runtimes import over_the_network, processes
from rich.console import Console
from rich.table import Table

from privfed.config import compose
from privfed.experiment import Experiment
from privfed.linalg import Array, retraction

ROUNDS = 20
CLIP = 0.05
Gradients = Callable[[Array, Array, Array, np.random.Generator], Array]


def plain_leave_one_out(X: Array, y: Array, U: Array, rng: np.random.Generator) -> Array:
    """Per-user gradients (n, k, d), every example judged by the head fitted without it."""
    P = X @ U
    inverse = np.linalg.inv(np.matmul(P.transpose(0, 2, 1), P))
    v = np.matmul(inverse, np.matmul(P.transpose(0, 2, 1), y[..., None]))
    Q = np.matmul(P, inverse)
    leverage = np.sum(Q * P, axis=2)
    e = (y - np.matmul(P, v)[..., 0]) / (1 - leverage)
    V = v[:, None, :, 0] - Q * e[..., None]
    return np.matmul((V * (-2 / X.shape[1] * e)[..., None]).transpose(0, 2, 1), X)


def plain_two_batches(X: Array, y: Array, U: Array, rng: np.random.Generator) -> Array:
    """Per-user gradients (n, k, d) by two disjoint random batches, head and gradient."""
    n, m, _ = X.shape
    order = np.argsort(rng.random((n, m)), axis=1)
    users, half = np.arange(n)[:, None], m // 2
    head, other = order[:, :half], order[:, half:]
    P, X_other = X[users, head] @ U, X[users, other]
    gram = np.matmul(P.transpose(0, 2, 1), P)
    v = np.linalg.solve(gram, np.matmul(P.transpose(0, 2, 1), y[users, head][..., None]))[..., 0]
    r = np.matmul(X_other @ U, v[..., None])[..., 0] - y[users, other]
    return v[:, :, None] * np.matmul((2 / (m - half) * r)[:, None, :], X_other)


ESTIMATORS: dict[str, Gradients] = {"leave-one-out": plain_leave_one_out, "two-batches": plain_two_batches}


def plain_rounds(gradients: Gradients, X: Array, y: Array, U: Array, rounds: int) -> float:
    """Seconds for whole private rounds in plain NumPy."""
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for t in range(rounds):
        G = gradients(X, y, U, rng)
        norms = np.sqrt(np.sum(G * G, axis=(1, 2)))
        factors = np.minimum(1, CLIP / norms)
        mean = (np.tensordot(factors, G, 1) + 2 * CLIP / 0.05 * rng.standard_normal(G.shape[1:])) / len(X)
        U = retraction(U - 8 * 0.85**t * mean.T)
    return time.perf_counter() - start


def our_rounds(*overrides: str) -> tuple[float, Experiment]:
    """Seconds of the training rounds of a whole run through Flower's loop."""
    experiment = Experiment(compose([f"rounds={ROUNDS}", f"algo.clip={CLIP}", *overrides]))
    return experiment.run().result["time"]["rounds_s"], experiment


def against_numpy(repetitions: int) -> Table:
    table = Table(
        title="training rounds at n=20000, d=50, k=2, m=10 (medians, million user-rounds a second)", title_justify="left"
    )
    for column in ("estimator", "privfed", "plain NumPy", "ratio"):
        table.add_column(column, justify="left" if column == "estimator" else "right")
    for name, gradients in ESTIMATORS.items():
        ours, plain = [], []
        for _ in range(repetitions):
            seconds, experiment = our_rounds(f"algo.estimator={name}")
            ours.append(seconds / ROUNDS)
            users = experiment.data.cohort(0, experiment.data.n)
            U = retraction(experiment.data.U_star + 0.05)
            plain.append(plain_rounds(gradients, users.X, users.y, U, 3) / 3)
        mine, reference = statistics.median(ours), statistics.median(plain)
        speeds = [f"{20000 / seconds / 1e6:.2f}" for seconds in (mine, reference)]
        table.add_row(name, *speeds, f"{reference / mine:.2f}")
    return table


def growth(repetitions: int) -> Table:
    table = Table(title="cost grows linearly in the number of users", title_justify="left")
    for column in ("users", "ms a round", "ns a user-round", "against n=20000"):
        table.add_column(column, justify="right")
    cost = {
        n: statistics.median(our_rounds(f"data.n={n}")[0] / ROUNDS for _ in range(repetitions)) for n in (5000, 20000, 80000)
    }
    for n, seconds in cost.items():
        each = seconds / n
        table.add_row(f"{n:,}", f"{1e3 * seconds:.1f}", f"{1e9 * each:.0f}", f"{each / (cost[20000] / 20000):.2f}")
    return table


def one_user_a_node(repetitions: int) -> Table:
    table = Table(title="one user a node: what Flower's messages cost (n=2000)", title_justify="left")
    for column in ("nodes", "ms a round", "node calls a second", "against one cohort a core"):
        table.add_column(column, justify="right")
    cores = len(os.sched_getaffinity(0))
    cost = {
        nodes: statistics.median(our_rounds("data.n=2000", f"runtime.nodes={nodes}")[0] / ROUNDS for _ in range(repetitions))
        for nodes in (cores, 2000)
    }
    for nodes, seconds in cost.items():
        table.add_row(f"{nodes:,}", f"{1e3 * seconds:.1f}", f"{nodes / seconds:,.0f}", f"{seconds / cost[cores]:.0f}")
    return table


def whole_command() -> Table:
    """The README's command in a process of its own."""
    table = Table(title="python -m privfed.run algo=fedrep eps=1, from start to report", title_justify="left")
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "privfed.run", "--quiet", f"out={folder}"], check=True)
        seconds = time.perf_counter() - start
        result = json.loads((Path(folder) / "result.json").read_text())
    for column in ("wall s", "of it rounds s", "peak memory MB"):
        table.add_column(column, justify="right")
    table.add_row(f"{seconds:.2f}", f"{result['time']['rounds_s']:.2f}", f"{result['peak_rss_mb']:.0f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repetition of everything, fewer users on Ray")
    repetitions = 1 if parser.parse_args().quick else 5
    console = Console(highlight=False)
    our_rounds("data.n=1000")  # compile and load before anything is timed
    console.print(f"{len(os.sched_getaffinity(0))} cores, NumPy {np.__version__}")
    console.print(against_numpy(repetitions))
    console.print(growth(repetitions))
    console.print(one_user_a_node(max(1, repetitions // 2)))
    console.print(alternating_minimisation(max(1, repetitions // 2)))
    console.print(low_rank_step(max(1, repetitions // 2)))
    for table in networks(quick=repetitions == 1):
        console.print(table)
    console.print(processes(20_000 if repetitions == 1 else 200_000, ROUNDS, max(1, repetitions // 2)))
    console.print(over_the_network(max(1, repetitions // 2)))
    console.print(whole_command())


if __name__ == "__main__":
    main()
