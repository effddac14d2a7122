"""One SuperNode of a federation: Flower's own command, after all that can be checked is checked.

privfed supernode --superlink HOST:PORT --root-certificates ca.crt --key alice.key --user alice
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from privfed.commands.node_options import add_participation
from privfed.commands.parsing import Parser, add_version, guarded

EXAMPLES = """
examples:
  ssh-keygen -t ecdsa -b 384 -N "" -f alice.key
      the node's key; alice.key.pub is registered at the SuperLink
  privfed supernode --superlink host:8000 --root-certificates ca.crt --key alice.key \\
      --user alice --data mine.csv
  privfed supernode ... --show
      the flower-supernode command, without starting it

exit codes: 0 ended by its operator; 2 bad setting, unreachable or untrusted SuperLink,
unknown key; 1 anything else
"""


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="privfed supernode",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Take part in a federation of SuperNodes; "
        "the data and the head of the user stay on this machine.",
        epilog=EXAMPLES,
    )
    parser.hint = "see --help"
    parser.add_argument(
        "--superlink", required=True, metavar="HOST:PORT", help="where the SuperLink listens"
    )
    parser.add_argument(
        "--root-certificates",
        required=True,
        type=Path,
        metavar="FILE",
        help="the authority it is trusted by",
    )
    parser.add_argument(
        "--key",
        required=True,
        type=Path,
        metavar="FILE",
        help="this node's private key, registered there",
    )
    add_participation(parser)
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        help="local port of this node's own processes; 0 = a free one",
    )
    parser.add_argument(
        "--show", action="store_true", help="print the command instead of running it"
    )
    add_version(parser)
    return parser.parse_args(arguments)


def _command_of(options: argparse.Namespace) -> list[str]:
    """Return the flower-supernode command, with absolute paths, after a check of the settings."""
    from privfed.commands.node_options import check_data, limits_in
    from privfed.federation.node_config import identity_in, rows_in
    from privfed.runtimes.superlink_processes import supernode_command

    node: dict[str, str | float] = {"node": options.user}
    node["token-file"] = str((options.token_file or Path(f"{options.user}.token")).resolve())
    if options.data is not None:
        check_data(options.data)
        node |= {
            "data": str(options.data.resolve()),
            "target": options.target,
            "test": options.test,
        }
    if options.state is not None:
        node["state"] = str(options.state.resolve())
    limits = vars(limits_in(options)).items()
    node |= {key.replace("_", "-"): value for key, value in limits if value is not None}
    identity_in(node)
    rows_in(node)
    authority, key = options.root_certificates.resolve(), options.key.resolve()
    return supernode_command(options.superlink, authority, key, node, options.port)


def _execute(options: argparse.Namespace) -> None:
    from privfed.runtimes.grpc_client import ServerAddress, wait_until_reachable
    from privfed.runtimes.grpc_transport import read_pem
    from privfed.runtimes.supernode_process import check_node_key, run_supernode

    check_node_key(options.key)
    command = _command_of(options)
    if options.show:
        print(shlex.join(command))
        return
    roots = read_pem(options.root_certificates)
    wait_until_reachable(ServerAddress(options.superlink, roots, options.patience))
    run_supernode(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Be a SuperNode until its operator ends it; return the exit code."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _execute(options), "interrupted; the run goes on without this node")
