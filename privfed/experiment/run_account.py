"""The account of a run: which one it is, what the run reserves in it, and what the result says.

Runs that release something of real users, with noise that nobody can repeat, have an account: it is
found by the data, on this machine, unless `privacy.account` names a file. A simulation on generated
data needs none. A simulation on a real table has none either: its noise can be repeated, so nothing
of it may be handed out, and it says so. `privacy.account=FILE` always counts.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from privfed.federation.user_state import PRIVATE
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.privacy.account import Account, Limit, Reservation, new_run, reserve_all
from privfed.privacy.account_place import accounts_for
from privfed.privacy.accounting import Planned, Release, prices
from privfed.privacy.noise import SeededNoise
from privfed.privacy.statement import SIMULATION

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from privfed.experiment.wiring import Experiment

AUTO, NONE = "auto", "none"
RUN = "account"
"""File in a run's private folder: the name under which the run has reserved."""
ROUNDING = 1e-9
"""A release is covered by its plan up to this relative error."""


class RunAccount(Protocol):
    """What a run tells its account."""

    def reserve(self) -> None:
        """Reserve all that the run plans to release."""
        ...

    def record(self, release: Release) -> None:
        """Note a release before it leaves."""
        ...

    def statement(self) -> dict[str, Any] | str:
        """Return what result.json says about the account."""
        ...


@dataclass(frozen=True)
class Outside:
    """A run outside any account.

    Attributes:
        reason: why.
    """

    reason: str

    def reserve(self) -> None:
        """Do nothing; see :class:`RunAccount`."""

    def record(self, release: Release) -> None:
        """Do nothing; see :class:`RunAccount`."""

    def statement(self) -> str:
        """See :class:`RunAccount`."""
        return f"{NONE}: {self.reason}"


@dataclass(frozen=True)
class Accounted:
    """A run with an account, or several if the data are those of several accounts.

    Attributes:
        accounts: the accounts.
        reservation: what the run reserves.
        planned: price of each planned release, by name and round.
        limit: limit that the run sets.
    """

    accounts: Sequence[Account]
    reservation: Reservation
    planned: dict[tuple[str, int], Planned]
    limit: Limit | None

    def reserve(self) -> None:
        """See :class:`RunAccount`.

        Raises:
            BudgetError: the account's limit would be exceeded.
            ConfigError: the account cannot be used.
        """
        reserve_all(self.accounts, [self.reservation], self.limit)

    def record(self, release: Release) -> None:
        """See :class:`RunAccount`."""
        plan = self.planned.get((release.name, release.round))
        covered = (
            plan is not None
            and release.mu <= plan.mu * (1 + ROUNDING)
            and release.epsilon <= plan.epsilon * (1 + ROUNDING)
            and (release.group, release.sampling) == (plan.group, plan.sampling)
        )
        (price,) = prices([release])
        for account in self.accounts:
            with account.locked():
                account.record(
                    self.reservation.run, release.name, release.round, price, covered, self.limit
                )

    def statement(self) -> dict[str, Any] | str:
        """See :class:`RunAccount`; of several accounts, the one with the largest total."""
        try:
            said = [self._of(account) for account in self.accounts]
        except PrivfedError as error:
            # Everything was released by now; a result must be written whatever became of the file.
            return f"{NONE}: {error}"
        return max(said, key=lambda account: float(account["epsilon"]))

    def _of(self, account: Account) -> dict[str, Any]:
        own = self.reservation
        with account.locked(write=False):
            runs = [entry.reserved for entry in account.runs.values()]
            limit, extras = account.limit, account.extras_of(own.run)
            epsilon = account.total(own.delta, own.neighbouring)
        said: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": own.delta,
            "neighbouring": own.neighbouring,
            "guarantee": guarantee_of(runs),
            "runs": len(runs),
            "run": own.run,
        }
        if limit is not None:
            said["limit"] = {
                "epsilon": limit.epsilon,
                "delta": limit.delta,
                "neighbouring": limit.neighbouring,
            }
        if extras:
            said["releases_by_copies"] = extras
        return said


def guarantee_of(runs: Sequence[Reservation]) -> str:
    """Return what the total of several runs rests on: all that any of them rests on."""
    if any(run.noise == SeededNoise.name for run in runs):
        return SIMULATION
    assumptions = dict.fromkeys(run.guarantee for run in runs if run.guarantee != "worst-case")
    return " and ".join(assumptions) or "worst-case"


def say_on_stderr(words: str) -> None:
    """Print a line for the person who started the run."""
    print(f"privfed: {words}", file=sys.stderr, flush=True)


def account_of(
    experiment: Experiment, folder: Path | None, say: Callable[[str], None] = say_on_stderr
) -> RunAccount:
    """Return the account of a run.

    Args:
        experiment: the run.
        folder: folder of the run, which keeps the name of the run until it is complete; a run that
            is resumed there has reserved already. None for a run without a folder.
        say: told if a run of real users has no account, because none can be kept.

    Raises:
        ConfigError: an account was asked for, and cannot be had.
    """
    settings, strategy = experiment.federation.privacy, experiment.strategy
    found = _places(experiment, say)
    if isinstance(found, str):
        return Outside(found)
    budget, cfg = experiment.budget, experiment.cfg
    planned = {
        (name, step.round): cost for step in strategy.plan for name, cost in strategy.costs(step)
    }
    limit = None
    if settings.account_limit is not None:
        limit = Limit(settings.account_limit, budget.delta, budget.neighbouring)
    reservation = Reservation(
        run=new_run() if folder is None else _run_in(folder),
        algo=str(cfg.algo.name),
        neighbouring=budget.neighbouring,
        delta=budget.delta,
        guarantee=strategy.guarantee or str(cfg.algo.guarantee),
        noise=experiment.federation.gate.source.name,
        paid=prices(planned.values()),
    )
    label = settings.data_name or _label(experiment)
    return Accounted([Account(path, label) for path in found], reservation, planned, limit)


def keep_account_path(cfg: DictConfig) -> None:
    """Make the path of an account absolute: a run may be resumed, or done, elsewhere.

    Args:
        cfg: configuration of the run; changed in place.
    """
    given = cfg.privacy.get("account", AUTO)
    if isinstance(given, str) and given.strip() and given not in (AUTO, NONE):
        cfg.privacy.account = str(Path(given).expanduser().absolute())


def _places(experiment: Experiment, say: Callable[[str], None]) -> list[Path] | str:
    """Return the files of the run's accounts, or why it has none."""
    settings = experiment.federation.privacy
    if settings.account == NONE:
        return "privacy.account=none was given"
    if not experiment.strategy.plan:
        return "nothing is released"
    if settings.account != AUTO:
        return [Path(settings.account)]
    if not experiment.real:
        return "the data are generated or public, and nobody's budget is spent"
    if experiment.federation.gate.source.repeatable:
        return (
            "a simulation, whose noise can be repeated; nothing of it may be handed out, and no "
            "budget is spent as long as nothing is"
        )
    try:
        return accounts_for(_facts(experiment))
    except OSError as error:
        why = f"no account could be kept on this machine ({error.strerror})"
        limit = settings.account_limit
        # A full disk may hold an account that this run belongs to; a missing home does not.
        if limit is not None or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            key, given = ("account", AUTO) if limit is None else ("account_limit", limit)
            raise ConfigError.of(
                f"privacy.{key}", given, f"{why}; nothing was released; set privacy.account=FILE"
            ) from error
        say(f"{why}: what this run spends is counted nowhere; set privacy.account=FILE")
        return f"{why}; what this run spent is counted nowhere"


def _facts(experiment: Experiment) -> list[str]:
    """Return facts that each identify the data of real users."""
    if name := experiment.federation.privacy.data_name:
        return [f"name {name}"]
    roster = experiment.roster
    return [*experiment.data.identity(), *([] if roster.simulated else roster.identity())]


def _label(experiment: Experiment) -> str:
    """Return a public name of the data."""
    path = experiment.cfg.data.get("path")
    return "registered users" if path is None else Path(str(path)).name


def _run_in(folder: Path) -> str:
    """Return the name of the run in a folder; a new one if it has none."""
    path = folder / PRIVATE / RUN
    if path.exists():
        return path.read_text().strip()
    run = new_run()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, run.encode(), 0o600)
    return run
