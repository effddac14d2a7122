"""privfed as a Flower app: what `flwr run` starts, as `server` on the server, as `client` on nodes.

The settings of a run are in its run-config; see :mod:`privfed.config.flower_run_config`.

The settings of a node are in its node-config: `node` and `token-file` (its identity), `data`,
`target` and `test` (rows of its user; without them its users are simulated), `state` (the folder
where heads and the node's ledger are kept), and `max-clip`, `max-epsilon`, `max-delta` and
`min-users` (what its operator allows). What its client is made from comes with every message,
because every message to a SuperNode meets a new process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from omegaconf import OmegaConf

from privfed.config.flower_run_config import configuration
from privfed.config.saved_config import recall
from privfed.federation.node_config import participant_for
from privfed.federation.participant import Participant
from privfed.federation.roster import Roster
from privfed.federation.user_state import PRIVATE, private_folder
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.runtimes.superlink_grid import STATUS
from privfed.runtimes.supernode_client import SuperNodeClient, reasons_kept_private

log = logging.getLogger("privfed.flower_app")
NODES = "nodes.json"
"""Private file of a run in progress: the nodes that were registered when it began."""

server = ServerApp()


@server.main()
def run_server_app(grid: Grid, context: Context) -> None:
    """Do one run, from its settings to the files in its folder."""
    log_to_stdout()
    try:
        folder = conduct(grid, context.run_config)
    except PrivfedError as error:
        log.error("privfed: %s", error)
        tell_end(context.run_id, error.exit_code, str(error))
        # Flower shows the reason of a failed run, and nothing else of it.
        raise RuntimeError(f"privfed: {error} (exit code {error.exit_code})") from None
    except BaseException as error:
        tell_end(context.run_id, 1, f"{type(error).__name__}: {error}")
        raise
    log.info("written to %s", folder)
    tell_end(context.run_id, 0, str(folder))


def log_to_stdout() -> None:
    """Print privfed's log, which Flower passes on; the logs of other libraries are not printed."""
    own = logging.getLogger("privfed")
    own.setLevel(logging.INFO)
    if not own.handlers:
        own.addHandler(logging.StreamHandler(sys.stdout))
        own.propagate = False


def tell_end(run: int, exit_code: int, message: str) -> None:
    """Write how a run ended to the folder in the variable STATUS, if it is set.

    Args:
        run: Flower's number of the run.
        exit_code: 0 if it is complete.
        message: reason of the end, or the folder of the run.
    """
    if folder := os.environ.get(STATUS):
        content = json.dumps({"exit_code": exit_code, "message": message})
        write_atomically(Path(folder) / f"{run}.json", content.encode())


def conduct(grid: Grid, run: Mapping[str, Any]) -> Path:
    """Do the run that a run-config describes.

    Args:
        grid: Flower's grid of nodes.
        run: see :mod:`privfed.config.flower_run_config`.

    Returns:
        The folder of the run.

    Raises:
        PrivfedError: if the settings are not allowed, or the run cannot go on.
    """
    from privfed.experiment.registered_users import (
        check_takes_real_users,
        with_registered_users,
    )
    from privfed.experiment.run_folder import start_folder
    from privfed.experiment.wiring import Experiment
    from privfed.report.run_files import write_run
    from privfed.report.wording import describe_step, name_step
    from privfed.runtimes.superlink import SuperLink

    cfg = configuration(run)
    roster = Roster.read(Path(str(run["roster"]))) if run.get("roster") else None
    with_registered_users(cfg, roster)
    experiment = Experiment(cfg, roster)
    check_takes_real_users(experiment)
    if roster is None and not experiment.simulated:
        raise ConfigError(
            "roster: real users take part; "
            "give the file with the registered nodes in the run-config"
        )
    if not isinstance(experiment.runtime, SuperLink):
        raise ConfigError.of("runtime", cfg.runtime.name, "what flwr run starts has superlink")
    experiment.runtime.grid, experiment.runtime.trusting = grid, roster is None
    resume = bool(run.get("resume"))
    out = str(run.get("out") or cfg.out or "")
    listed = json.dumps(experiment.roster.public(), indent=1) + "\n"
    if resume:
        folder = Path(out)
        nodes = folder / PRIVATE / NODES
        if nodes.exists() and nodes.read_text(encoding="utf-8") != listed:
            raise ConfigError(
                f"roster: is not that of the run in {folder}; "
                "users would be numbered anew, and pay twice"
            )
        if OmegaConf.to_yaml(recall(folder, [])) != OmegaConf.to_yaml(cfg):
            raise ConfigError(
                f"resume: the settings are not those of the run in {folder}; "
                "a resumed run keeps its settings"
            )
    else:
        folder = start_folder(cfg, out or None, cfg.algo.name)
        if roster is not None:
            write_atomically(private_folder(folder) / NODES, listed.encode(), 0o600)
    log.info("the run's folder is %s", folder.resolve())
    main, rounds = experiment.strategy.rounds_task, experiment.strategy.planned_rounds

    def step(row: dict[str, Any]) -> None:
        log.info("  %-14s %s", name_step(row, main, rounds), describe_step(row))

    write_run(folder, cfg, experiment.run(folder, step, resume=resume))
    return folder.resolve()


def make_client(context: Context) -> Client:
    """Make the client of the node with a node-config."""
    log_to_stdout()
    with reasons_kept_private():
        return SuperNodeClient(participant(tuple(sorted(context.node_config.items()))))


@lru_cache(maxsize=64)
def participant(settings: tuple[tuple[str, Any], ...]) -> Participant:
    """Make the participant of a node, once per process: those of Flower's simulation last.

    Args:
        settings: sorted items of the node-config.
    """
    return participant_for(dict(settings), say=log.info)


client = ClientApp(client_fn=make_client)
