"""How near a round is to what the machine can do: python scripts/bench_limits.py [--n 1000000] [overrides, as privfed.run].

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
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from privfed.config import compose
from privfed.experiment import Experiment

ENTRIES = 2**25
"""Of each array of the triad, 256 MB: far more than any cache holds."""
GEMM = 2048
TRIES = 5
Row = dict[str, Any]

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
        triad = best(lambda: list(pool.map(lambda part: _triad(part[0], part[1], part[2], 3.0), parts)))
        # The first two, to read as far beyond the caches as the triad does.
        read = best(lambda: list(pool.map(lambda part: _read(part[0]) + _read(part[1]), parts)))
    return {"triad": 3 * arrays[0].nbytes / triad, "read": 2 * arrays[0].nbytes / read}


def gemm(threads: int, size: int = GEMM) -> dict[str, float]:
    """Floating-point operations a second of a matrix product."""
    speeds = {}
    for dtype in (np.float64, np.float32):
        A = np.random.default_rng(0).standard_normal((size, size)).astype(dtype)
        C = np.empty_like(A)
        with threadpool_limits(threads):
            speeds[f"gemm {np.dtype(dtype).name}"] = 2 * size**3 / best(partial(np.matmul, A, A, out=C))
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


def against_limits(n: int, rounds: int, overrides: Sequence[str] = (), entries: int = ENTRIES, size: int = GEMM) -> list[Row]:
    """One row a resource: what a round needs of it, what it got, what there is."""
    settings = ["init=random", f"data.n={n}", f"rounds={rounds}", *overrides]
    Experiment(compose([*settings, "data.n=1000", "rounds=2"])).run()  # compile and load before anything is timed
    experiment = Experiment(compose(settings))
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
        row = {"n": n, "threads": threads, "seconds": seconds, "limit": name, "unit": unit, "needed": needed[unit]}
        rows.append(row | {"achieved": achieved, "available": limit, "fraction": achieved / limit})
    return rows


def shown(rows: Sequence[Row]) -> Table:
    """The rows as a table."""
    first = rows[0]
    n, seconds = first["n"], first["seconds"]
    speed = f"{1e3 * seconds:,.1f} ms, {n / seconds / 1e6:.2f} million users a second"
    title = f"a FedRep round of {n:,} users with {first['threads']} threads: {speed} (median)"
    table = Table(title=title, title_justify="left")
    for column in ("limit", "a round needs", "a round gets", "the machine gives", "fraction", "ms at the limit"):
        table.add_column(column, justify="left" if column == "limit" else "right")
    for row in rows:
        unit = "GB" if row["unit"] == "bytes" else "GFLOP"
        cells = [f"{row['needed'] / 1e9:.2f} {unit}", *(f"{row[key] / 1e9:.1f} {unit}/s" for key in ("achieved", "available"))]
        table.add_row(row["limit"], *cells, f"{row['fraction']:.2f}", f"{1e3 * row['needed'] / row['available']:,.1f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=1_000_000, help="users; a million need 5 GB")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("overrides", nargs="*", help="settings of the run")
    chosen = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    Console(highlight=False, width=140).print(shown(against_limits(chosen.n, chosen.rounds, chosen.overrides)))


if __name__ == "__main__":
    main()
