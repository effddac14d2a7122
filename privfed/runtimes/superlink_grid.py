"""Flower's grid, seen from a ServerApp: nodes that come and go, each asked through messages that wait at the SuperLink."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Message
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Status,
)
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.serverapp import Grid

from privfed.federation.client_factory import NodeFactory
from privfed.federation.roster import Roster
from privfed.foundation.errors import PrivfedError
from privfed.runtimes.admission import Door
from privfed.runtimes.inprocess import serve

WELCOME = "welcome"
"""The setting of a message that holds what a node's client is made from: over a SuperLink every message meets a new process."""
MOST_AT_ONCE = 256
AGAIN = 60.0
"""Seconds after which a node that was not let in is asked again who it is."""
GRACE = 10.0
"""Seconds beyond a message's time to live that the SuperLink has to say that it is over."""
log = logging.getLogger("privfed.grid")


def serve_grid(
    grid: Grid,
    strategy: Any,
    factory: NodeFactory,
    roster: Roster,
    rounds: int,
    timeout: float,
    trusting: bool,
) -> None:
    """Flower's server loop over the nodes of a grid; every message is given up after `timeout` seconds."""
    door = Door(roster, trusting=trusting)
    welcomes = {
        node: json.dumps(factory.welcome(users, simulated=roster.members[node].simulated))
        for node, users in roster.nodes.items()
    }
    over, heard = threading.Event(), Clock()
    watcher = threading.Thread(
        target=watch, args=(grid, door, welcomes, timeout, over, heard), daemon=True
    )
    watcher.start()
    threading.Thread(target=guard, args=(max(timeout, 60.0), over, heard), daemon=True).start()
    try:
        serve(strategy, door, rounds, workers=min(len(roster), MOST_AT_ONCE), timeout=timeout)
    finally:
        over.set()
        watcher.join(timeout=5)


class Clock:
    """When something happened last."""

    def __init__(self) -> None:
        self.now()

    def now(self) -> None:
        """It happened."""
        self.last = time.monotonic()


def guard(patience: float, over: threading.Event, heard: Clock) -> None:
    """End this process when the SuperLink is gone: Flower's own calls would go on trying for ever.

    What started us dies with the SuperLink. Flower notices too, but its signal wakes no main thread that waits for nodes.
    """
    parent = os.getppid()
    while not over.wait(1.0):
        if os.getppid() != parent or time.monotonic() - heard.last > patience:
            log.error(
                "privfed: the SuperLink is gone; what was released is kept, go on with resume"
            )
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return


def watch(
    grid: Grid,
    door: Door,
    welcomes: Mapping[str, str],
    patience: float,
    over: threading.Event,
    heard: Clock,
) -> None:
    """Present every node that comes online to the door, and take away those that go offline, until it is over."""
    known: dict[int, NodeProxy] = {}
    asked: dict[int, float] = {}
    prompt = PromptGrid(grid)
    while not over.is_set():
        try:
            online = set(grid.get_node_ids())
        except Exception as error:  # whatever it is, without the SuperLink there are no nodes
            if not over.is_set():
                reason = str(error) or type(error).__name__
                door.fail(
                    PrivfedError(
                        f"the SuperLink does not answer, or the run was stopped ({reason}); go on with resume"
                    )
                )
            return
        heard.now()
        for node_id in set(known) - online:
            door.unregister(known.pop(node_id))
        for node_id in [node_id for node_id, proxy in known.items() if not door.holds(proxy)]:
            if (
                time.monotonic() - asked[node_id] > AGAIN
            ):  # it was refused, or did not answer: it may have been a bad moment
                del known[node_id]
        for node_id in online - set(known):
            known[node_id] = NodeProxy(node_id, prompt, grid.run.run_id, welcomes, patience)
            asked[node_id] = time.monotonic()
            door.register(known[node_id])
        over.wait(1.0)


class PromptGrid:
    """Looks for replies sooner than Flower's grid, which sleeps three seconds between looks, and never for ever."""

    def __init__(self, grid: Grid, first_pause: float = 0.05, longest_pause: float = 1.0) -> None:
        self.grid, self.first_pause, self.longest_pause = grid, first_pause, longest_pause

    def send_and_receive(self, messages: Iterable[Message]) -> list[Message]:
        """The reply to one message, or an error when none comes within the message's time to live."""
        (message,) = messages
        # The SuperLink answers itself when that time is over, or the node is gone; the rest is for a SuperLink that does not.
        deadline = time.monotonic() + message.metadata.ttl + GRACE
        (number,) = self.grid.push_messages([message])
        if number is None:
            raise ConnectionError("the SuperLink did not take the message")
        pause = self.first_pause
        while time.monotonic() < deadline:
            if replies := list(self.grid.pull_messages([number])):
                return replies
            time.sleep(pause)
            pause = min(1.2 * pause, self.longest_pause)
        raise TimeoutError(f"no answer within {message.metadata.ttl:g} s")


class NodeProxy(GridClientProxy):
    """Sends a node what its client is made from with every question. patience: seconds the shortest question may take."""

    def __init__(
        self,
        node_id: int,
        grid: PromptGrid,
        run_id: int,
        welcomes: Mapping[str, str],
        patience: float,
    ) -> None:
        super().__init__(node_id, grid, run_id)  # type: ignore[arg-type]
        self.welcomes, self.patience = welcomes, patience

    def get_properties(
        self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> GetPropertiesRes:
        """Ask who it is. What went wrong at the node is an answer too: it says why the node is not let in."""
        try:
            return super().get_properties(ins, max(timeout or 0.0, self.patience), group_id)
        except ValueError as error:
            return GetPropertiesRes(Status(Code.GET_PROPERTIES_NOT_IMPLEMENTED, str(error)), {})

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        """Ask for a contribution."""
        return super().fit(
            FitIns(ins.parameters, ins.config | {WELCOME: self.welcomes[self.cid]}),
            timeout,
            group_id,
        )

    def evaluate(
        self, ins: EvaluateIns, timeout: float | None, group_id: int | None
    ) -> EvaluateRes:
        """Send the published model."""
        more = {WELCOME: self.welcomes[self.cid]}
        return super().evaluate(EvaluateIns(ins.parameters, ins.config | more), timeout, group_id)
