"""One client of a federation: the data and the head of its user stay on this machine.

privfed client --server HOST:PORT --user ID --data mine.csv --root-certificates ca.crt
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from privfed.commands.node_options import add_participation, check_data, limits_in, vow_in
from privfed.commands.parsing import (
    OWN_CONFIGS,
    Parser,
    add_config_dir,
    add_general,
    guarded,
    use_config_dir,
)
from privfed.foundation.errors import ConfigError

EXAMPLES = """
examples:
  privfed client --server host:8080 --user alice --data mine.csv --root-certificates ca.crt \\
      --state private/
  privfed client --server host:8080 --user alice --data mine.csv --root-certificates ca.crt \\
      --plan
      what the server will ask, before anything is sent
  privfed client ... --max-epsilon 4 --max-clip 1 --min-users 1000
      refuse more, whatever the server asks
  privfed client --enroll --user alice
      make a key; give what it prints to the operator (privfed roster --key)
  privfed client ... --roster-hash 5f0c...
      send masked sums only, in a federation whose roster has this hash
  privfed client --server 127.0.0.1:8080 --user node-0 --simulate --insecure

The token that proves who you are is read from --token-file, else from the environment variable
PRIVFED_TOKEN, else from ID.token in the current folder. A user who is not registered needs none
to get the model of a server that publishes one.

exit codes: 0 done; 2 bad setting, bad data, unreachable or untrusted server, turned away, or the
server asked for something else than planned; 3 more than --max-epsilon; 1 anything else
"""


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="privfed client",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Take part in a federation; "
        "the data and the head of the user stay on this machine.",
        epilog=EXAMPLES,
    )
    parser.hint = "see --help"
    parser.add_argument(
        "--server", required=True, metavar="HOST:PORT", help="where the server listens"
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
    add_participation(parser)
    parser.add_argument(
        "--keepalive",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds between pings on a quiet connection (default 10)",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="show what the server will ask and what it costs, and leave; nothing is sent",
    )
    add_config_dir(parser, default=os.environ.get(OWN_CONFIGS))
    add_general(parser, quiet="errors only")
    return parser.parse_args(arguments)


def _read_token(options: argparse.Namespace) -> str:
    """Return the token of the user; empty if there is none."""
    path = options.token_file or Path(f"{options.user}.token")
    if options.token_file is None and (os.environ.get("PRIVFED_TOKEN") or not path.exists()):
        return os.environ.get("PRIVFED_TOKEN", "")
    try:
        return str(path.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", error)
        raise ConfigError(f"--token-file {path}: cannot be read ({reason})") from error


def _enroll(arguments: Sequence[str]) -> None:
    """Make the key of this node, unless there is one, and print its public key."""
    from privfed.secure.keys import NodeKey

    parser = Parser(
        prog="privfed client --enroll",
        description="Make the key by which a server that need not be trusted knows this node.",
    )
    parser.hint = "see --help"
    parser.add_argument("--enroll", action="store_true", help="make the key")
    parser.add_argument("--user", required=True, metavar="ID", help="the name in the roster")
    parser.add_argument(
        "--key-file", type=Path, metavar="FILE", help="where to keep it (default: ID.key)"
    )
    options = parser.parse_args(arguments)
    path = options.key_file or Path(f"{options.user}.key")
    if path.exists():
        key = NodeKey.read(path)
    else:
        key = NodeKey.fresh()
        try:
            key.save(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    print(f"{options.user}={key.public.hex()}")


def _execute(options: argparse.Namespace) -> None:
    from privfed.config.option_groups import CONF
    from privfed.federation.identity import Identity
    from privfed.federation.participant import OwnRows, Participant, PlanShownError
    from privfed.runtimes.grpc_client import ServerAddress, take_part
    from privfed.runtimes.grpc_transport import read_pem

    if not 0 <= options.test < 1:
        raise ConfigError.of("--test", options.test, "must be at least 0 and less than 1")
    roots = None if options.insecure else read_pem(options.root_certificates)
    server = ServerAddress(options.server, roots, options.patience, options.keepalive)
    folders = (CONF,) if options.config_dir is None else (CONF, Path(options.config_dir))
    use_config_dir(options.config_dir)
    rows = None
    if not options.simulate:
        check_data(options.data)
        rows = OwnRows(options.data, options.target, options.test)
    say = (lambda text: None) if options.quiet else (lambda text: print(text, flush=True))
    identity = Identity(options.user, _read_token(options))
    if options.plan:
        say = print
    me = Participant(
        identity,
        rows,
        options.state,
        folders,
        say,
        limits_in(options),
        only_plan=options.plan,
        vow=vow_in(options),
    )
    with contextlib.suppress(PlanShownError):
        take_part(me, server)


def main(arguments: Sequence[str] | None = None) -> int:
    """Take part until the server says that the run is over; return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if "--enroll" in given:
        return guarded(lambda: _enroll(given), "interrupted")
    options = _parse(given)
    return guarded(lambda: _execute(options), "interrupted; the server goes on without this client")
