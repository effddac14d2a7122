"""Check and read the ledger of a run, or the account of all runs on the same data.

privfed ledger RUN
privfed ledger --account [FILE]

Recompute the chain of hashes and the total cost from the entries alone, and say what was spent.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privfed.commands.parsing import Parser, guarded
from privfed.config.saved_config import load_config
from privfed.experiment import checkpoint
from privfed.experiment.run_account import AUTO
from privfed.foundation.errors import ConfigError
from privfed.privacy.account import Account, Limit
from privfed.privacy.account_place import accounts_folder, known_accounts
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.statement import SIMULATION, claimed
from privfed.report.account_console import show_account
from privfed.report.past_runs import read_json

EXAMPLES = """
examples:
  privfed ledger runs/mine
      every kind of release of a run, and what they cost together
  privfed ledger --account
      the accounts of data on this machine: all runs, what they cost, what is left
  privfed ledger --account runs/mine
      the account that a run is in
  privfed ledger --account budget.jsonl --limit 3
      all runs of this account together may cost epsilon 3

exit codes: 0 done; 2 a file cannot be read or was changed; 1 anything else
"""


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
    words = "This is a simulation: with secret noise they would together cost"
    together = words if _simulated(folder) else "Together they cost"
    console.print(f"{together} {spent}.", soft_wrap=True)
    _compare(folder, ledger)


def _simulated(folder: Path) -> bool:
    """Return whether the result of a run says that it is a simulation."""
    path = folder / "result.json"
    return path.exists() and claimed(read_json(path)["privacy"]) == SIMULATION


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


def show_accounts(where: str, limit: float | None, delta: float | None) -> None:
    """Print accounts, and set the limit of one.

    Args:
        where: file of an account, or folder of a run; empty for all accounts of this machine.
        limit: new limit; None leaves it as it is.
        delta: delta of the total and of the limit; None takes that of the last run.

    Raises:
        ConfigError: there is no such account, or it was changed.
    """
    paths = _accounts(where)
    if not paths:
        print(f"there is no account in {accounts_folder()}")
    if limit is not None and len(paths) != 1:
        raise ConfigError(f"--limit {limit:g}: say of which account, as in --account FILE")
    for path in paths:
        account = Account(path)
        with account.locked(write=limit is not None):
            if limit is not None:
                account.set_limit(_limit(account, limit, delta))
            show_account(account, delta)


def _limit(account: Account, epsilon: float, delta: float | None) -> Limit:
    """Return a limit under the relation and, if none is given, at the delta of the last run."""
    if not account.runs:
        raise ConfigError(f"--limit {epsilon:g}: the account has no runs yet")
    last = list(account.runs.values())[-1].reserved
    budget = Budget(epsilon, last.delta if delta is None else delta, last.neighbouring)
    return Limit(budget.epsilon, budget.delta, budget.neighbouring)


def _accounts(where: str) -> list[Path]:
    """Return the files of the accounts that are meant."""
    if not where:
        return known_accounts()
    path = Path(where).expanduser()
    if not path.exists():
        raise ConfigError(f"--account {path}: there is no such file or folder")
    if not path.is_dir():
        return [path]
    result = read_json(path / "result.json")
    stated = result.get("privacy", {}).get("account")
    if not isinstance(stated, dict):
        reason = "it was made before there were accounts" if stated is None else stated
        raise ConfigError(f"--account {path}: that run is in no account ({reason})")
    given = load_config(path).privacy.account
    found = [] if given != AUTO else [each for each in known_accounts() if _has(each, stated)]
    if given != AUTO:
        found = [Path(given)]
    if not found:
        raise ConfigError(f"--account {path}: its account is not in {accounts_folder()}")
    return found


def _has(path: Path, stated: dict[str, Any]) -> bool:
    """Return whether an account knows the run that a result names."""
    account = Account(path)
    with account.locked(write=False):
        return stated["run"] in account.runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Show what a run has spent; return the exit code."""
    parser = Parser(
        prog="privfed ledger",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Check and read the ledger of a run, or the account of all runs on the same "
        "data.",
        epilog=EXAMPLES,
    )
    parser.hint = "see --help"
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help="the folder of the run")
    parser.add_argument(
        "--account",
        nargs="?",
        const="",
        metavar="FILE",
        help="show an account instead: a file, the folder of a run, or all on this machine",
    )
    parser.add_argument(
        "--limit",
        type=float,
        metavar="EPSILON",
        help="set what all runs of the account together may cost, from now on",
    )
    parser.add_argument(
        "--delta", type=float, metavar="D", help="delta of the total or of the limit shown"
    )
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if (options.run is None) == (options.account is None):
        parser.error("give the folder of a run, or --account")
    if options.account is None:
        if options.limit is not None or options.delta is not None:
            parser.error("--limit and --delta are for --account")
        return guarded(lambda: _execute(options.run), "interrupted")
    return guarded(
        lambda: show_accounts(options.account, options.limit, options.delta), "interrupted"
    )
