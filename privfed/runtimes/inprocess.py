"""One process: Flower's server loop over clients in the same process, several nodes at once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from flwr.client import Client
from flwr.server.client_manager import SimpleClientManager
from flwr.server.strategy import Strategy
from threadpoolctl import threadpool_limits

from privfed.federation.client_factory import ClientFactory
from privfed.federation.roster import Roster
from privfed.foundation.constraints import WHOLE
from privfed.runtimes.node_proxy import NodeProxy
from privfed.runtimes.runtime import Nodes, Patience, Runtime, checked_nodes
from privfed.runtimes.server_loop import run_server_loop


class LocalProxy(NodeProxy):
    """Calls a client in this process, with the same serialised messages as over a network."""

    def __init__(self, cid: str, client: Client) -> None:
        super().__init__(cid)
        self.client = client

    def ask(self, question: str, ins: Any, timeout: float | None) -> Any:
        """See :class:`NodeProxy`."""
        return getattr(self.client, question)(ins)


class InProcess(Runtime):
    """Runs all nodes in this process.

    Args:
        name: name of the runtime.
        nodes: number of nodes; two per thread unless given.
        threads: number of nodes computed at the same time; the number of cores unless given.
    """

    def __init__(self, name: str, nodes: Nodes, threads: Annotated[int, WHOLE] | None) -> None:
        self.name, self.nodes = name, nodes
        self.threads = threads or len(os.sched_getaffinity(0))
        self.patience = Patience()

    def nodes_for(self, users: int) -> int:
        """See :class:`Runtime`."""
        return checked_nodes(self.nodes, users) or min(2 * self.threads, users)

    def run(self, strategy: Strategy, factory: ClientFactory, roster: Roster, rounds: int) -> None:
        """See :class:`Runtime`."""
        manager = SimpleClientManager()
        # One BLAS thread per worker: the nodes are the parallelism.
        with threadpool_limits(1), ThreadPoolExecutor(self.threads) as pool:
            clients = pool.map(factory.node, roster, roster.nodes.values())
            for cid, client in zip(roster.nodes, clients, strict=True):
                manager.register(LocalProxy(cid, client))
            run_server_loop(strategy, manager, rounds, workers=self.threads)
