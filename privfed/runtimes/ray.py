"""Ray: every node in a process of its own, here or on other machines, under Flower's own server loop.

A node is a Ray actor: its process makes its users' data once and keeps them; only parameters and cohort sums travel, one
message a node and round. Flower's own simulation engine is not used, as it hands nodes to whichever process is free, so
that data would be made again and again, and looks for answers every tenth of a second only.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from flwr.client import Client, NumPyClient
from flwr.server.client_manager import ClientManager, SimpleClientManager
from flwr.server.strategy import Strategy
from threadpoolctl import threadpool_limits

from privfed.federation.roster import Roster
from privfed.foundation.errors import (
    ConfigError,
    PrivfedError,
    check_flag,
    check_number,
    check_positive,
)
from privfed.runtimes import ray_cluster
from privfed.runtimes.inprocess import checked_nodes, patient, serve
from privfed.runtimes.node_proxy import NodeProxy

INLINE_BYTES = 100_000
"""Smaller messages travel inside the call, which is three times as fast; Ray would store larger ones once a node."""
RESTARTS = 3
"""How often a node's lost process is started again."""


class Node:
    """What lives in a node's process: its client, made when asked to, so that a bug is an answer and not a lost process."""

    def __init__(self, make_client: Callable[[range], NumPyClient], users: range) -> None:
        self.make_client, self.users = make_client, users
        self.client: Client | None = None

    def join(self) -> None:
        """Make the users' data and the client that serves them."""
        if self.client is None:
            self.client = self.make_client(self.users).to_client()

    def answer(self, question: str, ins: Any) -> Any:
        """The client's answer to one of Flower's instructions."""
        self.join()
        return getattr(self.client, question)(ins)


class Post:
    """Sends instructions. A large one that goes to several nodes is stored once, and every node is told where."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.last: tuple[Any, Any] = (None, None)
        self.lock = threading.Lock()

    def packed(self, ins: Any) -> Any:
        """The instruction itself or, where it is large, a reference to it."""
        if not hasattr(ins, "parameters") or sum(map(len, ins.parameters.tensors)) < INLINE_BYTES:
            return ins
        with self.lock:
            if self.last[0] is not ins:
                self.last = (ins, self.ray.put(ins))
            return self.last[1]


class RayProxy(NodeProxy):
    """Asks a node in another process. One whose process is lost leaves, and joins again when Ray has started a new one."""

    def __init__(self, cid: str, actor: Any, post: Post, manager: ClientManager) -> None:
        super().__init__(cid)
        self.actor, self.post, self.manager = actor, post, manager

    def join(self) -> Any:
        """Have the node's process make its users' data; a reference to when it is done, through restarts."""
        return self.actor.join.options(max_task_retries=-1).remote()

    def ask(self, question: str, ins: Any, timeout: float | None) -> Any:
        """One message to the node's process; raises PrivfedError only for a mistake in the node's own code."""
        ray = self.post.ray
        try:
            return ray.get(
                self.actor.answer.remote(question, self.post.packed(ins)), timeout=timeout
            )
        except ray.exceptions.RayTaskError as error:
            raise own_failure(self.cid, error) from error
        except ray.exceptions.GetTimeoutError:
            # What hangs would not answer the next question either.
            ray.kill(self.actor, no_restart=False)
            self._leave()
            raise
        except ray.exceptions.RayActorError:
            self._leave()
            raise

    def _leave(self) -> None:
        self.manager.unregister(self)
        self.join().future().add_done_callback(self._return)

    def _return(self, joined: Future[None]) -> None:
        """Register again, also when its own code failed: the next question is then answered with the reason."""
        error = joined.exception()
        if error is None or isinstance(error, self.post.ray.exceptions.RayTaskError):
            self.manager.register(self)


class OnRay:
    """Runs the pair over `nodes` processes, on this machine or on the Ray cluster at `address`."""

    def __init__(
        self,
        name: str,
        nodes: int | None,
        address: str | None,
        cpus: float,
        gpus: float,
        join_timeout: float,
        rejoin_timeout: float,
        round_timeout: float | None,
        quorum: float,
        verbose: bool,
    ) -> None:
        ray_cluster.check_installed()
        self.name, self.nodes = name, nodes
        self.address = ray_cluster.check_address(address)
        self.cpus = check_positive("runtime.cpus", cpus)
        self.gpus = check_number(
            "runtime.gpus", gpus, lambda x: 0 <= x < 1e6, "must be a number of at least 0"
        )
        self.join_timeout = join_timeout
        self.round_timeout = (
            None
            if round_timeout is None
            else check_positive("runtime.round_timeout", round_timeout)
        )
        self.verbose = check_flag("runtime.verbose", verbose)
        self.patience = patient(join_timeout, rejoin_timeout, quorum)

    def nodes_for(self, users: int) -> int:
        """How many nodes these users are spread over; a cluster is asked only if the number is not given."""
        nodes = checked_nodes(self.nodes, users)
        if self.address is None and not self.gpus:
            room = self._checked(nodes or 1, ray_cluster.fit(ray_cluster.cores(), self.cpus))
            return nodes or min(room, users)
        if nodes is not None:
            return nodes
        with ray_cluster.attached(self.address, self.verbose) as ray:
            return min(self._checked(1, ray_cluster.room(ray, self.cpus, self.gpus)), users)

    def _checked(self, nodes: int, room: int) -> int:
        """The room there is, if it suffices."""
        if room < nodes:
            each = f"runtime.cpus={self.cpus:g}" + (
                f" and runtime.gpus={self.gpus:g}" if self.gpus else ""
            )
            where = "this machine has" if self.address is None else "the cluster has"
            raise ConfigError.of(
                "runtime.nodes",
                nodes,
                f"{where} room for {room} with {each} each; nodes can share with less",
            )
        return room

    def run(
        self,
        strategy: Strategy,
        make_client: Callable[[range], NumPyClient],
        roster: Roster,
        rounds: int,
    ) -> None:
        """Start a process a node, wait until all have joined, then run Flower's server loop."""
        with ray_cluster.attached(self.address, self.verbose) as ray:
            self._checked(len(roster), ray_cluster.room(ray, self.cpus, self.gpus))
            actor = ray.remote(Node).options(
                num_cpus=self.cpus,
                num_gpus=self.gpus,
                max_restarts=RESTARTS,
                scheduling_strategy="SPREAD",
                runtime_env=ray_cluster.environment(self.cpus),
            )
            manager, post = SimpleClientManager(), Post(ray)
            proxies = [
                RayProxy(cid, actor.remote(make_client, mine), post, manager)
                for cid, mine in roster.nodes.items()
            ]
            # One BLAS thread for the server, as in one process: the same last digits, and the cores are the nodes'.
            with ending(ray, proxies), threadpool_limits(1):
                self._gather(ray, proxies)
                for proxy in proxies:
                    manager.register(proxy)
                serve(strategy, manager, rounds, workers=len(proxies), timeout=self.round_timeout)

    def _gather(self, ray: Any, proxies: Sequence[RayProxy]) -> None:
        """Wait until the whole population has joined."""
        waiting = {proxy.join(): proxy.cid for proxy in proxies}
        deadline = time.monotonic() + self.join_timeout
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=max(0, deadline - time.monotonic()))
            if not done:
                joined = f"only {len(proxies) - len(waiting)} of {len(proxies)} nodes joined"
                raise PrivfedError(
                    f"{joined} within {self.join_timeout:g} s; the cluster may be busy; nothing was released"
                )
            cid = waiting.pop(done[0])
            try:
                ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                raise own_failure(cid, error) from error
            except ray.exceptions.RayError as error:
                words = " ".join(str(error).split())
                raise PrivfedError(
                    f"node {cid} was lost before it had joined; nothing was released. {words}"
                ) from error


def own_failure(cid: str, error: Any) -> PrivfedError:
    """Why a node's own code failed: a wrong setting as it was said there, anything else with its whole story."""
    return (
        error.cause
        if isinstance(error.cause, PrivfedError)
        else PrivfedError(f"node {cid} failed: {error}")
    )


@contextmanager
def ending(ray: Any, proxies: Sequence[RayProxy]) -> Iterator[None]:
    """End the nodes' processes afterwards, and at once on Ctrl-C: Flower would wait for their answers first."""

    def end() -> None:
        for proxy in proxies:
            ray.kill(proxy.actor)

    def interrupt(*_: Any) -> None:
        end()
        raise KeyboardInterrupt

    alone = threading.current_thread() is threading.main_thread()  # others cannot be interrupted
    previous = signal.signal(signal.SIGINT, interrupt) if alone else None
    try:
        yield
    finally:
        if alone:
            signal.signal(signal.SIGINT, previous)
        end()
