"""Contract of a runtime: what an experiment may ask of it, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from flwr.server.strategy import Strategy

from privfed.federation.client_factory import ClientFactory
from privfed.federation.roster import Roster
from privfed.foundation.constraints import POSITIVE, WHOLE, Number
from privfed.foundation.errors import ConfigError

Row = dict[str, Any]
"""What was recorded of one step, by column."""
Nodes = Annotated[int, WHOLE] | None
"""Number of nodes that users are spread over; None: the runtime chooses."""
Seconds = Annotated[float, POSITIVE]
Quorum = Annotated[float, Number(lambda x: 0 <= x <= 1, "must lie between 0 and 1")]


@dataclass(frozen=True)
class Patience:
    """How a federation treats nodes that are late or gone.

    Attributes:
        join_timeout: seconds to wait for all nodes before the first step.
        start_quorum: fraction of the users that have to be connected after that time; others may
            join later.
        rejoin_timeout: seconds to wait in later steps for the quorum.
        quorum: fraction of the users that a step needs; with fewer, the run stops.
        strict: whether a failing node stops the run; otherwise its users count as zero.
    """

    join_timeout: float = 600.0
    rejoin_timeout: float = 0.0
    quorum: float = 0.0
    strict: bool = True
    start_quorum: float = 1.0


@dataclass(frozen=True)
class LaunchedRun:
    """A run that a runtime has other processes do.

    Attributes:
        settings: whole configuration of the run, as YAML.
        roster: registered nodes.
        simulated: whether all users are simulated.
        remembers: whether users keep something from round to round.
        folder: folder of the run; it has the configuration already.
        resume: whether to continue the interrupted run in the folder.
        rows: returns what was recorded of each step that is done.
        on_step: called with what was recorded, once per step.
        say: called with every command line that is executed.
    """

    settings: str
    roster: Roster
    simulated: bool
    remembers: bool
    folder: Path
    resume: bool
    rows: Callable[[], list[Row]]
    on_step: Callable[[Row], None]
    say: Callable[[str], None] = lambda command: None


class Runtime(Protocol):
    """Executes a strategy and its clients.

    Attributes:
        name: name of the runtime in the configuration.
        patience: how nodes that are late or gone are treated.
        launches: whether `launch` does a run, in other processes, which also write its files;
            otherwise `run` does it in this process.
    """

    name: str
    patience: Patience
    launches: bool = False

    def nodes_for(self, users: int) -> int:
        """Return the number of nodes that `users` simulated users are spread over.

        Raises:
            ConfigError: if the configured number of nodes does not suit.
        """
        ...

    def run(self, strategy: Strategy, factory: ClientFactory, roster: Roster, rounds: int) -> None:
        """Run Flower's server loop.

        Args:
            strategy: server side of the algorithm.
            factory: makes the client of a node from the range of its users.
            roster: registered nodes.
            rounds: number of calls of `configure_fit`.
        """
        ...

    def launch(self, run: LaunchedRun) -> None:
        """Have other processes do a run, and wait until it is complete.

        Raises:
            PrivfedError: as the run itself did.
        """
        raise TypeError(f"runtime={self.name} does its runs in this process")


def checked_nodes(nodes: int | None, users: int) -> int | None:
    """Return the configured number of nodes if there are users enough for it.

    Raises:
        ConfigError: if there are more nodes than users.
    """
    if nodes is not None and nodes > users:
        raise ConfigError.of("runtime.nodes", nodes, f"more nodes than the {users} users")
    return nodes
