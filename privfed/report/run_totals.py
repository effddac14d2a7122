"""What several released runs cost together, in words."""

from __future__ import annotations

from collections.abc import Sequence

from privfed.foundation.errors import PrivfedError
from privfed.privacy.account_totals import Paid, total
from privfed.privacy.accounting import prices
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.neighbouring import REPLACE_ONE, WEAK, canonical
from privfed.privacy.noise import SeededNoise
from privfed.report.past_runs import Run


def several_in_words(runs: Sequence[Run]) -> str:
    """Return the total cost of several released runs; empty if fewer than two were released.

    A run is released if its noise is secret, as it is for real users. Simulations are not counted.

    Args:
        runs: finished runs.
    """
    released = [
        run
        for run in runs
        if run.result["privacy"]["releases"] and run.result["privacy"]["noise"] != SeededNoise.name
    ]
    if len(released) < 2:
        return ""
    return (
        f"The noise of {len(released)} runs is not seeded, as for real users: for those who take "
        f"part in several runs budgets add up. {_total(released)} Choosing settings or results by "
        "comparing runs is covered by this total, and not by the guarantee of any one of them."
    )


def _total(released: Sequence[Run]) -> str:
    """Return the cost of runs together, by their ledgers, and what the account says."""
    costs: list[tuple[str, Paid]] = []
    for run in released:
        ledger = Ledger(Budget(run.config["eps"], run.config["delta"], run.config["neighbouring"]))
        try:
            ledger.verify(run.folder / "ledger.jsonl")
        except PrivfedError:
            return f"The ledger in {run.folder} cannot be read, so the total is not known."
        costs.append((ledger.budget.neighbouring, prices(ledger.releases)))
    relations = {canonical(relation) for relation, _ in costs}
    wanted = relations.pop() if len(relations) == 1 else REPLACE_ONE
    wanted = WEAK if WEAK in relations else wanted
    delta = min(float(run.config["delta"]) for run in released)
    epsilon = total(costs, delta, wanted)
    words = (
        f"All {len(released)} together cost epsilon {epsilon:.4g} at delta {delta:g} ({wanted})."
    )
    accounts = [run.result["privacy"].get("account") for run in released]
    stated = [account for account in accounts if isinstance(account, dict)]
    if stated:
        most = max(stated, key=lambda account: float(account["epsilon"]))
        words += (
            f" The account of the data stood at epsilon {float(most['epsilon']):.4g} after "
            f"{most['runs']} runs."
        )
    return words
