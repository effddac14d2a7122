"""The server of a federation with real clients.

privfed roster roster.json alice bob carol
privfed server algo=fedrep eps=1 data=remote data.d=5 --roster roster.json --certificates certificates/
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privfed import __version__
from privfed.commands.run import Parser, guarded, prepare_folder
from privfed.foundation.errors import ConfigError

EXAMPLES = """
examples:
  privfed roster roster.json alice bob carol                        who may take part; a token file for each
  privfed certificates certificates server.example.org         an authority of your own, for tests and demos
  privfed server eps=1 data=remote data.d=5 --roster roster.json --listen 0.0.0.0:8080 --certificates certificates
  privfed server eps=1 data.n=200 runtime.nodes=3 --insecure        simulated users, clients started by hand
  privfed server --resume RUN --certificates certificates           go on after the server was stopped
  privfed server --publish RUN --certificates certificates          give a finished run's model to new users

exit codes: 0 done; 2 bad configuration, roster or certificate, port in use; 3 privacy budget refused; 1 anything else
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of the command line; everything else is key=value as in privfed run."""
    parser = Parser(
        prog="privfed server",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train with clients that connect over gRPC. Settings are those of python -m privfed.run.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings, for example algo=fedrep eps=1"
    )
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
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        help="a folder with configs of your own (algo/mine.yaml, ...)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")
    parser.add_argument("--version", action="version", version=f"privfed {__version__}")
    return parser.parse_intermixed_args(arguments)


def execute(options: argparse.Namespace) -> None:
    """Serve what was asked for."""
    from privfed.config.composition import compose
    from privfed.config.run_config import finished, recall
    from privfed.federation.roster import Roster

    level = logging.WARNING if options.quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    before = options.resume or options.publish
    if before is not None and options.roster is not None:
        raise ConfigError(
            f"--roster {options.roster}: the run in {before} keeps its own; give none beside --resume"
        )
    if before is not None:
        cfg = (
            recall(before, options.overrides)
            if options.publish is None
            else finished(before, options.overrides)
        )
        roster = Roster.read(before / "roster.json") if (before / "roster.json").exists() else None
    else:
        cfg = compose(["runtime=grpc", *options.overrides], options.config_dir)
        roster = None if options.roster is None else Roster.read(options.roster)
    if cfg.runtime.name != "grpc":
        raise ConfigError.of(
            "runtime", cfg.runtime.name, "privfed server is the server of runtime=grpc"
        )
    if roster is not None and cfg.data.get("n", 0) is None:
        cfg.data.n = roster.users
    if options.config_dir is not None:
        sys.path.insert(0, options.config_dir)

    from privfed.commands.run import carry_out
    from privfed.experiment.wiring import Experiment
    from privfed.report import console, loggers
    from privfed.report.run_files import keep_previous, write_config

    experiment = Experiment(cfg, roster)
    loggers.chosen(cfg)
    configure(experiment, options)
    if options.publish is not None:
        publish(experiment, options.publish)
        return
    folder = options.resume or prepare_folder(cfg.out, cfg.algo.name)
    if options.resume is None:
        keep_previous(folder)
        write_config(folder, cfg)
        experiment.roster.save(folder / "roster.json")
    tokens = (options.roster or folder / "roster.json").parent / "tokens"
    if options.roster is None and options.resume is None:
        experiment.roster.write_tokens(tokens)
    experiment.runtime.on_listening = lambda port: announce(experiment, options, tokens, port)
    with console.Progress(experiment, quiet=options.quiet) as progress:
        carry_out(experiment, folder, options.resume is not None, progress.step)
    if not options.quiet:
        console.show_summary(json.loads((folder / "result.json").read_text()), folder)
    if options.stay:
        publish(experiment, folder)


def configure(experiment: Any, options: argparse.Namespace) -> None:
    """What the command line says about connections."""
    from privfed.runtimes.grpc_transport import Certificates

    runtime, cfg = experiment.runtime, experiment.cfg
    runtime.spawn = options.simulate
    runtime.outside = (
        options.listen,
        None if options.insecure else Certificates.read(options.certificates),
    )
    runtime.about = (
        f"{cfg.algo.name} at epsilon {cfg.eps:g}, delta {cfg.delta:g} ({cfg.neighbouring})"
    )


def publish(experiment: Any, folder: Path) -> None:
    """Give the model of a finished run to whoever comes; Ctrl-C is the way to end it."""
    try:
        experiment.runtime.publish(experiment, folder)
    except KeyboardInterrupt:
        print("stopped")


def announce(experiment: Any, options: argparse.Namespace, tokens: Path, port: int) -> None:
    """Print the command each client is to be started with."""
    host = options.listen.rpartition(":")[0]
    where = f"{'HOST' if host in ('0.0.0.0', '[::]', '::') else host}:{port}"
    trust = (
        "--insecure"
        if options.insecure
        else f"--root-certificates {options.certificates / 'ca.crt'}"
    )
    waiting = [
        member for member in experiment.roster if not (member.simulated and options.simulate)
    ]
    print(
        f"listening on {where}; waiting for {len(experiment.roster)} node(s). Start the clients with",
        flush=True,
    )
    for member in waiting:
        data = "--simulate" if member.simulated else "--data mine.csv"
        line = f"privfed client --server {where} --user {member.name} --token-file {tokens / member.name}.token"
        print(f"  {line} {data} {trust}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of one server."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    return guarded(
        lambda: execute(options),
        "interrupted; nothing is lost, go on with --resume and the run's folder",
    )
