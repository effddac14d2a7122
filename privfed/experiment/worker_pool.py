"""Pool of processes for tasks; a killed process is replaced, and its task is reported."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from privfed.foundation.environment import thread_limits

PATIENCE = 10.0
"""Seconds that a process has to end its run when it is asked to."""


@dataclass(frozen=True)
class Lost:
    """Answer for a task whose process was killed."""

    exit_code: int | None

    def __str__(self) -> str:
        code = self.exit_code or 0
        return (
            f"its process was killed (signal {-code})"
            if code < 0
            else f"its process ended (exit code {code})"
        )


@dataclass
class Worker:
    """Process, the pipe to it, and its current task."""

    process: BaseProcess
    pipe: Connection
    task: Any = None


class Pool:
    """Processes, each with one thread, that call `work` with a task and return the answer.

    The processes are spawned, since forks of a process with threads may hang. They live as long as
    the pool, so that imports are paid for once.

    Args:
        jobs: number of processes.
        work: function of a task.
    """

    def __init__(self, jobs: int, work: Callable[[Any], Any]) -> None:
        self.work = work
        self.context = multiprocessing.get_context("spawn")
        self.workers: list[Worker] = []
        try:
            self.workers += [self._start() for _ in range(jobs)]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def map(self, waiting: deque[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield every task with its answer, as they are done.

        The answer is :class:`Lost` if the process was killed.

        Args:
            waiting: tasks; more may be added while they are done.
        """
        while True:
            for i, worker in enumerate(self.workers):
                if worker.task is None and waiting:
                    if not worker.process.is_alive():
                        self.workers[i] = worker = self._start()
                    worker.task = waiting.popleft()
                    # The process may have just died; its pipe reports that below.
                    with suppress(BrokenPipeError):
                        worker.pipe.send(worker.task)
            busy = {worker.pipe: worker for worker in self.workers if worker.task is not None}
            if not busy:
                return
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                task, worker.task = worker.task, None
                yield task, self._answer(worker)

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        for worker in self.workers:
            worker.pipe.close()
            if worker.process.is_alive():
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join(PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self.workers = []

    def _start(self) -> Worker:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=work_on_tasks, args=(theirs, self.work), daemon=True)
        with one_thread():
            process.start()
        theirs.close()
        return Worker(process, ours)

    def _answer(self, worker: Worker) -> Any:
        try:
            return worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(PATIENCE)
            # A process without its pipe is useless.
            worker.process.kill()
            return Lost(worker.process.exitcode)


def work_on_tasks(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """Do tasks until the pipe is closed.

    Ctrl-C is ignored; the parent process handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        signal.signal(signal.SIGTERM, _end)
        try:
            while True:
                pipe.send(work(pipe.recv()))
        finally:
            # The process is ending: a second signal, after the closed pipe, must not interrupt it.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _end(number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Runs handle this exception: they close their files.
    raise KeyboardInterrupt


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit processes started in this context to one thread each.

    Libraries read the limits when they are loaded.
    """
    before = {name: os.environ.get(name) for name in thread_limits()}
    os.environ.update(thread_limits())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
