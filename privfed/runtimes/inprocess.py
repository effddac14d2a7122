"""One process: Flower's own server loop over clients that live beside it, several cohorts at once in threads."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from flwr.client import Client, NumPyClient
from flwr.common import (
    DisconnectRes,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetParametersIns,
    GetParametersRes,
    GetPropertiesIns,
    GetPropertiesRes,
    ReconnectIns,
)
from flwr.server import Server
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy
from threadpoolctl import threadpool_limits

from privfed.errors import ConfigError, check_whole


class LocalProxy(ClientProxy):
    """Calls a client in this process, with the same serialised messages as over a network."""

    def __init__(self, cid: str, client: Client) -> None:
        super().__init__(cid)
        self.client = client

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        """Forward to the client."""
        return self.client.fit(ins)

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        """Forward to the client."""
        return self.client.evaluate(ins)

    def get_properties(self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None) -> GetPropertiesRes:
        """Forward to the client."""
        return self.client.get_properties(ins)

    def get_parameters(self, ins: GetParametersIns, timeout: float | None, group_id: int | None) -> GetParametersRes:
        """Forward to the client."""
        return self.client.get_parameters(ins)

    def reconnect(self, ins: ReconnectIns, timeout: float | None, group_id: int | None) -> DisconnectRes:
        """There is no connection to close."""
        return DisconnectRes(reason="")


class InProcess:
    """Runs the pair over `nodes` cohorts, at most `threads` of them at the same time."""

    def __init__(self, name: str, nodes: int | None, threads: int | None) -> None:
        for key, value in (("runtime.nodes", nodes), ("runtime.threads", threads)):
            if value is not None:
                check_whole(key, value)
        self.name = name
        self.threads = threads or len(os.sched_getaffinity(0))
        self.nodes = nodes

    def nodes_for(self, users: int) -> int:
        """How many nodes these users are spread over."""
        if self.nodes is not None and self.nodes > users:
            raise ConfigError.of("runtime.nodes", self.nodes, f"more nodes than the {users} users")
        return self.nodes or min(2 * self.threads, users)

    def run(self, strategy: Strategy, make_client: Callable[[str], NumPyClient], cids: list[str], rounds: int) -> None:
        """Make every node's client, then run Flower's server loop."""
        logging.getLogger("flwr").setLevel(logging.WARNING)
        manager = SimpleClientManager()
        # One BLAS thread a worker: the cohorts are the parallelism.
        with threadpool_limits(1), ThreadPoolExecutor(self.threads) as pool:
            for cid, client in zip(cids, pool.map(lambda cid: make_client(cid).to_client(), cids), strict=True):
                manager.register(LocalProxy(cid, client))
            server = Server(client_manager=manager, strategy=strategy)
            server.set_max_workers(self.threads)
            server.fit(num_rounds=rounds, timeout=None)
