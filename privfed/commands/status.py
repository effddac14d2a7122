"""Progress of a run, finished or not, from its folder: `privfed status RUN`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from privfed.commands.parsing import Parser, add_version, guarded
from privfed.foundation.errors import ConfigError


def status_of(folder: Path) -> dict[str, object]:
    """Return what a run's folder says of its progress; it names no user.

    Raises:
        ConfigError: if there is no run in the folder.
    """
    from privfed.experiment.run_folder import rows_done

    if not (folder / "config.yaml").exists():
        raise ConfigError(f"{folder}: no run in that folder")
    rows = rows_done(folder)
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_bytes().split(b"\n")[:-1] if ledger.exists() else []
    last = json.loads(lines[-1]) if lines else {}
    return {
        "run": str(folder),
        "complete": (folder / "result.json").exists(),
        "steps": len(rows),
        "releases": len(lines),
        "epsilon_spent": last.get("epsilon_spent", 0.0),
        "missing_users": int(rows[-1].get("missing_users", 0)) if rows else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the progress of a run; return the exit code."""
    parser = Parser(prog="privfed status", description="Show the progress of a run.")
    parser.hint = "see --help"
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_version(parser)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)

    def work() -> None:
        found = status_of(options.run)
        if options.json:
            print(json.dumps(found))
            return
        for key, value in found.items():
            print(f"{key.replace('_', ' '):15} {value}")

    return guarded(work, "interrupted")
