"""The spectral initialiser against the matrix product it cannot avoid: a section of `make bench`.

The released matrix is sum_i c_i (s_i s_i^T - sum_j a_j a_j^T) = sum_i c_i A_i^T (1 1^T - I) A_i.
Here the m vectors a_j = y_j x_j of user i are the rows of A_i (m, d), s_i is their sum and c_i the
clip factor. 1 1^T - I has full rank. So in any case the n m vectors enter a d x d product: F^T G
with F, G of n m rows, 2 n m d^2 operations by gemm. The result is symmetric, so a routine that uses
symmetry (syrk) needs half of the operations: this product cannot be avoided. Clip norms, the
release and the eigenvectors come in addition.
"""

from __future__ import annotations

import statistics

import numpy as np
from bench_limits import product_seconds
from bench_table import Column, Row, Section

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.runtimes.inprocess import InProcess


def initialiser(n: int, d: int = 500, repetitions: int = 3) -> list[Row]:
    """Return one row: seconds of the whole step, of the gemm with all threads, and of the syrk."""
    settings = ["init=spectral", f"data.d={d}", "rounds=1"]
    # Compile and load before anything is timed.
    Experiment(compose([*settings, "data.n=100"])).run()
    ours, products, halves = [], [], []
    for _ in range(repetitions):
        experiment = Experiment(compose([*settings, f"data.n={n}"]))
        outcome = experiment.run()
        ours.append(next(row["seconds"] for row in outcome.rows if row["task"] == "spectral"))
        assert isinstance(experiment.runtime, InProcess)
        threads, m = experiment.runtime.threads, experiment.data.m
        client = experiment.factory(range(1))
        # The product is timed in the precision in which the step computes.
        told = experiment.strategy.announcement(experiment.strategy.plan[0])
        dtype = client.init.spectral(next(client.blocks()), [], told).A.dtype
        del experiment, outcome
        F = np.random.default_rng(0).standard_normal((n * m, d)).astype(dtype, copy=False)
        products.append(product_seconds(F, 0.5 * F, threads, 2))
        halves.append(product_seconds(F, F, threads, 2))
        del F
    seconds, product, half = statistics.median(ours), min(products), min(halves)
    sizes = {"d": d, "n": n, "m": m, "threads": threads, "dtype": str(dtype)}
    ratios = {"ratio": seconds / product, "ratio_symmetric": seconds / half}
    speed = 2e-9 * n * m * d * d / product
    # The step contains the symmetric product. A ratio below 1 means that the machine was too busy.
    note = "faster than its own part: noise" if seconds < half else ""
    return [
        {
            **sizes,
            "seconds": seconds,
            "gemm_s": product,
            "syrk_s": half,
            "gflops": speed,
            **ratios,
            "note": note,
        }
    ]


SECTION = Section(
    "initialiser",
    "The initialiser against its matrix product",
    "the spectral initialiser at d={d}, n={n:,}, m={m} with {threads} threads ({dtype})",
    "The whole step (clip norms, the weighted second moments, the release, eigenvectors) against "
    "the product it cannot avoid: the n m vectors y x enter a d x d matrix, 2 n m d^2 operations "
    "by gemm. The matrix is symmetric, and with syrk, which needs half of them, the step may be "
    "faster than that gemm; never than the syrk, which is the harder reference. The products are "
    "the best of several tries in the same run with the same threads, the step is the median.",
    lambda effort: initialiser(2000 if effort.quick else 10_000, repetitions=effort.few),
    [
        Column("d", "d", "d"),
        Column("initialiser ms", "seconds", ",.0f", 1e3, "s", "lower"),
        Column("gemm ms", "gemm_s", ",.0f", 1e3),
        Column("against gemm", "ratio", ".2f", better="lower", relative=True),
        Column("syrk ms", "syrk_s", ",.0f", 1e3),
        Column("against syrk", "ratio_symmetric", ".2f", better="lower", relative=True),
        Column("gemm GFLOP/s", "gflops", ".1f"),
        Column("note", "note"),
    ],
    ["d"],
)
