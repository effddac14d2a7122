"""List and start the commands: `privfed COMMAND ...` or `python -m privfed COMMAND ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from privfed import __version__

COMMANDS = {
    "run": "learn a shared representation privately: one run, or a sweep",
    "audit": "attack a privacy claim, and compare what an attacker learns with what is claimed",
    "replay": "run an experiment on neighbouring data sets, and compare sums with the ledger",
    "ledger": "check and read the ledger of a run",
    "report": "write the page of a run again, or a page that compares several",
    "personalize": "fit personal models to a published one, and predict",
    "export": "write a published model for other programs",
    "server": "train with real clients over gRPC, or give out a published model",
    "client": "take part in a federation over gRPC",
    "supernode": "take part in a federation of Flower SuperNodes",
    "roster": "register who may take part",
    "status": "show the progress of a run",
    "certificates": "make TLS certificates for tests and demonstrations",
}


def usage() -> str:
    """Return the list of commands."""
    lines = [f"  {name:<13} {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: privfed COMMAND ...",
            "",
            "Private personalised federated learning: one shared representation, one private head "
            "per user.",
            "",
            "commands:",
            *lines,
            "",
            "privfed COMMAND --help tells about one of them.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the named command.

    Args:
        arguments: name of the command and its own arguments; those of the process if None.

    Returns:
        The exit code of the command; 2 if the command is unknown.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if given[0] == "--version":
        print(f"privfed {__version__}")
        return 0
    name, *rest = given
    if name not in COMMANDS:
        from privfed.foundation.errors import nearest

        print(
            f"privfed: {name}: there is no such command; {nearest(name, COMMANDS)}", file=sys.stderr
        )
        return 2
    command: int = import_module(f"privfed.commands.{name}").main(rest)
    return command


if __name__ == "__main__":
    sys.exit(main())
