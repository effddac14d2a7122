"""Account of everything ever released from one data set, over all runs.

A file of JSON lines, locked while it is used, each line with the hash of all lines before it:

    account   the first line
    limit     epsilon at a delta that all runs together may not exceed; the last one holds
    reserve   a run is about to start: all that it plans to release, with prices
    release   a run makes a release that it has reserved
    extra     a run makes a release that it has not reserved, or that a copy of it made before

**What counts.** A reservation counts in full and for ever, whatever becomes of its run. A release
line costs nothing, as it is covered; it is there so that the same release is recognised if a copy
of the run's folder makes it again with other noise. That is an extra: it is charged in full.

**What survives.** A process goes on only after its line is on disk (fsync). So a line that was cut
off by a kill or a full disk belongs to a process that never went on: nothing was released for it,
and the next process removes it. Two processes never write at the same time (flock), and each reads
the lines of the others before it decides.

The file has names of algorithms and prices, all of which are public: no user, no row, no time. What
it says does not depend on anybody's data.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from privfed.foundation.errors import BudgetError, ConfigError, PrivfedError
from privfed.privacy.account_totals import Paid, counted, total
from privfed.privacy.accounting import Price
from privfed.privacy.ledger import linked
from privfed.privacy.neighbouring import canonical

VERSION = 1
BEGINNING = b'{"kind": "account"'


@dataclass(frozen=True)
class Limit:
    """Epsilon at delta, under a relation, that all runs of an account together may not exceed."""

    epsilon: float
    delta: float
    neighbouring: str


@dataclass(frozen=True)
class Reservation:
    """What a run plans to release.

    Attributes:
        run: random name of the run.
        algo: name of its algorithm.
        neighbouring: its neighbouring relation.
        delta: its delta.
        guarantee: what its guarantee rests on, `worst-case` or `under <assumption>`.
        noise: where its noise comes from.
        paid: number of planned releases per price.
    """

    run: str
    algo: str
    neighbouring: str
    delta: float
    guarantee: str
    noise: str
    paid: Paid


@dataclass
class RunEntry:
    """What an account knows of one run.

    Attributes:
        reserved: the last reservation.
        paid: prices of all its reservations and extras.
        made: names and rounds of its releases.
        extras: number of releases beyond reservations.
    """

    reserved: Reservation
    paid: Counter[Price] = field(default_factory=Counter)
    made: set[tuple[str, int]] = field(default_factory=set)
    extras: int = 0


class Account:
    """One account; every use of its content is inside `locked`.

    Args:
        path: file of the account; made at the first reservation.
        label: public name of the data, for a new account.
    """

    def __init__(self, path: Path, label: str = "") -> None:
        self.path, self.label = path, label
        self._forget()

    def _forget(self) -> None:
        self.runs: dict[str, RunEntry] = {}
        self.limit: Limit | None = None
        self._link, self._end, self._lines = "", 0, 0
        self._identity: tuple[int, int] | None = None
        self._descriptor = -1

    @contextmanager
    def locked(self, write: bool = True) -> Iterator[None]:
        """Lock the file, read what other processes wrote, and allow to append.

        Args:
            write: whether the file may be made and written to.

        Raises:
            ConfigError: the file cannot be used, or a line was changed.
        """
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND if write else os.O_RDONLY
            descriptor = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._trouble(f"cannot be opened ({error.strerror})") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if write else fcntl.LOCK_SH)
            self._read(descriptor, write)
            self._descriptor = descriptor
            yield
        except OSError as error:
            raise self._trouble(f"cannot be used ({error.strerror})") from error
        finally:
            self._descriptor = -1
            os.close(descriptor)

    def _trouble(self, words: str) -> ConfigError:
        return ConfigError.of("privacy.account", self.path, words)

    def _read(self, descriptor: int, write: bool) -> None:
        """Read the lines that are new, and remove one that was cut off."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise self._trouble("is not a regular file")
        identity = (status.st_dev, status.st_ino)
        if identity != self._identity or status.st_size < self._end:
            self._forget()
            self._identity = identity
        content = _read_from(descriptor, self._end)
        if not self._end and not content.startswith(BEGINNING[: len(content)]):
            raise self._trouble("is not an account of releases")
        whole = content.rfind(b"\n") + 1
        for text in content[:whole].splitlines():
            entry = self._checked(text)
            try:
                self._note(entry)
            except (KeyError, TypeError, ValueError) as error:
                raise self._trouble(f"line {self._lines} cannot be read") from error
        self._end += whole
        if write and whole < len(content):
            os.ftruncate(descriptor, self._end)
        if write and not self._end:
            with suppress(OSError):  # a file that is lost with its folder was never relied upon
                _sync_folder(self.path.parent)

    def _checked(self, text: bytes) -> dict[str, Any]:
        """Return the entry of a line if it follows from the lines before it."""
        self._lines += 1
        try:
            entry: dict[str, Any] = json.loads(text)
            link = entry.pop("chain")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._trouble(f"line {self._lines} cannot be read") from error
        if link != linked(self._link, entry):
            raise self._trouble(
                f"line {self._lines} was changed after it was written, or a line before it is "
                "missing"
            )
        self._link = link
        return entry

    def _note(self, entry: dict[str, Any]) -> None:
        """Count what a line says."""
        kind = entry["kind"]
        if kind == "account":
            if entry["version"] != VERSION:
                raise self._trouble(f"is of version {entry['version']}; this privfed reads 1")
            self.label = entry["label"]
        elif kind == "limit":
            self.limit = Limit(
                _number(entry["epsilon"]), entry["delta"], canonical(entry["neighbouring"])
            )
        elif kind == "reserve":
            reserved = Reservation(
                **{key: entry[key] for key in ("run", "algo", "delta", "guarantee", "noise")},
                neighbouring=canonical(entry["neighbouring"]),
                paid=Counter({_price(price): count for *price, count in entry["paid"]}),
            )
            run = self.runs.setdefault(reserved.run, RunEntry(reserved))
            run.reserved = reserved
            run.paid.update(reserved.paid)
        else:
            run = self.runs[entry["run"]]
            run.made.add((entry["name"], entry["round"]))
            if kind == "extra":
                run.paid[_price(entry["price"])] += 1
                run.extras += 1

    def _append(self, **entry: Any) -> None:
        """Write one line; it is on disk when this method returns."""
        if not self._end:
            self._write(
                {"kind": "account", "version": VERSION, "label": self.label, "salt": new_run()}
            )
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        link = linked(self._link, entry)
        line = (json.dumps(entry | {"chain": link}) + "\n").encode()
        try:
            written = 0
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
            os.fsync(self._descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise
        self._link, self._end, self._lines = link, self._end + len(line), self._lines + 1
        self._note(entry)

    # What is done inside `locked`.

    def costs(self) -> list[tuple[str, Paid]]:
        """Return the relation and the prices of every run."""
        return [(run.reserved.neighbouring, run.paid) for run in self.runs.values()]

    def total(self, delta: float, neighbouring: str) -> float:
        """Return the epsilon of all runs so far: the odometer."""
        return total(self.costs(), delta, neighbouring)

    def extras_of(self, run: str) -> int:
        """Return how many releases a run made beyond its reservation.

        Raises:
            PrivfedError: the account does not know the run.
        """
        return self._known(run).extras

    def _known(self, run: str) -> RunEntry:
        if run not in self.runs:
            raise PrivfedError(
                f"account {self.path} has lost the reservation of a run; nothing more is released"
            )
        return self.runs[run]

    def check(self, more: Sequence[tuple[str, Paid]], own: Limit | None, what: str) -> None:
        """Refuse costs that exceed the account's limit, or a limit of the run's own.

        Args:
            more: relation and prices of what is to be released.
            own: limit that the run sets itself.
            what: name of it in the message.

        Raises:
            BudgetError: the total would exceed a limit.
        """
        for limit in filter(None, (self.limit, own)):
            epsilon = counted([*self.costs(), *more], limit.delta, limit.neighbouring)
            if epsilon > limit.epsilon:
                before = counted(self.costs(), limit.delta, limit.neighbouring)
                raise BudgetError(
                    f"privacy budget of the data refused: {what} would bring the total of account "
                    f"{self.path} from epsilon={before:.4g} to {epsilon:.4g}, the limit is "
                    f"epsilon={limit.epsilon:g} at delta={limit.delta:g} ({limit.neighbouring}); "
                    "nothing was released"
                )

    def reserve(self, reservation: Reservation, own: Limit | None) -> None:
        """Write a reservation, and the first limit that a run gives as the account's limit."""
        if own is not None and self.limit is None:
            self.set_limit(own)
        paid = [[*map(_text, price), count] for price, count in sorted_prices(reservation.paid)]
        facts = asdict(reservation) | {"paid": paid}
        self._append(kind="reserve", **facts)

    def set_limit(self, limit: Limit) -> None:
        """Write the limit that holds from now on."""
        self._append(kind="limit", **{key: _text(value) for key, value in asdict(limit).items()})

    def record(
        self, run: str, name: str, round: int, price: Price, covered: bool, own: Limit | None
    ) -> None:
        """Write that a run makes a release; it may leave once this method has returned.

        Args:
            run: name of the run.
            name: name of the release.
            round: round of the release.
            price: price of the release.
            covered: whether the run's plan has this release at this price.
            own: limit that the run sets itself.

        Raises:
            BudgetError: it is an extra, which would exceed the limit.
            PrivfedError: the account does not know the run.
        """
        known = self._known(run)
        if covered and (name, round) not in known.made:
            self._append(kind="release", run=run, name=name, round=round)
            return
        extra: Paid = {price: 1}
        again = "a second time, by a copy of this run," if covered else "beyond its plan"
        self.check([(known.reserved.neighbouring, extra)], own, f"{name} of round {round} {again}")
        self._append(kind="extra", run=run, name=name, round=round, price=[*map(_text, price)])


def reserve_all(
    accounts: Sequence[Account],
    reservations: Sequence[Reservation],
    own: Limit | None,
    only_check: bool = False,
) -> None:
    """Reserve runs in accounts, all or none: no process can reserve in between.

    A run that has reserved the same plan before, as one that is resumed, does not reserve again.

    Args:
        accounts: accounts of the data; several if the data are those of several accounts.
        reservations: the runs.
        own: limit that the runs set themselves.
        only_check: write nothing.

    Raises:
        BudgetError: the total would exceed a limit.
        ConfigError: an account cannot be used.
    """
    with ExitStack() as stack:
        # Always in the same order, so that two processes never wait for each other.
        for account in sorted(accounts, key=lambda account: account.path):
            if only_check and not account.path.exists():
                continue
            stack.enter_context(account.locked(write=not only_check))
        missing = {}
        for account in accounts:
            new = [run for run in reservations if not _reserved(account, run)]
            missing[account] = new
            planned = sum(sum(run.paid.values()) for run in new)
            runs = f"{len(new)} runs with {planned}" if len(new) > 1 else f"the {planned}"
            account.check(
                [(run.neighbouring, run.paid) for run in new], own, f"{runs} planned releases"
            )
        for account, new in missing.items() if not only_check else ():
            for run in new:
                account.reserve(run, own)


def _reserved(account: Account, reservation: Reservation) -> bool:
    known = account.runs.get(reservation.run)
    return known is not None and known.reserved == reservation


def new_run() -> str:
    """Return a random name for a run."""
    return secrets.token_hex(16)


def sorted_prices(paid: Paid) -> list[tuple[Price, int]]:
    """Return prices with their numbers of releases, in a fixed order."""
    return sorted(paid.items(), key=lambda item: [-1 if x is None else x for x in item[0]])


def _price(values: Sequence[Any]) -> Price:
    mu, epsilon, group, sampling = values
    return _number(mu), _number(epsilon), group, sampling


def _number(value: Any) -> float:
    return math.inf if value == "inf" else float(value)


def _text(value: Any) -> Any:
    """Return a value that JSON has: `inf` is written as text."""
    return "inf" if value == math.inf else value


def _read_from(descriptor: int, start: int) -> bytes:
    parts = []
    while part := os.pread(descriptor, 1 << 20, start):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _sync_folder(folder: Path) -> None:
    """Make sure that a new file is still in its folder after a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
