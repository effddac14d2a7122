"""The ledger: every release is written down before it leaves, and refused when the budget does not hold it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TextIO

from privfed.foundation.errors import BudgetError, ConfigError, PrivfedError, check_number
from privfed.privacy.accounting import (
    Cost,
    GaussianRelease,
    Price,
    Release,
    Selection,
    composed,
    gaussian_mu,
    prices,
    total_epsilon,
)
from privfed.privacy.neighbouring import ADD_REMOVE, RELATIONS, REPLACE_ONE, influence

EPSILONS = "must be a positive number between 1e-6 and 1e6, or inf for no privacy"


@dataclass(frozen=True)
class Budget:
    """The total that everything released together may cost."""

    epsilon: float
    delta: float
    neighbouring: str = REPLACE_ONE

    def __post_init__(self) -> None:
        check_number("eps", self.epsilon, lambda x: x == math.inf or 1e-6 <= x <= 1e6, EPSILONS)
        check_number(
            "delta", self.delta, lambda x: 0 <= x < 1, "must lie between 0 and 1 (0: pure privacy)"
        )
        if self.neighbouring not in RELATIONS:
            raise ConfigError.of(
                "neighbouring", self.neighbouring, f"must be one of {', '.join(RELATIONS)}"
            )

    @property
    def mu(self) -> float:
        """The Gaussian budget; a hair below the exact value, so that rounding never refuses the last release."""
        return gaussian_mu(self.epsilon, self.delta) * (1 - 1e-9)


class Ledger:
    """An append-only account of releases, one JSON line each, flushed to disk before the release may be used."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.releases: list[Release] = []
        self._paid = Counter[Price]()
        self._made: set[tuple[str, int]] = set()
        """What all of them cost, and the names and rounds of all."""
        self._file: TextIO | None = None
        self._expected: list[Release] = []
        self._links = [linked("", asdict(budget))]
        """Hashes of the budget and of all lines up to each; every line carries its own, so that none can be changed."""

    def open(self, path: Path) -> None:
        """Write to this file from now on; a ledger is never continued or overwritten by another run."""
        file = locked(path)
        if path.stat().st_size:
            file.close()
            raise ConfigError.of("out", path.parent, "already holds the ledger of another run")
        self._file = file

    def reopen(self, path: Path, known: int, chain: str = "") -> list[Release]:
        """Go on with the ledger of an interrupted run, all of it spent. Returns the releases after the first `known` ones.

        chain: the link of the last known release; a ledger that was cut, edited or exchanged does not have it there.
        """
        self._file = locked(path)
        self._file.truncate(
            self.verify(path)
        )  # a line cut off in the middle: its release was never let out
        if len(self.releases) < known or (chain and self._links[known] != chain):
            raise ConfigError(
                f"{path}: is not the ledger of the {known} releases that were made; it was cut or exchanged"
            )
        return self.releases[known:]

    def verify(self, path: Path) -> int:
        """Read all releases of a file, each line checked against those before it. Returns the length of the whole lines."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        whole = content.rfind(b"\n") + 1
        for number, text in enumerate(content[:whole].splitlines(), start=1):
            self._note(self._read(path, number, text))
        return whole

    def _read(self, path: Path, number: int, text: bytes) -> Release:
        """The release of one line, if the line follows from those before it."""
        try:
            line = json.loads(text)
            link = line.pop("chain")
            release = read_release(line)
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
            raise ConfigError(f"{path}: line {number} cannot be read") from error
        self._links.append(linked(self._links[-1], line))
        if link != self._links[-1]:
            raise ConfigError(
                f"{path}: line {number} was changed after it was written, or a line before it is missing"
            )
        return release

    def expect(self, releases: Sequence[Release]) -> None:
        """These, the last ones, were written by a run that was stopped: the same release with the same noise comes again."""
        self._expected = list(releases)
        known = self.releases[: len(self.releases) - len(self._expected)]
        self.releases, self._paid, self._made = [], Counter(), set()
        self._note(*known)

    def _note(self, *releases: Release) -> None:
        """These were made."""
        self.releases += releases
        self._paid += prices(releases)
        self._made |= {(release.name, release.round) for release in releases}

    @property
    def chain(self) -> str:
        """The link of the last release, where there is a file."""
        return self._links[min(len(self.releases), len(self._links) - 1)]

    @property
    def epsilon(self) -> float:
        """Spent so far at the budget's delta."""
        return composed(self._paid, self.budget.delta, self.budget.neighbouring != ADD_REMOVE)

    @property
    def delta(self) -> float:
        """The delta of what was spent: 0 when only pure mechanisms were used."""
        pure = self.releases and all(release.mu == 0 for release in self.releases)
        return 0.0 if pure else self.budget.delta

    def epsilon_under(self, neighbouring: str) -> float:
        """What the same releases cost under another neighbouring relation."""
        here, there = influence(self.budget.neighbouring), influence(neighbouring)
        moved = (
            replace(r, sensitivity=r.sensitivity + (there - here) * r.clip) for r in self.releases
        )
        return total_epsilon(moved, self.budget.delta, neighbouring != ADD_REMOVE)

    def check(self, costs: Sequence[Cost], what: str) -> None:
        """Refuse, before any data is touched, what the budget cannot hold on top of what is spent."""
        epsilon = composed(
            self._paid + prices(costs), self.budget.delta, self.budget.neighbouring != ADD_REMOVE
        )
        if epsilon > self.budget.epsilon:
            raise BudgetError(
                f"privacy budget refused: {what} would bring the total to epsilon={epsilon:.4g}, the budget is "
                f"epsilon={self.budget.epsilon:g} at delta={self.budget.delta:g} ({self.budget.neighbouring}); "
                "nothing was released. Raise eps or privacy.noise_multiplier, or ask for fewer rounds"
            )

    def charge(self, release: Release) -> None:
        """Write the release down; when this returns, it may leave."""
        if (release.name, release.round) in self._made:
            raise PrivfedError(
                f"{release.name} was released in round {release.round} already; noise is never used twice"
            )
        if self._expected:
            if release != self._expected[0]:
                raise PrivfedError(
                    f"the ledger's release {len(self.releases) + 1} is not the one that was to be repeated"
                )
            self._note(self._expected.pop(0))
            return
        self.check([release], f"release {len(self.releases) + 1} ({release.name})")
        self._note(release)
        if self._file is not None:
            line = {
                "release": len(self.releases),
                "mechanism": release.mechanism,
                **asdict(release),
                "mu": release.mu,
                "epsilon": release.epsilon,
                "epsilon_spent": self.epsilon,
                "delta": self.budget.delta,
                "neighbouring": self.budget.neighbouring,
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            entry = {key: plain(value) for key, value in line.items()}
            self._links.append(linked(self._links[-1], entry))
            self._file.write(json.dumps(entry | {"chain": self._links[-1]}) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Give the file free; nothing more can be released into it."""
        if self._file is not None:
            self._file.close()


def locked(path: Path) -> TextIO:
    """The file, open for appending by this process alone."""
    file = path.open("a", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise ConfigError.of(
            "out", path.parent, "another process is writing this run's ledger"
        ) from error
    return file


def linked(before: str, entry: dict[str, Any]) -> str:
    """The hash that ties an entry to what came before it."""
    text = json.dumps({key: plain(value) for key, value in entry.items()}, sort_keys=True)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def read_release(line: dict[str, Any]) -> Release:
    """The release that a line of a ledger tells of."""
    kinds: tuple[Any, ...] = (GaussianRelease, Selection)
    kind = next(kind for kind in kinds if kind.mechanism == line["mechanism"])
    values = {field.name: line[field.name] for field in fields(kind)}
    release: Release = kind(
        **{name: math.inf if value == "inf" else value for name, value in values.items()}
    )
    return release


def plain(value: object) -> object:
    """JSON knows no infinity: a run without noise says "inf"."""
    return "inf" if isinstance(value, float) and math.isinf(value) else value
