"""Priv-AltMin against plain NumPy and DP-RGrad's step against a full SVD: two tables of `make bench`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.table import Table

from privfed.config import compose
from privfed.experiment import Experiment
from privfed.linalg import Array, retraction

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
    strategy, client = experiment.strategy, experiment.factory(experiment.nodes["0"])
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


def plain_moments(X: Array, y: Array, U: Array) -> Array:
    """The change of U that one noiseless Priv-AltMin iteration finds, vectorised over users without any care: (d, k)."""
    n, m, d = X.shape
    k = U.shape[1]
    P = X @ U
    V = np.empty((n, m, k))
    for j in range(m):
        kept = np.arange(m) != j
        Q, z = P[:, kept], y[:, kept]
        gram = np.matmul(Q.transpose(0, 2, 1), Q)
        V[:, j] = np.linalg.solve(gram, np.matmul(Q.transpose(0, 2, 1), z[..., None]))[..., 0]
    W = (V[..., None] * X[:, :, None, :]).reshape(n, m, k * d)
    A = np.matmul(W.transpose(0, 2, 1), W) / m
    r = y - np.sum(P * V, axis=2)
    b = np.matmul(W.transpose(0, 2, 1), r[..., None])[..., 0] / m
    weight = np.minimum(1, np.minimum(1.0 / np.linalg.norm(A, axis=(1, 2)), 0.002 / np.linalg.norm(b, axis=1)))
    return np.linalg.solve(np.tensordot(weight, A, 1), weight @ b).reshape(k, d).T


def alternating_minimisation(repetitions: int) -> Table:
    """Whole rounds at n=20000: every user takes part once."""
    ours, plain, whole = [], [], []
    for _ in range(repetitions):
        experiment = Experiment(compose(["algo=altmin"]))
        start = time.perf_counter()
        spent = experiment.run().result["time"]
        whole.append(time.perf_counter() - start)
        ours.append(spent["rounds_s"])
        # The reference holds an A_i of 100 x 100 for every user, so it gets them in parts of 1000.
        users = experiment.data.cohort(0, experiment.data.n)
        U = retraction(experiment.data.U_star + 0.05)
        start = time.perf_counter()
        for part in range(0, experiment.data.n, 1000):
            plain_moments(users.X[part : part + 1000], users.y[part : part + 1000], U)
        plain.append(time.perf_counter() - start)
    mine, reference = statistics.median(ours), statistics.median(plain)
    table = Table(title="Priv-AltMin, all rounds at n=20000, d=50, k=2, m=10 (medians)", title_justify="left")
    for column in ("privfed s", "plain NumPy s", "ratio", "whole run s"):
        table.add_column(column, justify="right")
    table.add_row(f"{mine:.2f}", f"{reference:.2f}", f"{reference / mine:.1f}", f"{statistics.median(whole):.2f}")
    return table
