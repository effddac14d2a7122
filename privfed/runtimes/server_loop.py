"""Flower's server loop, which asks a step again if too few users answered, and can be drained."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

from flwr.common import Code, FitIns, FitRes, Parameters, Scalar
from flwr.server import Server
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.server import EvaluateResultsAndFailures, FitResultsAndFailures
from flwr.server.strategy import Strategy

from privfed.foundation.errors import StoppedError, TooFewAnswersError

log = logging.getLogger("privfed.server")


class Drain:
    """A request to stop after the step in progress.

    Args:
        give_up: ends the step in progress when it takes too long.
        timeout: seconds that it has.
    """

    def __init__(self, give_up: Callable[[], object] = lambda: None, timeout: float = 0.0) -> None:
        self.give_up, self.timeout = give_up, timeout
        self.requested = False
        self.busy = False
        """Whether a step is in progress, or the published model is being sent."""

    def request(self) -> None:
        """Stop after the step in progress; at once if there is none, or if asked again.

        Raises:
            StoppedError: at once.
        """
        again, self.requested = self.requested, True
        if again or not self.busy:
            self.give_up()
            self.check()
        log.info("asked to stop: waiting up to %g s for the step in progress", self.timeout)
        timer = threading.Timer(self.timeout, self.give_up)
        timer.daemon = True
        timer.start()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Let a step end that is in progress."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False

    def check(self) -> None:
        """Stop if that was requested.

        Raises:
            StoppedError: if it was.
        """
        if self.requested:
            raise StoppedError("stopped as asked; nothing is lost, go on with --resume")


class PatientServer(Server):
    """Flower's server, for a strategy that says when too few users answered.

    Args:
        client_manager: knows the connected nodes.
        strategy: server side of the algorithm.
        pool: asks nodes at the same time.
        drain: stops the loop between steps.
    """

    def __init__(
        self,
        client_manager: ClientManager,
        strategy: Strategy,
        pool: ThreadPoolExecutor,
        drain: Drain,
    ) -> None:
        super().__init__(client_manager=client_manager, strategy=strategy)
        self.pool, self.drain = pool, drain

    def fit_round(
        self, server_round: int, timeout: float | None
    ) -> tuple[Parameters | None, dict[str, Scalar], FitResultsAndFailures] | None:
        """Take one step; ask it again while the strategy's patience lasts.

        Nothing was released before, and a client that is asked again gives the same answer.
        """
        failing_since: float | None = None
        while True:
            self.drain.check()
            asked = self.strategy.configure_fit(server_round, self.parameters, self._client_manager)
            if not asked:
                return None
            try:
                with self.drain.step():
                    answers = self._collect(asked, timeout)
                    return *self.strategy.aggregate_fit(server_round, *answers), answers
            except TooFewAnswersError as error:
                self.drain.check()
                now = time.monotonic()
                failing_since = now if failing_since is None else failing_since
                if now - failing_since >= error.patience:
                    raise
                log.warning("%s; asking again", error)

    def evaluate_round(
        self, server_round: int, timeout: float | None
    ) -> tuple[float | None, dict[str, Scalar], EvaluateResultsAndFailures] | None:
        """Send the published model after the last step."""
        with self.drain.step():
            return super().evaluate_round(server_round, timeout)

    def _collect(
        self, asked: list[tuple[ClientProxy, FitIns]], timeout: float | None
    ) -> FitResultsAndFailures:
        """Return the answers of all nodes, and what went wrong with the others."""
        futures = {self.pool.submit(proxy.fit, ins, timeout, None): proxy for proxy, ins in asked}
        results: list[tuple[ClientProxy, FitRes]] = []
        failures: list[tuple[ClientProxy, FitRes] | BaseException] = []
        for future in as_completed(futures):
            error = future.exception()
            if error is not None:
                failures.append(error)
                continue
            answer = (futures[future], future.result())
            (results if answer[1].status.code == Code.OK else failures).append(answer)
        return results, failures


def run_server_loop(
    strategy: Strategy,
    manager: ClientManager,
    rounds: int,
    workers: int,
    timeout: float | None = None,
    drain: Drain | None = None,
) -> None:
    """Run Flower's server loop over the nodes of a client manager.

    Args:
        strategy: server side of the algorithm.
        manager: knows the connected nodes.
        rounds: number of rounds.
        workers: number of nodes asked at the same time.
        timeout: seconds that each node has per round; any time unless given.
        drain: stops the loop between steps; nothing does unless given.
    """
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with ThreadPoolExecutor(workers) as pool:
        server = PatientServer(manager, strategy, pool, drain or Drain())
        server.set_max_workers(workers)
        server.fit(num_rounds=rounds, timeout=timeout)
