"""Measure how near a round is to the limits of the machine.

    python benchmarks/bench_limits.py [--n 1000000] [overrides, as for privfed run]

A FedRep round reads every user's examples once and computes little with them. One run measures,
with as many threads as the rounds use: how fast memory is read and written (STREAM's triad; reading
alone, which is what a round does), how fast BLAS multiplies matrices, and the rounds. A limit is
the best of several tries, before and after the rounds. The time of a round is the median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from bench_table import Column, Row, Section
from numba import njit
from rich.console import Console
from threadpoolctl import threadpool_limits

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.runtimes.inprocess import InProcess

ENTRIES = 2**25
"""Number of entries of each array of the triad: 256 MB, far more than any cache holds."""
GEMM = 2048
TRIES = 5

compiled = njit(nogil=True, fastmath=True)


@compiled
def _triad(a, b, c, s):  # type: ignore[no-untyped-def]
    for i in range(len(a)):
        a[i] = b[i] + s * c[i]


@compiled
def _read(a):  # type: ignore[no-untyped-def]
    s = 0.0
    for i in range(len(a)):
        s += a[i]
    return s


def best(work: Callable[[], Any], tries: int = TRIES) -> float:
    """Return the seconds of the fastest of `tries` calls, after one that warms up."""
    seconds = []
    for _ in range(1 + tries):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def bandwidth(threads: int, entries: int = ENTRIES) -> dict[str, float]:
    """Return bytes per second of the triad and of reading alone.

    Bytes of the triad are counted as STREAM does: two arrays read, one written.
    """
    arrays = [np.full(entries, float(i)) for i in range(3)]
    edges = [entries * i // threads for i in range(threads + 1)]
    parts = [[x[first:last] for x in arrays] for first, last in pairwise(edges)]
    with ThreadPoolExecutor(threads) as pool:
        triad = best(
            lambda: list(pool.map(lambda part: _triad(part[0], part[1], part[2], 3.0), parts))
        )
        # Two arrays are read, because one alone might partly stay in the caches.
        read = best(lambda: list(pool.map(lambda part: _read(part[0]) + _read(part[1]), parts)))
    return {"triad": 3 * arrays[0].nbytes / triad, "read": 2 * arrays[0].nbytes / read}


def product_seconds(A: Any, B: Any, threads: int, tries: int = TRIES) -> float:
    """Return the seconds of A^T B by the faster of two ways to use the threads.

    BLAS's own threads wait for each other in a loop. On a busy machine this takes longer than one
    thread alone. So in the second way rows are divided among Python's threads, each with one thread
    of BLAS. If B is A, NumPy makes use of symmetry.
    """
    out = np.empty((A.shape[1], B.shape[1]), A.dtype)
    with threadpool_limits(threads):
        together = best(lambda: np.matmul(A.T, B, out=out), tries)
    edges = [len(A) * i // threads for i in range(threads + 1)]
    with threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
        parts = list(pairwise(edges))
        shared = best(
            lambda: sum(pool.map(lambda part: A[slice(*part)].T @ B[slice(*part)], parts)), tries
        )
    return min(together, shared)


def gemm(threads: int, size: int = GEMM) -> dict[str, float]:
    """Return floating-point operations per second of a matrix product, by precision."""
    speeds = {}
    for dtype in (np.float64, np.float32):
        A, B = (
            np.random.default_rng(i).standard_normal((size, size)).astype(dtype) for i in range(2)
        )
        speeds[f"gemm {np.dtype(dtype).name}"] = 2 * size**3 / product_seconds(A, B, threads)
    return speeds


def limits(threads: int, entries: int = ENTRIES, size: int = GEMM) -> dict[str, float]:
    """Return what the machine can do per second."""
    return bandwidth(threads, entries) | gemm(threads, size)


def operations(m: int, d: int, k: int) -> int:
    """Return the number of additions and multiplications per user in a leave-one-out round.

    P = X U and the weighted sum of examples need 2mdk each. The norm and the addition to the sum
    need 2dk each. The Gram matrix, two triangular solves, leverages, residuals and weights of m
    examples need mk(3k + 11).
    """
    return 4 * m * d * k + 4 * d * k + m * k * (3 * k + 11)


def against_limits(
    n: int, rounds: int, overrides: Sequence[str] = (), entries: int = ENTRIES, size: int = GEMM
) -> list[Row]:
    """Return one row per resource: what a round needs, what it gets, and what the machine has."""
    settings = ["init=random", f"data.n={n}", f"rounds={rounds}", *overrides]
    # Compile and load before anything is timed.
    Experiment(compose([*settings, "data.n=1000", "rounds=2"])).run()
    experiment = Experiment(compose(settings))
    assert isinstance(experiment.runtime, InProcess)
    data, threads = experiment.data, experiment.runtime.threads
    found = [limits(threads, entries, size)]
    stored = experiment.factory(range(1)).seen
    outcome = experiment.run()
    found.append(limits(threads, entries, size))
    best_of = {name: max(each[name] for each in found) for name in found[0]}
    seconds = statistics.median(row["seconds"] for row in outcome.rows if row["task"] == "gradient")
    needed = {
        "bytes": n * (stored.X[0].nbytes + stored.y[0].nbytes),
        "flop": n * operations(data.m, data.d, experiment.federation.k),
    }
    rows = []
    for name, limit in best_of.items():
        unit = "flop" if name.startswith("gemm") else "bytes"
        achieved = needed[unit] / seconds
        row = {
            "n": n,
            "threads": threads,
            "seconds": seconds,
            "users_per_s": n / seconds,
            "limit": name,
            "unit": unit,
        }
        speeds = {"achieved": achieved, "available": limit, "fraction": achieved / limit}
        rows.append(row | {"needed": needed[unit], "shortest": needed[unit] / limit, **speeds})
    return rows


SECTION = Section(
    "limits",
    "A round against the machine's limits",
    "a FedRep round of {n:,} users with {threads} threads against the machine's limits (a round "
    "is the median)",
    "A round reads every user's examples once and computes little with them. In the same run, "
    "with as many threads: how fast memory is read and written (STREAM's triad; reading alone, "
    "which is what a round does) and how fast BLAS multiplies matrices. A limit is the best of "
    "several tries, before and after the rounds. One run says little here: seven on one day gave "
    "0.48, 0.54, 0.50, 0.33, 0.51, 0.50 and 0.50 of the triad; rounds took 104 to 114 ms, and the "
    "triad 36 to 38 GB/s, but 58 in the run with 0.33.",
    lambda effort: against_limits(100_000 if effort.quick else 1_000_000, 10),
    [
        Column("limit", "limit"),
        Column("unit", "unit"),
        Column("a round needs, G", "needed", ".2f", 1e-9),
        Column("a round gets, G/s", "achieved", ".1f", 1e-9),
        Column("the machine gives, G/s", "available", ".1f", 1e-9),
        Column("fraction", "fraction", ".2f", better="higher", relative=True),
        Column("ms at the limit", "shortest", ",.1f", 1e3),
        Column("ms a round", "seconds", ",.1f", 1e3),
        Column("million users a second", "users_per_s", ".2f", 1e-6),
    ],
    ["limit"],
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=1_000_000, help="users; a million need 5 GB")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("overrides", nargs="*", help="settings of the run")
    chosen = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    Console(highlight=False, width=140).print(
        SECTION.table(against_limits(chosen.n, chosen.rounds, chosen.overrides))
    )


if __name__ == "__main__":
    os.environ.setdefault("PRIVFED_COMPILE", "always")
    main()
