"""Priv-AltMin against plain NumPy, DP-RGrad's step against a full SVD: sections of `make bench`."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from bench_table import Column, Row, Section, seconds
from threadpoolctl import threadpool_limits

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.foundation.linalg import Array, retraction

SIZE, RANK, USERS = 1000, 5, 8


def low_rank_step(repetitions: int) -> list[Row]:
    """Time the server's update, a user's gradient, and the full SVD that the manifold avoids."""
    rng = np.random.default_rng(0)
    sizes = [f"data.n={USERS}", f"data.d1={SIZE}", f"data.d2={SIZE}", f"data.r={RANK}"]
    experiment = Experiment(compose(["algo=rgrad", *sizes]))
    strategy, client = experiment.strategy, experiment.factory(experiment.nodes["0"])
    users = len(experiment.nodes["0"])
    U, V = (retraction(rng.standard_normal((SIZE, RANK))) for _ in range(2))
    start = [U, np.linspace(1.0, 0.7, RANK), V]
    last = strategy.plan[-1]
    told = strategy.announcement(last)
    mean = 1e-3 * rng.standard_normal(strategy.shapes(last)["gradient"])
    full = rng.standard_normal((SIZE, SIZE))

    def step() -> None:
        strategy.shared = start
        strategy.shared = strategy.update(1, mean)

    def whole() -> float:
        return seconds(lambda: np.linalg.svd(full), repetitions)

    # On a busy machine one thread is faster than several threads that wait for each other.
    with threadpool_limits(1):
        alone = whole()
    cost = {
        "full SVD": min(alone, whole()),
        "server's step: project, retract": seconds(step, 10 * repetitions),
        "one user's projected gradient": seconds(
            lambda: client.gradient(client.cohort, start, told), repetitions
        )
        / users,
    }
    svd = cost["full SVD"]
    return [
        {"size": SIZE, "rank": RANK, "work": name, "seconds": each, "ratio": svd / each}
        for name, each in cost.items()
    ]


def plain_moments(X: Array, y: Array, U: Array) -> Array:
    """Return the change of U (d, k) that one noiseless Priv-AltMin iteration finds.

    The computation is vectorised over users, without further optimisation.

    Args:
        X: examples (n, m, d).
        y: targets (n, m).
        U: shared embedding (d, k).
    """
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
    weight = np.minimum(
        1, np.minimum(1.0 / np.linalg.norm(A, axis=(1, 2)), 0.002 / np.linalg.norm(b, axis=1))
    )
    return np.linalg.solve(np.tensordot(weight, A, 1), weight @ b).reshape(k, d).T


def alternating_minimisation(repetitions: int) -> list[Row]:
    """Time whole rounds at n=20000, in which every user takes part once."""
    ours, plain, whole = [], [], []
    for _ in range(repetitions):
        experiment = Experiment(compose(["algo=altmin"]))
        start = time.perf_counter()
        spent = experiment.run().result["time"]
        whole.append(time.perf_counter() - start)
        ours.append(spent["rounds_s"])
        # The reference holds an A_i of 100 x 100 per user, so it gets 1000 users at a time.
        data: Any = experiment.data
        users = data.cohort(0, data.n).exact()
        U = retraction(data.U_star + 0.05)
        start = time.perf_counter()
        for part in range(0, experiment.data.n, 1000):
            plain_moments(users.X[part : part + 1000], users.y[part : part + 1000], U)
        plain.append(time.perf_counter() - start)
    mine, reference = statistics.median(ours), statistics.median(plain)
    return [
        {
            "n": experiment.data.n,
            "rounds_s": mine,
            "plain_s": reference,
            "ratio": reference / mine,
            "whole_s": statistics.median(whole),
        }
    ]


ALTMIN = Section(
    "altmin",
    "Priv-AltMin against plain NumPy",
    "Priv-AltMin, all rounds at n={n:,}, d=50, k=2, m=10 (medians)",
    "Every user takes part in one round. The reference does the same work for all users in plain "
    "vectorised NumPy.",
    lambda effort: alternating_minimisation(effort.few),
    [
        Column("privfed s", "rounds_s", ".2f", unit="s", better="lower"),
        Column("plain NumPy s", "plain_s", ".2f"),
        Column("ratio", "ratio", ".1f", better="higher", relative=True),
        Column("whole run s", "whole_s", ".2f", unit="s", better="lower"),
    ],
)
RGRAD = Section(
    "rgrad",
    "DP-RGrad's step against a full SVD",
    "DP-RGrad at d1 = d2 = {size}, r = {rank} (medians)",
    "The server's whole update from a released gradient, and a user's gradient, beside the full "
    "SVD that the manifold avoids.",
    lambda effort: low_rank_step(effort.few),
    [
        Column("work", "work"),
        Column("ms", "seconds", ".2f", 1e3),
        Column("times faster than a full SVD", "ratio", ",.0f", better="higher", relative=True),
    ],
    ["work"],
)
SECTIONS = (ALTMIN, RGRAD)
