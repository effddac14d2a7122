"""SuperLink and SuperNodes.

Inside a ServerApp this runtime is Flower's server loop over the grid. Outside, it starts a
SuperLink and SuperNodes on this machine and has them do the run.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from flwr.server.strategy import Strategy
from flwr.serverapp import Grid

from privfed.federation.client_factory import ClientFactory
from privfed.federation.roster import Roster
from privfed.federation.user_state import PRIVATE
from privfed.foundation.constraints import Number
from privfed.foundation.errors import BudgetError, ConfigError, PrivfedError
from privfed.runtimes.interruption import interruptible
from privfed.runtimes.runtime import (
    LaunchedRun,
    Nodes,
    Patience,
    Quorum,
    Row,
    Runtime,
    Seconds,
    checked_nodes,
)
from privfed.runtimes.superlink_grid import run_on_grid
from privfed.runtimes.superlink_processes import LocalDeployment

Port = Annotated[
    int, Number(lambda x: x in range(65536), "must be a port number, or 0 for a free one")
]
POLL = 0.5
"""Seconds between looks at the progress of a run."""
ASK_SUPERLINK = 30.0
"""Seconds between questions to the SuperLink about a run that says nothing itself."""


class SuperLink(Runtime):
    """Runs one SuperNode per node.

    Args:
        name: name of the runtime.
        nodes: number of SuperNodes; one unless given.
        port: port of the SuperLink on this machine; 0 takes a free one.
        round_timeout: seconds that a node has per round.
        join_timeout: see :class:`Patience`.
        rejoin_timeout: see :class:`Patience`.
        quorum: see :class:`Patience`.
        start_quorum: see :class:`Patience`.
    """

    launches = True

    def __init__(
        self,
        name: str,
        nodes: Nodes,
        port: Port,
        round_timeout: Seconds,
        join_timeout: Seconds,
        rejoin_timeout: Seconds,
        quorum: Quorum,
        start_quorum: Quorum = 0.5,
    ) -> None:
        self.name, self.nodes, self.port = name, nodes, port
        self.round_timeout = float(round_timeout)
        self.patience = Patience(
            join_timeout, rejoin_timeout, quorum, strict=False, start_quorum=start_quorum
        )
        self.grid: Grid | None = None
        """Flower's grid of nodes, inside a ServerApp."""
        self.trusting = False
        """Whether names are believed without a proof: Flower's simulation gives no tokens."""

    def nodes_for(self, users: int) -> int:
        """See :class:`Runtime`."""
        return checked_nodes(self.nodes, users) or 1

    def run(self, strategy: Strategy, factory: ClientFactory, roster: Roster, rounds: int) -> None:
        """See :class:`Runtime`."""
        assert self.grid is not None, "outside a ServerApp a run is launched"
        run_on_grid(self.grid, strategy, factory, roster, rounds, self.round_timeout, self.trusting)

    def launch(self, run: LaunchedRun) -> None:
        """See :class:`Runtime`."""
        if not run.simulated:
            raise ConfigError(
                "runtime=superlink: starts nodes of simulated users only; "
                "for real ones see docs/runtimes.md"
            )
        folder = run.folder.resolve()
        with tempfile.TemporaryDirectory(prefix="privfed-") as name, interruptible():
            home = Path(name)
            deployment = LocalDeployment(home, self.port, run.say)
            run.roster.save(home / "roster.json")
            run.roster.write_tokens(home / "tokens")
            try:
                deployment.start()
                for member in run.roster:
                    token = home / "tokens" / f"{member.name}.token"
                    state = {"state": str(folder / PRIVATE / member.name)} if run.remembers else {}
                    deployment.add_node(
                        member.name, {"node": member.name, "token-file": str(token), **state}
                    )
                number = deployment.run(
                    {
                        "settings": run.settings,
                        "out": str(folder),
                        "roster": str(home / "roster.json"),
                        "resume": run.resume,
                    }
                )
                follow(deployment, number, run.rows, run.on_step)
            finally:
                deployment.stop()


def follow(
    deployment: LocalDeployment,
    number: str,
    rows: Callable[[], list[Row]],
    on_step: Callable[[Row], None],
) -> None:
    """Report the steps of a run as they are done, until the run has ended.

    Args:
        deployment: the processes that do the run.
        number: number of the run.
        rows: returns what was recorded of each step that is done.
        on_step: called with what was recorded, once per step.

    Raises:
        PrivfedError: as the run did, or if its processes stopped.
    """
    shown, asked = len(rows()), time.monotonic()
    status = deployment.home / f"{number}.json"
    while not status.exists():
        time.sleep(POLL)
        deployment.check()
        for row in rows()[shown:]:
            on_step(row)
            shown += 1
        # The ServerApp itself says how it ended, unless it was killed or never began.
        if time.monotonic() - asked > ASK_SUPERLINK:
            asked, (state, why) = time.monotonic(), deployment.status(number)
            if state.startswith("finished") and not status.exists():
                raise PrivfedError(
                    f"the ServerApp ended without a word ({state}: {why or 'no reason given'}); "
                    "go on with --resume"
                )
    end = json.loads(status.read_text())
    errors = {error.exit_code: error for error in (ConfigError, BudgetError)}
    if end["exit_code"]:
        raise errors.get(end["exit_code"], PrivfedError)(end["message"])
    for row in rows()[shown:]:
        on_step(row)
