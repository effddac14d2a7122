"""One client of a federation: its user's data and head stay here.

privfed client --server HOST:PORT --user ID --data mine.csv --root-certificates ca.crt
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from privfed import __version__
from privfed.commands.parsing import Parser, guarded
from privfed.foundation.errors import ConfigError

EXAMPLES = """
examples:
  privfed client --server host:8080 --user alice --data mine.csv --root-certificates ca.crt --state private/
  privfed client --server 127.0.0.1:8080 --user node-0 --simulate --insecure

The token that proves who you are is read from --token-file, else from the environment variable PRIVFED_TOKEN, else from
ID.token in the current folder. A user who is not registered needs none to get the model of a server that publishes one.

exit codes: 0 done; 2 bad setting, bad data, unreachable or untrusted server, turned away; 1 anything else
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of the command line."""
    parser = Parser(
        prog="privfed client",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Take part in a federation; the data and the head of the user stay on this machine.",
        epilog=EXAMPLES,
    )
    parser.hint = "see --help"
    parser.add_argument(
        "--server", required=True, metavar="HOST:PORT", help="where the server listens"
    )
    parser.add_argument(
        "--user", required=True, metavar="ID", help="the name under which you are registered"
    )
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument(
        "--data", metavar="FILE", type=Path, help="CSV file with a header: your rows, numbers only"
    )
    data.add_argument(
        "--simulate",
        action="store_true",
        help="no data of your own: the users the server's settings describe",
    )
    parser.add_argument(
        "--target",
        default="target",
        metavar="COLUMN",
        help="the column to predict (default: target)",
    )
    parser.add_argument(
        "--test",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="share of your rows that only judge (default 0.2)",
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="the secret that proves who you are"
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="a folder, readable by you only, that keeps your head",
    )
    trust = parser.add_mutually_exclusive_group(required=True)
    trust.add_argument(
        "--root-certificates",
        type=Path,
        metavar="FILE",
        help="the authority the server's certificate is from",
    )
    trust.add_argument(
        "--insecure",
        action="store_true",
        help="plain text: anybody on the way can read and change everything",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds to go on trying (default 30)",
    )
    parser.add_argument(
        "--config-dir",
        default=os.environ.get("PRIVFED_CONFIG_DIR"),
        metavar="DIR",
        help="configs of your own",
    )
    parser.add_argument("--quiet", action="store_true", help="errors only")
    parser.add_argument("--version", action="version", version=f"privfed {__version__}")
    return parser.parse_args(arguments)


def read_token(options: argparse.Namespace) -> str:
    """The user's token; empty where there is none."""
    path = options.token_file or Path(f"{options.user}.token")
    if options.token_file is None and (os.environ.get("PRIVFED_TOKEN") or not path.exists()):
        return os.environ.get("PRIVFED_TOKEN", "")
    try:
        return str(path.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--token-file {path}: cannot be read ({getattr(error, 'strerror', error)})"
        ) from error


def execute(options: argparse.Namespace) -> None:
    """Take part until the server sends everybody home."""
    import grpc

    from privfed.config.choices import CONF
    from privfed.federation.participant import Identity, OwnRows, Participant, TurnedAwayError
    from privfed.runtimes.grpc_transport import check_reachable, converse, read_pem

    if not 0 <= options.test < 1:
        raise ConfigError.of("--test", options.test, "must be at least 0 and less than 1")
    if not 0 <= options.patience < math.inf:
        raise ConfigError.of(
            "--patience", options.patience, "must be a number of seconds, at least 0"
        )
    roots = None if options.insecure else read_pem(options.root_certificates)
    folders = (CONF,) if options.config_dir is None else (CONF, Path(options.config_dir))
    if options.config_dir is not None:
        sys.path.insert(0, options.config_dir)
    rows = None if options.simulate else OwnRows(options.data, options.target, options.test)
    if rows is not None and not rows.path.exists():
        raise ConfigError(f"--data {rows.path}: no such file")
    say = (lambda text: None) if options.quiet else (lambda text: print(text, flush=True))
    me = Participant(Identity(options.user, read_token(options)), rows, options.state, folders, say)
    deadline, pause = time.monotonic() + options.patience, 0.1
    while not me.finished:
        asked = me.questions
        try:
            check_reachable(options.server, roots, timeout=max(1.0, min(10.0, options.patience)))
            converse(options.server, roots, me.answer, lambda: me.finished)
            reason = f"{options.server}: ended the conversation"
        except TurnedAwayError as error:
            if not error.later:
                raise
            reason, asked = str(error), me.questions
        except ConnectionError as error:
            reason = str(error)
        except grpc.RpcError as error:
            reason = f"{options.server}: {error.code().name.lower().replace('_', ' ')} ({error.details()})"
            if roots is None and error.code() == grpc.StatusCode.UNAVAILABLE:
                reason += "; a server that speaks TLS needs --root-certificates"
        if me.finished:
            return
        if me.questions > asked:  # it was a real conversation
            deadline, pause = time.monotonic() + options.patience, 0.1
            say(f"{options.user}: connection lost, trying again for {options.patience:g} s")
        if time.monotonic() + pause > deadline:
            raise ConfigError(f"{reason}; gave up after {options.patience:g} s")
        time.sleep(pause)
        pause = min(2 * pause, 2.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of one client."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: execute(options), "interrupted; the server goes on without this client")
