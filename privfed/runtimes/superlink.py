"""SuperLink and SuperNodes: inside a ServerApp the server loop over Flower's grid; outside, a whole federation to run it in."""

from __future__ import annotations

import csv
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid
from omegaconf import OmegaConf

from privfed.experiment import checkpoint
from privfed.federation.client_factory import NodeFactory
from privfed.federation.roster import Roster
from privfed.federation.user_state import PRIVATE
from privfed.foundation.errors import (
    BudgetError,
    ConfigError,
    PrivfedError,
    check_number,
    check_positive,
)
from privfed.runtimes.inprocess import checked_nodes, patient
from privfed.runtimes.superlink_grid import serve_grid
from privfed.runtimes.superlink_processes import Loopback, interruptible

Row = dict[str, Any]
LOOK = 0.5
"""Seconds between looks at a run's progress."""


class SuperLink:
    """Runs the pair over the nodes of a SuperLink."""

    def __init__(
        self,
        name: str,
        nodes: int,
        port: int,
        round_timeout: float,
        join_timeout: float,
        rejoin_timeout: float,
        quorum: float,
    ) -> None:
        check_number(
            "runtime.port",
            port,
            lambda x: x in range(65536),
            "must be a port number, or 0 for a free one",
        )
        self.name, self.nodes, self.port = name, nodes, port
        self.round_timeout = float(check_positive("runtime.round_timeout", round_timeout))
        self.patience = patient(join_timeout, rejoin_timeout, quorum)
        self.grid: Grid | None = None
        """Where nodes are met; known inside a ServerApp only."""
        self.trusting = False
        """Whether nodes are believed their names, as Flower's own simulation gives them no tokens."""

    def nodes_for(self, users: int) -> int:
        """How many nodes these users are spread over."""
        return checked_nodes(self.nodes, users) or 1

    def run(self, strategy: Any, factory: NodeFactory, roster: Roster, rounds: int) -> None:
        """Flower's server loop over the grid of this ServerApp."""
        assert self.grid is not None, "outside a ServerApp a run is launched"
        serve_grid(self.grid, strategy, factory, roster, rounds, self.round_timeout, self.trusting)

    def launch(
        self,
        experiment: Any,
        folder: Path,
        on_step: Callable[[Row], None],
        resume: bool = False,
        say: Callable[[str], None] = lambda command: None,
    ) -> None:
        """Start a SuperLink and SuperNodes on this machine, have them do the run in this folder, end them."""
        if not experiment.simulated:
            raise ConfigError(
                "runtime=superlink: starts nodes of simulated users only; for real ones see docs/runtimes.md"
            )
        roster: Roster = experiment.roster
        with tempfile.TemporaryDirectory(prefix="privfed-") as name, interruptible():
            home = Path(name)
            federation = Loopback(home, self.port, say)
            roster.save(home / "roster.json")
            roster.write_tokens(home / "tokens")
            try:
                federation.start()
                for member in roster:
                    token = home / "tokens" / f"{member.name}.token"
                    kept = folder.resolve() / PRIVATE / member.name
                    state = {"state": str(kept)} if experiment.remembers else {}
                    federation.add_node(
                        member.name, {"node": member.name, "token-file": str(token), **state}
                    )
                number = federation.run(
                    {
                        "settings": OmegaConf.to_yaml(experiment.cfg),
                        "out": str(folder.resolve()),
                        "roster": str(home / "roster.json"),
                        "resume": resume,
                    }
                )
                follow(federation, number, folder, on_step)
            finally:
                federation.stop()


def follow(federation: Loopback, number: str, folder: Path, on_step: Callable[[Row], None]) -> None:
    """Show a run's steps as they are done, until it has ended; raise as it did."""
    shown, asked = len(rows_so_far(folder)), time.monotonic()
    status = federation.home / f"{number}.json"
    while not status.exists():
        time.sleep(LOOK)
        federation.check()
        for row in rows_so_far(folder)[shown:]:
            on_step(row)
            shown += 1
        # The ServerApp says itself how it ended, unless it was killed or never began.
        if time.monotonic() - asked > 30.0:
            asked, (state, why) = time.monotonic(), federation.status(number)
            if state.startswith("finished") and not status.exists():
                raise PrivfedError(
                    f"the ServerApp ended without a word ({state}: {why or 'no reason given'}); go on with --resume"
                )
    end = json.loads(status.read_text())
    errors = {error.exit_code: error for error in (ConfigError, BudgetError)}
    if end["exit_code"]:
        raise errors.get(end["exit_code"], PrivfedError)(end["message"])
    for row in list(rows_of_table(folder))[shown:]:
        on_step(row)


def rows_so_far(folder: Path) -> list[Row]:
    """The rows of the steps that are done, from the checkpoint."""
    try:
        return checkpoint.rows(folder)
    except (OSError, ValueError):
        return []


def rows_of_table(folder: Path) -> Iterator[Row]:
    """The rows of a finished run."""
    with (folder / "rounds.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield {
                key: value if key == "task" else float(value) for key, value in row.items() if value
            }
