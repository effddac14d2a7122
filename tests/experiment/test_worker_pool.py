"""Processes of a pool end quietly, however late they are asked to."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

from privfed.experiment.worker_pool import work_on_tasks


def ended_and_asked_again(pipe: Connection) -> None:
    work_on_tasks(pipe, abs)
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_process_whose_pipe_is_closed_is_not_interrupted_while_it_ends():
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=ended_and_asked_again, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    ours.send(-3)
    assert ours.recv() == 3
    ours.close()
    process.join(60)
    assert process.exitcode == 0
