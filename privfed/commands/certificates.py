"""Make TLS certificates for a federation: `privfed certificates FOLDER [HOST ...]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from privfed.commands.parsing import Parser, guarded
from privfed.runtimes.certificates import FILES, LOOPBACK, make_certificates


def main(arguments: Sequence[str] | None = None) -> int:
    """Write certificates; return the exit code."""
    about = (
        "Make an authority, and a certificate of the server that is signed by it, "
        "for tests and demonstrations."
    )
    parser = Parser(prog="privfed certificates", description=about)
    parser.hint = "see --help"
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument(
        "hosts",
        nargs="*",
        metavar="host",
        help=f"names and addresses of the server; {' '.join(LOOPBACK)}",
    )
    parser.add_argument("--force", action="store_true", help="replace certificates that exist")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)

    def work() -> None:
        make_certificates(options.folder, options.hosts or LOOPBACK, options.force)
        print(
            f"written to {options.folder}: {', '.join(FILES)}; "
            "nodes need ca.crt, the server server.crt and server.key"
        )

    return guarded(work, "interrupted")
