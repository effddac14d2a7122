"""The server of a federation with real clients.

privfed roster roster.json alice bob carol
privfed server algo=fedrep eps=1 data=remote data.d=5 --roster roster.json --certificates DIR
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from privfed.commands.parsing import (
    Parser,
    add_general,
    add_settings,
    add_simulation,
    guarded,
    start_log,
    use_config_dir,
)
from privfed.foundation.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from privfed.experiment.wiring import Experiment
    from privfed.federation.roster import Roster
    from privfed.runtimes.grpc import Grpc

ROSTER = "roster.json"
"""File of a run in progress: its registered nodes with their tokens."""
EXAMPLES = """
examples:
  privfed roster roster.json alice bob carol
      who may take part; a token file for each
  privfed certificates certificates server.example.org
      an authority of your own, for tests and demos
  privfed server eps=1 data=remote data.d=5 --roster roster.json --listen 0.0.0.0:8080 \\
      --certificates certificates
  privfed server eps=1 data=table data.schema=schema.yaml --roster roster.json --certificates DIR
      tables of real users, read by the schema that the server declares
  privfed server eps=1 data.n=200 runtime.nodes=3 --insecure
      simulated users, clients started by hand
  privfed server --resume RUN --certificates certificates
      go on after the server was stopped
  privfed server --publish RUN --certificates certificates
      give a finished run's model to new users

exit codes: 0 done; 2 bad configuration, roster or certificate, port in use;
3 privacy budget refused; 1 anything else
"""


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="privfed server",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train with clients that connect over gRPC. "
        "Settings are those of python -m privfed.run.",
        epilog=EXAMPLES,
    )
    add_settings(parser)
    parser.add_argument(
        "--roster", type=Path, metavar="FILE", help="who may take part, from privfed roster"
    )
    parser.add_argument(
        "--listen",
        default="127.0.0.1:8080",
        metavar="HOST:PORT",
        help="default 127.0.0.1:8080; port 0: a free one",
    )
    trust = parser.add_mutually_exclusive_group(required=True)
    trust.add_argument(
        "--certificates",
        type=Path,
        metavar="DIR",
        help="a folder with ca.crt, server.crt and server.key",
    )
    trust.add_argument(
        "--insecure",
        action="store_true",
        help="plain text: anybody on the way can read and change everything",
    )
    parser.add_argument(
        "--simulate", action="store_true", help="start the roster's simulated nodes on this machine"
    )
    parser.add_argument(
        "--status",
        metavar="HOST:PORT",
        help="serve a status page, /healthz, /readyz and /metrics there, as 127.0.0.1:8081; "
        "the page names nodes, so keep it to yourself",
    )
    parser.add_argument(
        "--json-log", action="store_true", help="log one JSON object per line, for collectors"
    )
    parser.add_argument(
        "--stay",
        action="store_true",
        help="after training go on giving the model to new users, until Ctrl-C",
    )
    parser.add_argument(
        "--resume", type=Path, metavar="RUN", help="go on with an interrupted run, from its folder"
    )
    parser.add_argument(
        "--publish",
        type=Path,
        metavar="RUN",
        help="train nothing: give a finished run's model to whoever asks",
    )
    add_simulation(parser, "--publish and --stay also give out a simulation on a real table")
    add_general(parser)
    return parser.parse_intermixed_args(arguments)


def _execute(options: argparse.Namespace) -> None:
    level = logging.WARNING if options.quiet else logging.INFO
    start_log(level, options.json_log)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    use_config_dir(options.config_dir)
    cfg, roster = _settings(options)

    from privfed.experiment.registered_users import check_takes_real_users
    from privfed.experiment.run_folder import carry_out, start_folder
    from privfed.experiment.wiring import Experiment
    from privfed.federation.user_state import PRIVATE, private_folder
    from privfed.privacy.statement import check_may_leave, exposes
    from privfed.report import console, loggers
    from privfed.runtimes.grpc import Grpc

    experiment = Experiment(cfg, roster)
    runtime = experiment.runtime
    if not isinstance(runtime, Grpc):
        raise ConfigError.of(
            "runtime", cfg.runtime.name, "privfed server is the server of runtime=grpc"
        )
    check_takes_real_users(experiment)
    loggers.chosen(cfg)
    _configure(runtime, experiment, options)
    if options.publish is not None:
        result = json.loads((options.publish / "result.json").read_text(encoding="utf-8"))
        exposed = exposes(result, experiment.real)
        check_may_leave(f"--publish {options.publish}", exposed, options.simulation)
        _publish(experiment, runtime, options.publish)
        return
    if options.stay:
        check_may_leave("--stay", experiment.exposes, options.simulation)
    folder = options.resume or start_folder(cfg, cfg.out, cfg.algo.name)
    # Names and tokens are gone when the run is complete; those of --roster stay with its owner.
    if options.resume is None:
        experiment.roster.save(private_folder(folder) / ROSTER)
    tokens = (options.roster or folder / PRIVATE / ROSTER).parent / "tokens"
    if options.roster is None and options.resume is None:
        experiment.roster.write_tokens(tokens)
    runtime.on_listening = lambda port: _announce(experiment.roster, options, tokens, port)
    with console.RunProgress(experiment, quiet=options.quiet) as progress:
        carry_out(experiment, folder, options.resume is not None, progress.step)
    if not options.quiet:
        console.show_summary(json.loads((folder / "result.json").read_text()), folder)
    if options.stay:
        _publish(experiment, runtime, folder)


def _settings(options: argparse.Namespace) -> tuple[DictConfig, Roster | None]:
    """Return the configuration and the roster, of a new run or of the one in a folder."""
    from privfed.config.composition import compose
    from privfed.config.saved_config import finished, recall
    from privfed.experiment.registered_users import with_registered_users
    from privfed.federation.roster import Roster
    from privfed.federation.user_state import PRIVATE

    before = options.resume or options.publish
    if before is None:
        cfg = compose(["runtime=grpc", *options.overrides], options.config_dir)
        roster = None if options.roster is None else Roster.read(options.roster)
    else:
        if options.roster is not None:
            raise ConfigError(
                f"--roster {options.roster}: the run in {before} keeps its own; "
                "give none beside --resume"
            )
        look_up = recall if options.publish is None else finished
        cfg = look_up(before, options.overrides)
        roster = None if options.resume is None else Roster.read(before / PRIVATE / ROSTER)
    if cfg.runtime.name != "grpc":
        raise ConfigError.of(
            "runtime", cfg.runtime.name, "privfed server is the server of runtime=grpc"
        )
    if before is None:
        with_registered_users(cfg, roster)
    return cfg, roster


def _configure(runtime: Grpc, experiment: Experiment, options: argparse.Namespace) -> None:
    """Tell the runtime what the command line says about connections."""
    from privfed.runtimes.grpc import Endpoint
    from privfed.runtimes.grpc_transport import Certificates

    certificates = None if options.insecure else Certificates.read(options.certificates)
    runtime.spawn, runtime.status = options.simulate, options.status
    runtime.outside = Endpoint(options.listen, certificates)
    cfg, budget = experiment.cfg, experiment.budget
    simulation = ", simulation" if experiment.federation.gate.source.repeatable else ""
    runtime.about = (
        f"{cfg.algo.name} at epsilon {budget.epsilon:g}, delta {budget.delta:g} "
        f"({budget.neighbouring}{simulation})"
    )


def _publish(experiment: Experiment, runtime: Grpc, folder: Path) -> None:
    """Send the model of a finished run to every client that connects, until Ctrl-C."""
    try:
        runtime.publish(
            experiment.factory, experiment.roster, experiment.strategy.publishes, folder
        )
    except KeyboardInterrupt:
        print("stopped")


def _announce(roster: Roster, options: argparse.Namespace, tokens: Path, port: int) -> None:
    """Print the command that starts each client."""
    host = options.listen.rpartition(":")[0]
    where = f"{'HOST' if host in ('0.0.0.0', '[::]', '::') else host}:{port}"
    trust = "--insecure"
    if not options.insecure:
        trust = f"--root-certificates {options.certificates / 'ca.crt'}"
    print(
        f"listening on {where}; waiting for {len(roster)} node(s). Start the clients with",
        flush=True,
    )
    for member in roster:
        if member.simulated and options.simulate:
            continue
        data = (
            "--simulate" if member.simulated else f"--data mine.csv --state {member.name}-private"
        )
        who = f"--user {member.name} --token-file {tokens / member.name}.token"
        print(f"  privfed client --server {where} {who} {data} {trust}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the run is over; return the exit code."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    return guarded(
        lambda: _execute(options),
        "interrupted; nothing is lost, go on with --resume and the run's folder",
    )
