"""One SuperNode of a federation: Flower's own command, started after everything that can be checked beforehand was checked.

privfed supernode --superlink HOST:PORT --root-certificates ca.crt --key alice.key --user alice --data mine.csv
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from privfed import __version__
from privfed.commands.parsing import Parser, guarded
from privfed.foundation.errors import ConfigError, PrivfedError

EXAMPLES = """
examples:
  ssh-keygen -t ecdsa -b 384 -N "" -f alice.key                   the node's key; alice.key.pub is registered at the SuperLink
  privfed supernode --superlink host:8000 --root-certificates ca.crt --key alice.key --user alice --data mine.csv
  privfed supernode ... --show                          the flower-supernode command, without starting it

exit codes: 0 ended by its operator; 2 bad setting, unreachable or untrusted SuperLink, unknown key; 1 anything else
"""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Options of the command line."""
    parser = Parser(
        prog="privfed supernode",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Take part in a federation of SuperNodes; the data and the head of the user stay on this machine.",
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
    parser.add_argument("--user", required=True, metavar="ID", help="the name in the roster")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the secret that proves it (default: ID.token)",
    )
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument(
        "--data", metavar="FILE", type=Path, help="CSV file with a header: your rows, numbers only"
    )
    data.add_argument(
        "--simulate",
        action="store_true",
        help="no data of your own: the users the run's settings describe",
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
        "--state",
        type=Path,
        metavar="DIR",
        help="a folder, readable by you only, that keeps your head",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        help="local port of this node's own processes; 0 = a free one",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds to try to connect (default 30)",
    )
    parser.add_argument(
        "--show", action="store_true", help="print the command instead of running it"
    )
    parser.add_argument("--version", action="version", version=f"privfed {__version__}")
    return parser.parse_args(arguments)


def command_of(options: argparse.Namespace) -> list[str]:
    """The flower-supernode command; what it needs is checked, with paths made absolute."""
    from privfed.commands.flower_app import identity_of, rows_of
    from privfed.runtimes.superlink_processes import free_port

    node: dict[str, str | float] = {"node": options.user}
    node["token-file"] = str((options.token_file or Path(f"{options.user}.token")).resolve())
    if options.data is not None:
        if not options.data.exists():
            raise ConfigError(f"--data {options.data}: no such file")
        node |= {
            "data": str(options.data.resolve()),
            "target": options.target,
            "test": options.test,
        }
    if options.state is not None:
        node["state"] = str(options.state.resolve())
    identity_of(node)
    rows_of(node)
    settings = " ".join(f"{key}={json.dumps(value)}" for key, value in node.items())
    return [
        *("flower-supernode", "--superlink", options.superlink),
        *("--root-certificates", str(options.root_certificates.resolve())),
        *("--auth-supernode-private-key", str(options.key.resolve())),
        *("--host", "127.0.0.1", "--port", str(options.port or free_port())),
        *("--node-config", settings),
    ]


def check_key(path: Path) -> None:
    """Raise unless this is a private key that Flower takes."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"--key {path}: cannot be read ({error.strerror})") from error
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ConfigError(
            f'--key {path}: is not a private key as made by ssh-keygen -t ecdsa -b 384 -N "" -f FILE'
        )


def check_server(options: argparse.Namespace) -> None:
    """Raise unless a SuperLink with a certificate we trust listens there, now or within our patience."""
    from privfed.runtimes.grpc_transport import check_reachable, read_pem

    if not 0 <= options.patience < math.inf:
        raise ConfigError.of(
            "--patience", options.patience, "must be a number of seconds, at least 0"
        )
    roots, deadline = read_pem(options.root_certificates), time.monotonic() + options.patience
    while True:
        try:
            return check_reachable(
                options.superlink, roots, timeout=max(1.0, min(10.0, options.patience))
            )
        except ConnectionError as error:
            if time.monotonic() + 1.0 > deadline:
                raise ConfigError(f"{error}; gave up after {options.patience:g} s") from error
        time.sleep(1.0)


def explain(output: str) -> PrivfedError:
    """Why flower-supernode ended, in one line."""
    lines = [line.strip() for line in re.sub(r"\x1b\[\d+m", "", output).splitlines()]
    place = next((i for i, line in enumerate(lines) if "Exit Code:" in line), None)
    if place is None:
        return PrivfedError(
            f"flower-supernode ended: {next((line for line in reversed(lines) if line), 'no message')}"
        )
    said = [
        line for line in lines[place + 1 : place + 4] if line and "Failed to initialize" not in line
    ]
    if "Failed to activate" in " ".join(said):
        # Flower answers both cases with the same code.
        return ConfigError(
            "the SuperLink does not take this node's key: it is not registered (flwr supernode register KEY.pub), or a node "
            "with it counts as online, which it does for up to a minute after it was killed; then try again"
        )
    return ConfigError(f"flower-supernode ended: {said[0] if said else lines[place]}")


def execute(options: argparse.Namespace) -> None:
    """Check, then be a SuperNode until somebody ends it."""
    check_key(options.key)
    command = command_of(options)
    if options.show:
        print(shlex.join(command))
        return
    check_server(options)

    from privfed.runtimes.superlink_processes import QUIET, interruptible

    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    process = subprocess.Popen(
        command,
        env=os.environ | QUIET | {"PATH": tools},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output: list[str] = []

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            del output[:-50]
            print(line, end="", flush=True)

    threading.Thread(target=listen, daemon=True).start()
    with interruptible():
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=15)
            return
    if code:
        time.sleep(0.5)  # its last words are still being read
        raise explain("".join(output))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of one SuperNode."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: execute(options), "interrupted; the run goes on without this node")
