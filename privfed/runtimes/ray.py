"""Ray: one process per node, on this machine or on others, under Flower's server loop.

A node is a Ray actor: its process makes the data of its users once and keeps them. Only parameters
and cohort sums travel, one message per node and round. Flower's own simulation engine is not used:
it gives nodes to whichever process is free, so that data would be made again and again, and it
looks for answers every tenth of a second only.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Annotated, Any

from flwr.client import Client
from flwr.common import EvaluateIns, FitIns
from flwr.server.client_manager import ClientManager, SimpleClientManager
from flwr.server.strategy import Strategy
from threadpoolctl import threadpool_limits

from privfed.federation.client_factory import ClientFactory
from privfed.federation.roster import Member, Roster
from privfed.foundation.constraints import AT_LEAST_ZERO, FLAG, POSITIVE
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.runtimes import ray_cluster
from privfed.runtimes.interruption import interruptible
from privfed.runtimes.node_proxy import NodeProxy
from privfed.runtimes.runtime import Nodes, Patience, Quorum, Runtime, Seconds, checked_nodes
from privfed.runtimes.server_loop import run_server_loop

INLINE_BYTES = 100_000
"""Smaller messages travel inside the call, which is three times as fast."""
RESTARTS = 3
"""Number of times that the lost process of a node is started again."""


class NodeActor:
    """Lives in the process of a node and holds its client.

    The client is made when it is asked for, so that an error is an answer and not a lost process.

    Args:
        factory: makes the client.
        member: the node.
        users: public numbers of the users behind the node.
    """

    def __init__(self, factory: ClientFactory, member: Member, users: range) -> None:
        self.factory, self.member, self.users = factory, member, users
        self.client: Client | None = None

    def join(self) -> None:
        """Make the data of the users and the client that serves them."""
        if self.client is None:
            self.client = self.factory.node(self.member, self.users)

    def answer(self, question: str, ins: Any) -> Any:
        """Return the client's answer. See :meth:`NodeProxy.ask`."""
        self.join()
        return getattr(self.client, question)(ins)


class Broadcast:
    """Sends the same instruction to several nodes. A large one is stored once, by reference.

    Args:
        ray: the `ray` module, connected.
    """

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.last: tuple[Any, Any] = (None, None)
        self.lock = threading.Lock()

    def packed(self, ins: Any) -> Any:
        """Return the instruction itself or, if it is large, a reference to it."""
        if (
            not isinstance(ins, FitIns | EvaluateIns)
            or sum(map(len, ins.parameters.tensors)) < INLINE_BYTES
        ):
            return ins
        with self.lock:
            if self.last[0] is not ins:
                self.last = (ins, self.ray.put(ins))
            return self.last[1]


class RayProxy(NodeProxy):
    """Asks a node in another process.

    A node whose process is lost leaves, and joins again when Ray has started a new process.
    """

    def __init__(self, cid: str, actor: Any, broadcast: Broadcast, manager: ClientManager) -> None:
        super().__init__(cid)
        self.actor, self.broadcast, self.manager = actor, broadcast, manager

    def join(self) -> Any:
        """Have the process of the node make its data; return Ray's reference to the end of it."""
        return self.actor.join.options(max_task_retries=-1).remote()

    def ask(self, question: str, ins: Any, timeout: float | None) -> Any:
        """See :class:`NodeProxy`.

        Raises:
            PrivfedError: if the code of the node failed; Ray's own errors if its process did.
        """
        ray = self.broadcast.ray
        try:
            return ray.get(
                self.actor.answer.remote(question, self.broadcast.packed(ins)), timeout=timeout
            )
        except ray.exceptions.RayTaskError as error:
            raise own_failure(self.cid, error) from error
        except ray.exceptions.GetTimeoutError:
            # A node that hangs would not answer the next question either.
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
        """Register again, also if the node's code failed: the next question tells the reason."""
        error = joined.exception()
        if error is None or isinstance(error, self.broadcast.ray.exceptions.RayTaskError):
            self.manager.register(self)


class OnRay(Runtime):
    """Runs one process per node, on this machine or on a Ray cluster.

    Args:
        name: name of the runtime.
        nodes: number of nodes; as many as there is room for unless given.
        address: auto or host:port of a running cluster; a Ray on this machine alone if None.
        cpus: processor cores per node.
        gpus: graphics processors per node.
        join_timeout: see :class:`Patience`.
        rejoin_timeout: see :class:`Patience`.
        round_timeout: seconds that a node has per step; any time if None.
        quorum: see :class:`Patience`.
        verbose: show what Ray and the nodes' processes print.
    """

    def __init__(
        self,
        name: str,
        nodes: Nodes,
        address: Annotated[str, ray_cluster.ClusterAddress()] | None,
        cpus: Annotated[float, POSITIVE],
        gpus: Annotated[float, AT_LEAST_ZERO],
        join_timeout: Seconds,
        rejoin_timeout: Seconds,
        round_timeout: Seconds | None,
        quorum: Quorum,
        verbose: Annotated[bool, FLAG],
    ) -> None:
        ray_cluster.check_installed()
        self.name, self.nodes, self.address = name, nodes, address
        self.cpus, self.gpus = cpus, gpus
        self.round_timeout, self.verbose = round_timeout, verbose
        self.patience = Patience(join_timeout, rejoin_timeout, quorum, strict=False)

    def nodes_for(self, users: int) -> int:
        """See :class:`Runtime`. A cluster is asked only if the number of nodes is not given."""
        nodes = checked_nodes(self.nodes, users)
        if self.address is None and not self.gpus:
            most = ray_cluster.times_in(ray_cluster.usable_cores(), self.cpus)
            room = self._checked(nodes or 1, most)
            return nodes or min(room, users)
        if nodes is not None:
            return nodes
        with ray_cluster.attached(self.address, self.verbose) as ray:
            return min(self._checked(1, ray_cluster.room(ray, self.cpus, self.gpus)), users)

    def _checked(self, nodes: int, room: int) -> int:
        """Return the number of nodes that there is room for, if it suffices."""
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

    def run(self, strategy: Strategy, factory: ClientFactory, roster: Roster, rounds: int) -> None:
        """See :class:`Runtime`."""
        with ray_cluster.attached(self.address, self.verbose) as ray:
            self._checked(len(roster), ray_cluster.room(ray, self.cpus, self.gpus))
            actor = ray.remote(NodeActor).options(
                num_cpus=self.cpus,
                num_gpus=self.gpus,
                max_restarts=RESTARTS,
                scheduling_strategy="SPREAD",
                runtime_env=ray_cluster.runtime_environment(self.cpus),
            )
            manager, broadcast = SimpleClientManager(), Broadcast(ray)
            proxies = [
                RayProxy(
                    member.name,
                    actor.remote(factory, member, roster.nodes[member.name]),
                    broadcast,
                    manager,
                )
                for member in roster
            ]
            # One BLAS thread for the server, as in one process, gives the same last digits, and
            # leaves the cores to the nodes.
            with ending(ray, proxies), threadpool_limits(1):
                self._gather(ray, proxies)
                for proxy in proxies:
                    manager.register(proxy)
                run_server_loop(
                    strategy, manager, rounds, workers=len(proxies), timeout=self.round_timeout
                )

    def _gather(self, ray: Any, proxies: Sequence[RayProxy]) -> None:
        """Wait until all nodes have joined."""
        timeout = self.patience.join_timeout
        waiting = {proxy.join(): proxy.cid for proxy in proxies}
        deadline = time.monotonic() + timeout
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=max(0, deadline - time.monotonic()))
            if not done:
                joined = f"only {len(proxies) - len(waiting)} of {len(proxies)} nodes joined"
                raise PrivfedError(
                    f"{joined} within {timeout:g} s; the cluster may be busy; nothing was released"
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
    """Return why the code of a node failed: its own PrivfedError, or any other with its traceback.

    Args:
        cid: name of the node.
        error: Ray's RayTaskError.
    """
    return (
        error.cause
        if isinstance(error.cause, PrivfedError)
        else PrivfedError(f"node {cid} failed: {error}")
    )


@contextmanager
def ending(ray: Any, proxies: Sequence[RayProxy]) -> Iterator[None]:
    """End the nodes' processes afterwards, and at once on Ctrl-C.

    Flower would wait for the answers of the nodes first.
    """

    def end() -> None:
        for proxy in proxies:
            ray.kill(proxy.actor)

    try:
        with interruptible((signal.SIGINT,), end):
            yield
    finally:
        end()
