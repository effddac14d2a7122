"""How near a round is to what the machine can do: python benchmarks/bench_limits.py [--n 1000000] [overrides, as privfed run].

A FedRep round reads every user's examples once and computes little with them. Measured in one run, with as many threads as the
rounds use: how fast memory is read and written (STREAM's triad; reading alone, which is what a round does), how fast BLAS
multiplies matrices, and the rounds. A limit is the best of several tries, before and after the rounds; a round is the median.
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
"""Of each array of the triad, 256 MB: far more than any cache holds."""
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
    """Seconds of the fastest call but the first, which warms up."""
    seconds = []
    for _ in range(1 + tries):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def bandwidth(threads: int, entries: int = ENTRIES) -> dict[str, float]:
    """Bytes a second of the triad, counted as STREAM does (two arrays read, one written), and of reading alone."""
    arrays = [np.full(entries, float(i)) for i in range(3)]
    edges = [entries * i // threads for i in range(threads + 1)]
    parts = [[x[first:last] for x in arrays] for first, last in pairwise(edges)]
    with ThreadPoolExecutor(threads) as pool:
        triad = best(
            lambda: list(pool.map(lambda part: _triad(part[0], part[1], part[2], 3.0), parts))
        )
        # The first two, to read as far beyond the caches as the triad does.
        read = best(lambda: list(pool.map(lambda part: _read(part[0]) + _read(part[1]), parts)))
    return {"triad": 3 * arrays[0].nbytes / triad, "read": 2 * arrays[0].nbytes / read}


def product_seconds(A: Any, B: Any, threads: int, tries: int = TRIES) -> float:
    """Of A^T B (with A for B NumPy makes use of symmetry), by the faster of two ways to use the threads.

    BLAS's own threads wait for each other in a loop, which on a busy machine takes longer than one thread alone; so rows are
    also shared out among Python's threads, with one of BLAS each.
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
    """Floating-point operations a second of a matrix product."""
    speeds = {}
    for dtype in (np.float64, np.float32):
        A, B = (
            np.random.default_rng(i).standard_normal((size, size)).astype(dtype) for i in range(2)
        )
        speeds[f"gemm {np.dtype(dtype).name}"] = 2 * size**3 / product_seconds(A, B, threads)
    return speeds


def limits(threads: int, entries: int = ENTRIES, size: int = GEMM) -> dict[str, float]:
    """What the machine can do, a second."""
    return bandwidth(threads, entries) | gemm(threads, size)


def operations(m: int, d: int, k: int) -> int:
    """Additions and multiplications a user needs in a leave-one-out round.

    P = X U and the weighted sum of examples 2mdk each; norm and addition to the sum 2dk each; Gram matrix, two triangular
    solves, leverages, residuals and weights of m examples mk(3k + 11).
    """
    return 4 * m * d * k + 4 * d * k + m * k * (3 * k + 11)


def against_limits(
    n: int, rounds: int, overrides: Sequence[str] = (), entries: int = ENTRIES, size: int = GEMM
) -> list[Row]:
    """One row a resource: what a round needs of it, what it got, what there is."""
    settings = ["init=random", f"data.n={n}", f"rounds={rounds}", *overrides]
    Experiment(
        compose([*settings, "data.n=1000", "rounds=2"])
    ).run()  # compile and load before anything is timed
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
