"""FedRep's rounds against plain vectorised NumPy, with many users and with many nodes.

The reference has the same estimator, clip, noise and retraction, the same data, and all of BLAS's
threads. Both sides are timed in turn and compared by medians, because machines are noisy.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from bench_table import Column, Row, Section

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.foundation.linalg import Array, retraction

ROUNDS = 20
CLIP = 0.05
USERS = 20_000
Gradients = Callable[[Array, Array, Array, np.random.Generator], Array]


def plain_leave_one_out(X: Array, y: Array, U: Array, rng: np.random.Generator) -> Array:
    """Return per-user gradients (n, k, d); every example is judged by a head fitted without it."""
    P = X @ U
    inverse = np.linalg.inv(np.matmul(P.transpose(0, 2, 1), P))
    v = np.matmul(inverse, np.matmul(P.transpose(0, 2, 1), y[..., None]))
    Q = np.matmul(P, inverse)
    leverage = np.sum(Q * P, axis=2)
    e = (y - np.matmul(P, v)[..., 0]) / (1 - leverage)
    V = v[:, None, :, 0] - Q * e[..., None]
    return np.matmul((V * (-2 / X.shape[1] * e)[..., None]).transpose(0, 2, 1), X)


def plain_two_batches(X: Array, y: Array, U: Array, rng: np.random.Generator) -> Array:
    """Return per-user gradients (n, k, d) by two disjoint random batches, head and gradient."""
    n, m, _ = X.shape
    order = np.argsort(rng.random((n, m)), axis=1)
    users, half = np.arange(n)[:, None], m // 2
    head, other = order[:, :half], order[:, half:]
    P, X_other = X[users, head] @ U, X[users, other]
    gram = np.matmul(P.transpose(0, 2, 1), P)
    v = np.linalg.solve(gram, np.matmul(P.transpose(0, 2, 1), y[users, head][..., None]))[..., 0]
    r = np.matmul(X_other @ U, v[..., None])[..., 0] - y[users, other]
    return v[:, :, None] * np.matmul((2 / (m - half) * r)[:, None, :], X_other)


ESTIMATORS: dict[str, Gradients] = {
    "leave-one-out": plain_leave_one_out,
    "two-batches": plain_two_batches,
}


def plain_rounds(gradients: Gradients, X: Array, y: Array, U: Array, rounds: int) -> float:
    """Return the seconds of `rounds` private rounds in plain NumPy."""
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    for t in range(rounds):
        G = gradients(X, y, U, rng)
        norms = np.sqrt(np.sum(G * G, axis=(1, 2)))
        factors = np.minimum(1, CLIP / norms)
        mean = (
            np.tensordot(factors, G, 1) + 2 * CLIP / 0.05 * rng.standard_normal(G.shape[1:])
        ) / len(X)
        U = retraction(U - 8 * 0.85**t * mean.T)
    return time.perf_counter() - start


def our_rounds(*overrides: str) -> tuple[float, Experiment]:
    """Return the seconds of all training rounds of a run through Flower's loop, and the run."""
    experiment = Experiment(compose([f"rounds={ROUNDS}", f"algo.clip={CLIP}", *overrides]))
    return experiment.run().result["time"]["rounds_s"], experiment


def against_numpy(repetitions: int, n: int = USERS) -> list[Row]:
    """Return one row per estimator: user-rounds per second."""
    rows = []
    for name, gradients in ESTIMATORS.items():
        ours, plain = [], []
        for _ in range(repetitions):
            seconds, experiment = our_rounds(f"data.n={n}", f"algo.estimator={name}")
            ours.append(seconds / ROUNDS)
            data: Any = experiment.data
            # NumPy would convert data in single precision in every round.
            users = data.cohort(0, n).exact()
            U = retraction(data.U_star + 0.05)
            plain.append(plain_rounds(gradients, users.X, users.y, U, 3) / 3)
        mine, reference = statistics.median(ours), statistics.median(plain)
        speeds = {
            "users_per_s": n / mine,
            "plain_users_per_s": n / reference,
            "ratio": reference / mine,
        }
        rows.append({"n": n, "estimator": name, **speeds})
    return rows


def growth(repetitions: int, sizes: tuple[int, ...] = (5000, 20_000, 80_000)) -> list[Row]:
    """Return one row per number of users: cost per user, relative to that of the middle size."""
    cost = {
        n: statistics.median(our_rounds(f"data.n={n}")[0] / ROUNDS for _ in range(repetitions))
        for n in sizes
    }
    middle = sizes[len(sizes) // 2]
    base = cost[middle] / middle
    return [
        {
            "n": n,
            "base": middle,
            "seconds": seconds,
            "user_s": seconds / n,
            "ratio": seconds / n / base,
        }
        for n, seconds in cost.items()
    ]


def one_user_a_node(repetitions: int, n: int = 2000) -> list[Row]:
    """Return one row per number of nodes: the cost of Flower's messages."""
    cores = len(os.sched_getaffinity(0))
    names = {"a cohort a core": cores, "a node a user": n}
    cost = {
        name: statistics.median(
            our_rounds(f"data.n={n}", f"runtime.nodes={nodes}")[0] / ROUNDS
            for _ in range(repetitions)
        )
        for name, nodes in names.items()
    }
    base = cost["a cohort a core"]
    return [
        {
            "n": n,
            "spread": name,
            "nodes": names[name],
            "seconds": each,
            "calls": names[name] / each,
            "ratio": each / base,
        }
        for name, each in cost.items()
    ]


NUMPY = Section(
    "numpy",
    "Rounds against plain NumPy",
    "training rounds at n={n:,}, d=50, k=2, m=10 (medians, million user-rounds a second)",
    "Both estimators of FedRep's gradient, through Flower's loop, noise gate and ledger, against "
    "plain vectorised NumPy on the same data in double precision in the same process, timed in "
    "turn.",
    lambda effort: against_numpy(effort.repetitions),
    [
        Column("estimator", "estimator"),
        Column("privfed", "users_per_s", ".2f", 1e-6, "users/s", "higher"),
        Column("plain NumPy", "plain_users_per_s", ".2f", 1e-6),
        Column("ratio", "ratio", ".2f", better="higher", relative=True),
    ],
    ["estimator"],
)
GROWTH = Section(
    "growth",
    "Cost a user",
    "cost a user against the number of users",
    "What a user costs a round, with few users and with many. With few, Flower's messages and the "
    "release weigh more.",
    lambda effort: growth(effort.repetitions),
    [
        Column("users", "n", ",d"),
        Column("ms a round", "seconds", ".1f", 1e3),
        Column("ns a user-round", "user_s", ".0f", 1e9, "s", "lower"),
        Column("against n={base:,}", "ratio", ".2f", better="lower", relative=True),
    ],
    ["n"],
)
NODES = Section(
    "nodes",
    "One user a node",
    "one user a node: what Flower's messages cost (n={n:,})",
    "The same run with every user on a node of its own, in one process, and with one cohort a "
    "core.",
    lambda effort: one_user_a_node(effort.few),
    [
        Column("users spread", "spread"),
        Column("nodes", "nodes", ",d"),
        Column("ms a round", "seconds", ".1f", 1e3),
        Column("node calls a second", "calls", ",.0f", unit="calls/s", better="higher"),
        Column("against a cohort a core", "ratio", ".1f", better="lower", relative=True),
    ],
    ["spread"],
)
SECTIONS = (NUMPY, GROWTH, NODES)
