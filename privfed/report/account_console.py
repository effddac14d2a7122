"""Accounts on the console: the runs of an account, their costs, the total and what is left."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from privfed.privacy.account import Account, RunEntry
from privfed.privacy.account_totals import Paid, counted, total
from privfed.privacy.accounting import gaussian_mu
from privfed.privacy.neighbouring import REPLACE_ONE, WEAK, ZERO_OUT
from privfed.privacy.noise import SeededNoise


def show_account(account: Account, delta: float | None) -> None:
    """Print an account, which is locked.

    Args:
        account: the account.
        delta: delta of the total; None takes that of the limit, or of the last run.
    """
    console = Console(highlight=False)
    runs = list(account.runs.values())
    number = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    title = f"{account.label or 'account'}: {number} in {account.path}; no line was changed"
    table = Table(title=title, title_justify="left")
    for column in ("run", "algorithm", "relation", "noise", "releases", "epsilon", "delta"):
        table.add_column(column, justify="right" if column in ("epsilon", "delta") else "left")
    for run in runs:
        own = run.reserved
        cost = total([(own.neighbouring, run.paid)], own.delta, own.neighbouring)
        table.add_row(
            own.run[:8],
            own.algo,
            own.neighbouring,
            "simulation" if own.noise == SeededNoise.name else own.noise,
            _releases(run),
            f"{cost:.4g}",
            f"{own.delta:g}",
        )
    console.print(table)
    if not runs:
        return
    if delta is None:
        delta = runs[-1].reserved.delta if account.limit is None else account.limit.delta
    totals = {
        relation: account.total(delta, relation) for relation in (REPLACE_ONE, ZERO_OUT, WEAK)
    }
    weak = math.isinf(totals[REPLACE_ONE]) and math.isfinite(totals[WEAK])
    shown = (WEAK,) if weak else (REPLACE_ONE, ZERO_OUT)
    spent = ", ".join(f"{totals[relation]:.4g} ({relation})" for relation in shown)
    console.print(
        f"Together they cost a user of all of them epsilon {spent}, at delta {delta:g}. A "
        "reservation counts in full, whatever became of its run.",
        soft_wrap=True,
    )
    for condition in dict.fromkeys(run.reserved.guarantee for run in runs):
        if condition != "worst-case":
            console.print(f"This holds {condition}.", soft_wrap=True)
    if any(run.reserved.noise == SeededNoise.name for run in runs):
        console.print(
            "Simulations are among them, counted as if their noise were secret; nothing of them "
            "may be handed out.",
            soft_wrap=True,
        )
    _show_limit(console, account)


def _releases(run: RunEntry) -> str:
    planned = sum(run.reserved.paid.values())
    extras = f" + {run.extras} beyond the plan" if run.extras else ""
    return f"{len(run.made)} of {planned}{extras}"


def _show_limit(console: Console, account: Account) -> None:
    """Print the limit, and what one more Gaussian run may cost."""
    limit = account.limit
    if limit is None:
        console.print("There is no limit (privacy.account_limit, or --limit here).")
        return
    spent = counted(account.costs(), limit.delta, limit.neighbouring)
    words = (
        f"The limit is epsilon {limit.epsilon:g} at delta {limit.delta:g} ({limit.neighbouring}); "
        f"{spent:.4g} counts against it"
    )
    left = largest_next(account)
    more = f"at most epsilon {left:.10g}" if left > 0 else "nothing"
    console.print(f"{words}. One more Gaussian run may cost {more}.", soft_wrap=True)


def largest_next(account: Account) -> float:
    """Return the largest epsilon of one more Gaussian run under the limit; 0 if there is none.

    Args:
        account: an account with a limit.
    """
    limit = account.limit
    assert limit is not None

    def holds(epsilon: float) -> bool:
        mu = gaussian_mu(epsilon, limit.delta)
        more: tuple[str, Paid] = (limit.neighbouring, {(mu, 0.0, None, 1.0): 1})
        return counted([*account.costs(), more], limit.delta, limit.neighbouring) <= limit.epsilon

    low, high = 0.0, limit.epsilon
    if not math.isfinite(high) or counted(account.costs(), limit.delta, limit.neighbouring) > high:
        return high if math.isinf(high) else 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    # Rounded down, so that a run with the epsilon that is shown is not refused.
    return math.floor(low * 1e4) / 1e4
