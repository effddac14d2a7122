"""Run the repetitions of an audit on all cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from privfed.audit.canary import CanaryStage
from privfed.foundation.linalg import Array

CHUNK = 25
"""Repetitions per task of a process."""
_stage: CanaryStage | None = None


def observations(
    stage: CanaryStage, on_chunk: Callable[[int], None] = lambda done: None
) -> dict[str, Array]:
    """Return the observations of all repetitions by world, (repetitions, releases, 2), in order.

    One process per core is forked, so that the processes audit exactly the code and settings of
    this process. Without fork, this process plays all repetitions. The numbers are the same.

    Args:
        stage: plays the repetitions.
        on_chunk: called with the number of repetitions done so far.
    """
    global _stage
    _stage = stage
    chunks = [
        range(first, min(first + CHUNK, stage.repetitions))
        for first in range(0, stage.repetitions, CHUNK)
    ]
    parts: dict[str, list[Array]] = {}

    def collect(results: Iterator[dict[str, Array]]) -> None:
        for numbers, result in zip(chunks, results, strict=True):
            for world, seen in result.items():
                parts.setdefault(world, []).append(seen)
            on_chunk(numbers.stop)

    processes = min(worker_processes(), len(chunks))
    if processes > 1:
        pool = ProcessPoolExecutor(
            processes, multiprocessing.get_context("fork"), initializer=_ignore_interrupts
        )
        try:
            collect(pool.map(_chunk, chunks))
        finally:
            pool.shutdown(cancel_futures=True)
    else:
        collect(map(_chunk, chunks))
    return {world: np.concatenate(seen) for world, seen in parts.items()}


def worker_processes() -> int:
    """Return the number of processes that can work at the same time; 1 without fork."""
    forks = "fork" in multiprocessing.get_all_start_methods() and hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if forks else 1


def _chunk(numbers: range) -> dict[str, Array]:
    assert _stage is not None
    return _stage.chunk(numbers)


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C, which the parent process handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
