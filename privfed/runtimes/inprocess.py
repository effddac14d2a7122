"""One process: Flower's own server loop over clients that live beside it, several cohorts at once in threads."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from flwr.client import Client, NumPyClient
from flwr.server import Server
from flwr.server.client_manager import ClientManager, SimpleClientManager
from flwr.server.strategy import Strategy
from threadpoolctl import threadpool_limits

from privfed.federation.roster import Roster
from privfed.foundation.errors import ConfigError, check_number, check_positive, check_whole
from privfed.runtimes.node_proxy import NodeProxy


class LocalProxy(NodeProxy):
    """Calls a client in this process, with the same serialised messages as over a network."""

    def __init__(self, cid: str, client: Client) -> None:
        super().__init__(cid)
        self.client = client

    def ask(self, question: str, ins: Any, timeout: float | None) -> Any:
        """Forward to the client."""
        return getattr(self.client, question)(ins)


class InProcess:
    """Runs the pair over `nodes` cohorts, at most `threads` of them at the same time."""

    patience: ClassVar[dict[str, Any]] = {}
    """How a federation of this runtime deals with nodes that are late or gone: here none can be."""

    def __init__(self, name: str, nodes: int | None, threads: int | None) -> None:
        if threads is not None:
            check_whole("runtime.threads", threads)
        self.name, self.nodes = name, nodes
        self.threads = threads or len(os.sched_getaffinity(0))

    def nodes_for(self, users: int) -> int:
        """How many nodes these users are spread over."""
        return checked_nodes(self.nodes, users) or min(2 * self.threads, users)

    def run(
        self,
        strategy: Strategy,
        make_client: Callable[[range], NumPyClient],
        roster: Roster,
        rounds: int,
    ) -> None:
        """Make every node's client, then run Flower's server loop."""
        manager = SimpleClientManager()
        # One BLAS thread a worker: the cohorts are the parallelism.
        with threadpool_limits(1), ThreadPoolExecutor(self.threads) as pool:
            for cid, client in zip(
                roster.nodes, pool.map(make_client, roster.nodes.values()), strict=True
            ):
                manager.register(LocalProxy(cid, client.to_client()))
            serve(strategy, manager, rounds, workers=self.threads)


def checked_nodes(nodes: int | None, users: int) -> int | None:
    """The configured number of nodes, if users suffice for it."""
    if nodes is None:
        return None
    if check_whole("runtime.nodes", nodes) > users:
        raise ConfigError.of("runtime.nodes", nodes, f"more nodes than the {users} users")
    return nodes


def patient(join_timeout: float, rejoin_timeout: float, quorum: float) -> dict[str, Any]:
    """How a federation deals with nodes that may be late or gone, from a runtime's settings."""
    return {
        "strict": False,
        "join_timeout": check_positive("runtime.join_timeout", join_timeout),
        "rejoin_timeout": check_positive("runtime.rejoin_timeout", rejoin_timeout),
        "quorum": check_number(
            "runtime.quorum", quorum, lambda x: 0 <= x <= 1, "must lie between 0 and 1"
        ),
    }


def serve(
    strategy: Strategy,
    manager: ClientManager,
    rounds: int,
    workers: int,
    timeout: float | None = None,
) -> None:
    """Flower's server loop: so many rounds over the managed nodes, `workers` asked at once, each given `timeout` seconds."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    server = Server(client_manager=manager, strategy=strategy)
    server.set_max_workers(workers)
    server.fit(num_rounds=rounds, timeout=timeout)
