"""Check and read the ledger of a run: `privfed ledger RUN`.

Recompute the chain of hashes and the total cost from the entries alone, and say what was spent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from privfed.commands.parsing import Parser, guarded
from privfed.config.saved_config import load_config
from privfed.experiment import checkpoint
from privfed.foundation.errors import ConfigError
from privfed.privacy.ledger import Budget, Ledger


def _execute(folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    cfg = load_config(folder)
    budget = Budget(cfg.eps, cfg.delta, cfg.neighbouring)
    ledger = Ledger(budget)
    ledger.verify(folder / "ledger.jsonl")
    table = Table(
        title=f"{len(ledger.releases)} releases in {folder / 'ledger.jsonl'}; no line was changed",
        title_justify="left",
    )
    for column in ("release", "numbers", "clip norm", "noise", "cost", "times"):
        table.add_column(column, justify="left" if column == "release" else "right")
    kinds: dict[tuple[str, ...], int] = {}
    for release in ledger.releases:
        noise = (
            f"{getattr(release, 'std', 0.0):.4g}"
            if release.mechanism == "gaussian"
            else "selection"
        )
        cost = (
            f"mu {release.mu:.4g}"
            if release.mechanism == "gaussian"
            else f"epsilon {release.epsilon:.4g}"
        )
        row = (release.name, str(release.size), f"{release.clip:.4g}", noise, cost)
        kinds[row] = kinds.get(row, 0) + 1
    for kind, times in kinds.items():
        table.add_row(*kind, str(times))
    console = Console(highlight=False)
    console.print(table)
    spent = (
        f"epsilon {ledger.epsilon:.4g} at delta {ledger.delta:g} ({budget.neighbouring}), "
        f"of a budget of {budget.epsilon:g}"
    )
    console.print(f"Together they cost {spent}.", soft_wrap=True)
    _compare(folder, ledger)


def _compare(folder: Path, ledger: Ledger) -> None:
    """Compare the ledger with what the result claims, or the checkpoint of an unfinished run.

    Raises:
        ConfigError: if the ledger has fewer releases than were made, or another total cost.
    """
    path, made = folder / "result.json", len(ledger.releases)
    if path.exists():
        privacy = json.loads(path.read_text(encoding="utf-8"))["privacy"]
        claimed, released, epsilon = privacy["epsilon"], privacy["releases"], ledger.epsilon
        if claimed != "inf" and abs(claimed - epsilon) > 1e-9 * max(1.0, epsilon):
            raise ConfigError(f"{path}: claims epsilon {claimed}, but the ledger says {epsilon}")
    elif (folder / checkpoint.FILE).exists():
        released = checkpoint.read_checkpoint(folder)[0]["releases"]
    else:
        return
    if made < released or (path.exists() and made != released):
        raise ConfigError(
            f"{folder / 'ledger.jsonl'}: has {made} releases, but {released} were made; it was cut"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Show what a run has spent; return the exit code."""
    parser = Parser(prog="privfed ledger", description="Check and read the ledger of a run.")
    parser.hint = "see --help"
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of the run")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: _execute(options.run), "interrupted")
