"""Flower's server loop over the grid of a ServerApp.

Nodes come and go. Each is asked through messages that wait at the SuperLink.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterable, Mapping

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
from flwr.server.strategy import Strategy
from flwr.serverapp import Grid

from privfed.federation.client_factory import ClientFactory
from privfed.federation.roster import Roster
from privfed.foundation.errors import PrivfedError
from privfed.runtimes.admission import AdmissionControl
from privfed.runtimes.flower_internals import GridClientProxy
from privfed.runtimes.server_loop import run_server_loop

WELCOME = "welcome"
"""Setting of a message that holds a `Welcome`: every message to a SuperNode meets a new process."""
STATUS = "PRIVFED_STATUS"
"""Environment variable: folder to which a ServerApp writes how each run ended."""
MOST_AT_ONCE = 256
AGAIN = 60.0
"""Seconds after which a node that was not admitted is asked for its identity again."""
GRACE = 10.0
"""Seconds beyond the time to live of a message that the SuperLink has to report its end."""
log = logging.getLogger("privfed.grid")


def run_on_grid(
    grid: Grid,
    strategy: Strategy,
    factory: ClientFactory,
    roster: Roster,
    rounds: int,
    timeout: float,
    trusting: bool,
) -> None:
    """Run Flower's server loop over the nodes of a grid.

    Args:
        grid: Flower's grid.
        strategy: server side of the algorithm.
        factory: makes the clients.
        roster: registered nodes.
        rounds: number of rounds.
        timeout: seconds after which a message is given up.
        trusting: believe names without a proof.
    """
    admission = AdmissionControl(roster, trusting=trusting)
    welcomes = {
        node: factory.welcome(users, simulated=roster.members[node].simulated).to_json()
        for node, users in roster.nodes.items()
    }
    over, heard = threading.Event(), LastHeard()
    watcher = threading.Thread(
        target=watch_grid, args=(grid, admission, welcomes, timeout, over, heard), daemon=True
    )
    watcher.start()
    silence = max(timeout, 60.0)
    threading.Thread(target=end_without_superlink, args=(silence, over, heard), daemon=True).start()
    workers = min(len(roster), MOST_AT_ONCE)
    try:
        run_server_loop(strategy, admission, rounds, workers, timeout)
    finally:
        over.set()
        watcher.join(timeout=5)


class LastHeard:
    """Time at which the SuperLink answered last."""

    def __init__(self) -> None:
        self.note()

    def note(self) -> None:
        """Note that it has answered now."""
        self.last = time.monotonic()


def end_without_superlink(silence: float, over: threading.Event, heard: LastHeard) -> None:
    """End this process when the SuperLink is gone: Flower's own calls would try for ever.

    The parent of this process ends with the SuperLink. Flower notices that, too, but its signal
    does not wake a main thread that waits for nodes.

    Args:
        silence: seconds without an answer after which the SuperLink counts as gone.
        over: set when the run is over.
        heard: when the SuperLink answered last.
    """
    parent = os.getppid()
    while not over.wait(1.0):
        if os.getppid() != parent or time.monotonic() - heard.last > silence:
            log.error(
                "privfed: the SuperLink is gone; what was released is kept, go on with resume"
            )
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return


def watch_grid(
    grid: Grid,
    admission: AdmissionControl,
    welcomes: Mapping[str, str],
    timeout: float,
    over: threading.Event,
    heard: LastHeard,
) -> None:
    """Register every node that comes online, and unregister those that go offline.

    Args:
        grid: Flower's grid.
        admission: decides which nodes take part.
        welcomes: JSON text of the settings per node.
        timeout: least seconds that a question to a node may take.
        over: set when the run is over.
        heard: is told whenever the SuperLink answers.
    """
    known: dict[int, SuperNodeProxy] = {}
    asked: dict[int, float] = {}
    prompt = PromptGrid(grid)
    while not over.is_set():
        try:
            online = set(grid.get_node_ids())
        except Exception as error:  # for any reason: without the SuperLink there are no nodes
            if not over.is_set():
                reason = str(error) or type(error).__name__
                admission.fail(
                    PrivfedError(
                        "the SuperLink does not answer, or the run was stopped "
                        f"({reason}); go on with resume"
                    )
                )
            return
        heard.note()
        for node_id in set(known) - online:
            admission.unregister(known.pop(node_id))
        for node_id in [node_id for node_id, proxy in known.items() if not admission.holds(proxy)]:
            # It was refused or did not answer, perhaps for a reason that has passed.
            if time.monotonic() - asked[node_id] > AGAIN:
                del known[node_id]
        for node_id in online - set(known):
            known[node_id] = SuperNodeProxy(node_id, prompt, grid.run.run_id, welcomes, timeout)
            asked[node_id] = time.monotonic()
            admission.register(known[node_id])
        over.wait(1.0)


class PromptGrid:
    """Looks for replies sooner than Flower's grid, which sleeps three seconds between looks.

    Args:
        grid: Flower's grid.
        first_pause: seconds between the first two looks.
        longest_pause: most seconds between looks.
    """

    def __init__(self, grid: Grid, first_pause: float = 0.05, longest_pause: float = 1.0) -> None:
        self.grid, self.first_pause, self.longest_pause = grid, first_pause, longest_pause

    def send_and_receive(self, messages: Iterable[Message]) -> list[Message]:
        """Return the reply to one message.

        Raises:
            ConnectionError: if the SuperLink does not take the message.
            TimeoutError: if no reply comes within the time to live of the message.
        """
        (message,) = messages
        # The SuperLink itself reports that this time is over, or that the node is gone.
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


class SuperNodeProxy(GridClientProxy):
    """Sends a node its settings with every question.

    Args:
        node_id: Flower's number of the node.
        grid: sends messages.
        run_id: Flower's number of the run.
        welcomes: JSON text of the settings per node.
        least_timeout: least seconds that a question may take.
    """

    def __init__(
        self,
        node_id: int,
        grid: PromptGrid,
        run_id: int,
        welcomes: Mapping[str, str],
        least_timeout: float,
    ) -> None:
        super().__init__(node_id, grid, run_id)  # type: ignore[arg-type]
        self.welcomes, self.least_timeout = welcomes, least_timeout

    def get_properties(
        self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None
    ) -> GetPropertiesRes:
        """Ask for the identity; an error of the node is the reason why it is not admitted."""
        try:
            return super().get_properties(ins, max(timeout or 0.0, self.least_timeout), group_id)
        except ValueError as error:
            return GetPropertiesRes(Status(Code.GET_PROPERTIES_NOT_IMPLEMENTED, str(error)), {})

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        """Ask for the sums over the node's users."""
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
