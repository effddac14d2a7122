"""privfed as a Flower app: what `flwr run` starts, on the server as `server`, on every node as `client`.

The run's settings are in its run-config (defaults in pyproject.toml, under [tool.flwr.app.config]):

    overrides   settings as on privfed's command line: "algo=fedrep eps=1"
    out         folder of the run on the server; relative to where flower-superlink was started
    roster      file with the registered nodes, on the server; without it only simulated users can take part
    resume      true: go on with the interrupted run in `out`, with the same settings
    settings    a whole configuration as YAML, instead of overrides

A node's own settings are in its node-config: `node` and `token-file` (who it is), `data`, `target` and `test` (its user's
rows; without them its users are simulated), and `state` (the folder where heads are kept). What its client is made from comes
with every message, as over a SuperLink every message meets a new process.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.common import EvaluateIns, EvaluateRes, FitIns, FitRes, GetPropertiesIns, GetPropertiesRes
from flwr.serverapp import Grid, ServerApp
from omegaconf import DictConfig, OmegaConf

from privfed.config.composition import CONF, compose, recall
from privfed.federation.participant import OK, Identity, OwnRows, Participant, TurnedAwayError
from privfed.federation.roster import Roster
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError, PrivfedError, nearest
from privfed.runtimes.superlink_grid import WELCOME

log = logging.getLogger("privfed.commands.flower_app")
STATUS = "PRIVFED_STATUS"
"""Environment variable: a folder that is told how each run ended, for whoever started this federation."""
NODES = "nodes.json"
"""Who was registered when the run began, without tokens."""
RUN_KEYS = ("overrides", "settings", "out", "roster", "resume")
NODE_KEYS = (
    "node",
    "token-file",
    "data",
    "target",
    "test",
    "state",
    "partition-id",
    "num-partitions",
)

server = ServerApp()


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """One run, from its settings to the files in its folder."""
    speak()
    try:
        folder = conduct(grid, context.run_config)
    except PrivfedError as error:
        log.error("privfed: %s", error)
        report(context.run_id, error.exit_code, str(error))
        # Flower shows the reason of a failed run, and nothing else of it.
        raise RuntimeError(f"privfed: {error} (exit code {error.exit_code})") from None
    except BaseException as error:
        report(context.run_id, 1, f"{type(error).__name__}: {error}")
        raise
    log.info("written to %s", folder)
    report(context.run_id, 0, str(folder))


def speak() -> None:
    """What privfed has to say goes to the process's output, which Flower passes on; nothing of other libraries does."""
    own = logging.getLogger("privfed")
    own.setLevel(logging.INFO)
    if not own.handlers:
        own.addHandler(logging.StreamHandler(sys.stdout))
        own.propagate = False


def report(run: int, exit_code: int, message: str) -> None:
    """Tell how the run ended, if anybody asked."""
    if folder := os.environ.get(STATUS):
        content = json.dumps({"exit_code": exit_code, "message": message})
        write_atomically(Path(folder) / f"{run}.json", content.encode())


def conduct(grid: Grid, run: Mapping[str, Any]) -> Path:
    """Run the experiment that the run-config describes over the nodes of the grid; the folder it was written to."""
    from privfed.commands.run import prepare_folder
    from privfed.experiment.wiring import Experiment
    from privfed.report.run_files import keep_previous, write_config, write_run
    from privfed.report.wording import describe_step, name_step

    cfg = configuration(run)
    roster = Roster.read(Path(str(run["roster"]))) if run.get("roster") else None
    if roster is not None and cfg.data.get("n", 0) is None:
        cfg.data.n = roster.users
    experiment = Experiment(cfg, roster)
    if roster is None and not experiment.simulated:
        raise ConfigError(
            "roster: real users take part; give the file with the registered nodes in the run-config"
        )
    experiment.runtime.grid, experiment.runtime.trusting = grid, roster is None
    resume = bool(run.get("resume"))
    out = str(run.get("out") or cfg.out or "")
    listed = json.dumps(experiment.roster.public(), indent=1) + "\n"
    if resume:
        folder = Path(out)
        if (folder / NODES).exists() and (folder / NODES).read_text(encoding="utf-8") != listed:
            raise ConfigError(
                f"roster: is not that of the run in {folder}; users would be numbered anew, and pay twice"
            )
        if OmegaConf.to_yaml(recall(folder, [])) != OmegaConf.to_yaml(cfg):
            raise ConfigError(
                f"resume: the settings are not those of the run in {folder}; a resumed run keeps its settings"
            )
    else:
        folder = prepare_folder(out or None, cfg.algo.name)
        keep_previous(folder)
        write_config(folder, cfg)
        if roster is not None:
            write_atomically(folder / NODES, listed.encode())
    log.info("the run's folder is %s", folder.resolve())
    main, rounds = experiment.strategy.task, experiment.strategy.rounds

    def step(row: dict[str, Any]) -> None:
        log.info("  %-14s %s", name_step(row, main, rounds), describe_step(row))

    write_run(folder, cfg, experiment.run(folder, step, resume=resume))
    return folder.resolve()


def configuration(run: Mapping[str, Any]) -> DictConfig:
    """The settings of a run: from overrides, or whole."""
    if unknown := [key for key in run if key not in RUN_KEYS]:
        raise ConfigError(
            f"run-config {unknown[0]}: there is no such setting; {nearest(unknown[0], RUN_KEYS)}"
        )
    if run.get("settings"):
        if run.get("overrides"):
            raise ConfigError("run-config: give overrides or settings, not both")
        return OmegaConf.create(str(run["settings"]))  # type: ignore[return-value]
    try:
        overrides = shlex.split(str(run.get("overrides") or ""))
    except ValueError as error:
        raise ConfigError(f"run-config overrides={run['overrides']}: {error}") from error
    chosen = [text for text in overrides if text.startswith("runtime=")]
    if chosen and chosen[-1] != "runtime=superlink":
        raise ConfigError(
            f"{chosen[-1]}: what flwr run starts has runtime=superlink; start others with python -m privfed.run"
        )
    return compose([*([] if chosen else ["runtime=superlink"]), *overrides])


class NodeClient(Client):
    """A node's client; made anew for every message, around a participant that remembers what it can."""

    def __init__(self, participant: Participant) -> None:
        self.participant = participant

    def get_properties(self, ins: GetPropertiesIns) -> GetPropertiesRes:
        """Prove who we are, or hear why we are not wanted."""
        try:
            return GetPropertiesRes(OK, self.participant.properties(ins.config))
        except TurnedAwayError as error:
            log.error("privfed: %s", error)
            return GetPropertiesRes(OK, {})

    def fit(self, ins: FitIns) -> FitRes:
        """The users' contribution."""
        with discreet():
            self.participant.welcome(str(ins.config.pop(WELCOME)))
            if self.participant.client.memory is not None and self.participant.state is None:
                raise ConfigError(
                    "users of this algorithm keep heads between rounds: give the node a folder, state=DIR"
                )
            return self.participant.client.to_client().fit(ins)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        """Take the published model."""
        with discreet():
            self.participant.welcome(str(ins.config.pop(WELCOME)))
            return self.participant.evaluate(ins)


@contextmanager
def discreet() -> Iterator[None]:
    """Flower sends an exception's words to the server, and those of a mistake in a user's file may quote it: here they stay."""
    try:
        yield
    except Exception as error:
        log.error("privfed: %s", error)
        raise PrivfedError("this node could not answer; its own log says why") from None


def make_client(context: Context) -> Client:
    """The client of the node with this node-config."""
    speak()
    return NodeClient(participant(tuple(sorted(context.node_config.items()))))


@lru_cache(maxsize=64)
def participant(settings: tuple[tuple[str, Any], ...]) -> Participant:
    """Who answers for a node; kept, as in Flower's simulations processes last, and data need not be made again."""
    node = dict(settings)
    if unknown := [key for key in node if key not in NODE_KEYS]:
        raise ConfigError(
            f"node-config {unknown[0]}: there is no such setting; {nearest(unknown[0], NODE_KEYS)}"
        )
    own = os.environ.get("PRIVFED_CONFIG_DIR")  # algorithms of one's own
    state = Path(str(node["state"])) if "state" in node else None
    return Participant(
        identity_of(node), rows_of(node), state, (CONF, Path(own)) if own else (CONF,), say=log.info
    )


def identity_of(node: Mapping[str, Any]) -> Identity:
    """The name and the token of a node. Without a token it is a part of a simulation that Flower itself started."""
    if "node" not in node:
        if "partition-id" not in node:
            raise ConfigError(
                'node-config: say who this node is, as in node="clinic-7" token-file="clinic-7.token"'
            )
        return Identity(str(node["partition-id"]), "")
    if "token-file" not in node:
        raise ConfigError(
            f'node-config: {node["node"]} needs its token, as in token-file="{node["node"]}.token"'
        )
    path = Path(str(node["token-file"]))
    try:
        return Identity(str(node["node"]), path.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error


def rows_of(node: Mapping[str, Any]) -> OwnRows | None:
    """A real user's own file; None where users are simulated."""
    if "data" not in node:
        return None
    test = node.get("test", 0.2)
    if isinstance(test, bool) or not isinstance(test, int | float) or not 0 <= test < 1:
        raise ConfigError(
            f"node-config test={test}: must be a fraction of the rows, at least 0 and below 1"
        )
    return OwnRows(Path(str(node["data"])), str(node.get("target", "target")), float(test))


client = ClientApp(client_fn=make_client)
