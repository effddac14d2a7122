"""Ledger of releases: each release is recorded before it leaves, or refused if over budget."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TextIO

from privfed.foundation.errors import BudgetError, ConfigError, PrivfedError, check_number
from privfed.privacy.accounting import (
    Cost,
    GaussianRelease,
    Price,
    Release,
    SelectionRelease,
    composed,
    gaussian_mu,
    prices,
    total_epsilon,
)
from privfed.privacy.distances import sensitivity_of
from privfed.privacy.neighbouring import RELATIONS, REPLACE_ONE, ZERO_OUT, canonical
from privfed.privacy.statement import SIMULATION

EPSILONS = "must be a positive number between 1e-6 and 1e6, or inf for no privacy"


@dataclass(frozen=True)
class Budget:
    """Upper limit on the total cost of all releases together.

    Attributes:
        epsilon: from 1e-6 to 1e6, or infinite for no privacy.
        delta: from 0 (pure privacy) to below 1.
        neighbouring: neighbouring relation, one of RELATIONS, or another name of one.
    """

    epsilon: float
    delta: float
    neighbouring: str = REPLACE_ONE

    def __post_init__(self) -> None:
        check_number("eps", self.epsilon, lambda x: x == math.inf or 1e-6 <= x <= 1e6, EPSILONS)
        check_number(
            "delta", self.delta, lambda x: 0 <= x < 1, "must lie between 0 and 1 (0: pure privacy)"
        )
        object.__setattr__(self, "neighbouring", canonical(self.neighbouring))
        if self.neighbouring not in RELATIONS:
            raise ConfigError.of(
                "neighbouring", self.neighbouring, f"must be one of {', '.join(RELATIONS)}"
            )

    @property
    def mu(self) -> float:
        """Return the Gaussian budget.

        It is scaled by 1 - 1e-9 so that rounding cannot push the last release over budget.
        """
        return gaussian_mu(self.epsilon, self.delta) * (1 - 1e-9)


class Ledger:
    """Append-only account of releases.

    Each release is one JSON line, written to disk before the release may be used.

    Args:
        budget: upper limit on the total cost.
        dated: whether lines say when they were written. The times of steps tell how many rows real
            users have.
    """

    def __init__(self, budget: Budget, dated: bool = True) -> None:
        self.budget, self.dated = budget, dated
        self.simulation = False
        """Whether the noise can be repeated; every line then says that it guarantees nothing."""
        self.releases: list[Release] = []
        self._paid = Counter[Price]()
        self._made: set[tuple[str, int]] = set()
        """Names and rounds of all releases; `_paid` counts them per price."""
        self._file: TextIO | None = None
        self._expected: list[Release] = []
        self.on_charge: Callable[[Release], None] = lambda release: None
        """Called with a release that is in the ledger and has not left; may refuse it."""
        self._links = [linked("", asdict(budget))]
        """Hashes of the budget and of all lines up to each line.

        Every line carries its own hash, so that no line can be changed unnoticed.
        """

    def open(self, path: Path) -> None:
        """Write to the file at `path` from now on.

        Raises:
            ConfigError: the file has the ledger of another run, or another process writes to it.
        """
        file = locked(path)
        if path.stat().st_size:
            file.close()
            raise ConfigError.of("out", path.parent, "already holds the ledger of another run")
        self._file = file

    def reopen(self, path: Path, known: int, chain: str = "") -> list[Release]:
        """Continue the ledger of an interrupted run; everything in it counts as spent.

        Args:
            path: file of the ledger.
            known: number of releases that the caller knows.
            chain: hash of the last known release; a ledger that was cut, edited or exchanged does
                not have it there.

        Returns:
            The releases after the first `known` ones.

        Raises:
            ConfigError: the file is not the ledger of these releases.
        """
        self._file = locked(path)
        # An incomplete line is dropped: its release never left.
        self._file.truncate(self.verify(path))
        if len(self.releases) < known or (chain and self._links[known] != chain):
            raise ConfigError(
                f"{path}: is not the ledger of the {known} releases that were made; it was cut or "
                "exchanged"
            )
        return self.releases[known:]

    def verify(self, path: Path) -> int:
        """Read all releases of a file, and check each line against the lines before it.

        Returns:
            The length of all complete lines, in bytes.

        Raises:
            ConfigError: the file cannot be read, or a line was changed.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        whole = content.rfind(b"\n") + 1
        for number, text in enumerate(content[:whole].splitlines(), start=1):
            self._note(self._read(path, number, text))
        return whole

    def _read(self, path: Path, number: int, text: bytes) -> Release:
        """Return the release of one line if the line follows from the lines before it."""
        try:
            line = json.loads(text)
            link = line.pop("chain")
            release = read_release(line)
            if number == 1 and canonical(line["neighbouring"]) == self.budget.neighbouring:
                # The chain starts from the relation's name at the time of writing.
                budget = asdict(self.budget) | {"neighbouring": line["neighbouring"]}
                self._links = [linked("", budget)]
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
            raise ConfigError(f"{path}: line {number} cannot be read") from error
        self._links.append(linked(self._links[-1], line))
        if link != self._links[-1]:
            raise ConfigError(
                f"{path}: line {number} was changed after it was written, or a line before it is "
                "missing"
            )
        self._check_sensitivity(f"{path}: line {number}", release)
        return release

    def _check_sensitivity(self, where: str, release: Release) -> None:
        """Raise a ConfigError if a release claims that one user moves it less than one can."""
        relation = self.budget.neighbouring
        try:
            least = needed(release, relation)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where} has no bound that could be checked: {error}") from error
        if not release.sensitivity >= least * (1 - 1e-12):
            raise ConfigError(
                f"{where} claims a sensitivity of {release.sensitivity:.10g}, but one user can "
                f"move this sum by {least:.10g} (bound {release.bound}, clip norm "
                f"{release.clip:.10g}, {relation})"
            )

    def expect(self, releases: Sequence[Release]) -> None:
        """Announce that the last releases will be repeated with the same noise.

        Args:
            releases: releases that an interrupted run wrote last; they are not charged again.
        """
        self._expected = list(releases)
        known = self.releases[: len(self.releases) - len(self._expected)]
        self.releases, self._paid, self._made = [], Counter(), set()
        self._note(*known)

    def _note(self, *releases: Release) -> None:
        """Count releases as made."""
        self.releases += releases
        self._paid += prices(releases)
        self._made |= {(release.name, release.round) for release in releases}

    @property
    def chain(self) -> str:
        """Return the hash of the last release; it covers all earlier lines of the file."""
        return self._links[min(len(self.releases), len(self._links) - 1)]

    @property
    def epsilon(self) -> float:
        """Return the epsilon spent so far, at the budget's delta."""
        return composed(self._paid, self.budget.delta, self.budget.neighbouring != ZERO_OUT)

    @property
    def delta(self) -> float:
        """Return the delta of the releases so far: 0 if only pure mechanisms were used."""
        pure = self.releases and all(release.mu == 0 for release in self.releases)
        return 0.0 if pure else self.budget.delta

    def epsilon_under(self, neighbouring: str) -> float:
        """Return the cost of the same releases under another neighbouring relation."""
        here = self.budget.neighbouring
        moved = (
            replace(r, sensitivity=r.sensitivity + needed(r, neighbouring) - needed(r, here))
            for r in self.releases
        )
        return total_epsilon(moved, self.budget.delta, neighbouring != ZERO_OUT)

    def check(self, costs: Sequence[Cost], what: str) -> None:
        """Refuse releases that exceed the budget, before any data are used.

        Args:
            costs: costs on top of what is spent.
            what: name of the releases in the message.

        Raises:
            BudgetError: the total would exceed the budget.
        """
        epsilon = composed(
            self._paid + prices(costs), self.budget.delta, self.budget.neighbouring != ZERO_OUT
        )
        if epsilon > self.budget.epsilon:
            raise BudgetError(
                f"privacy budget refused: {what} would bring the total to epsilon={epsilon:.4g}, "
                "the budget is "
                f"epsilon={self.budget.epsilon:g} at delta={self.budget.delta:g} "
                f"({self.budget.neighbouring}); "
                "nothing was released. Raise eps or privacy.noise_multiplier, or ask for fewer "
                "rounds"
            )

    def charge(self, release: Release) -> None:
        """Record a release; it may leave once this method has returned.

        Raises:
            BudgetError: the release would exceed the budget.
            PrivfedError: the release was made before, or is not the one that has to be repeated.
        """
        if (release.name, release.round) in self._made:
            raise PrivfedError(
                f"{release.name} was released in round {release.round} already; noise is never "
                "used twice"
            )
        if self._expected:
            if release != self._expected[0]:
                raise PrivfedError(
                    f"the ledger's release {len(self.releases) + 1} is not the one that was to be "
                    "repeated"
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
            }
            if self.simulation:
                line["guarantee"] = SIMULATION
            if self.dated:
                line["time"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            entry = {key: plain(value) for key, value in line.items()}
            self._links.append(linked(self._links[-1], entry))
            self._file.write(json.dumps(entry | {"chain": self._links[-1]}) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self.on_charge(release)

    def close(self) -> None:
        """Close the file; nothing more can be released into it."""
        if self._file is not None:
            self._file.close()


def locked(path: Path) -> TextIO:
    """Return the file, open for appending and locked by this process.

    Raises:
        ConfigError: another process has locked it.
    """
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
    """Return the hash of an entry together with the hash `before` it."""
    text = json.dumps({key: plain(value) for key, value in entry.items()}, sort_keys=True)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def read_release(line: dict[str, Any]) -> Release:
    """Return the release that a line of a ledger describes."""
    kinds: tuple[Any, ...] = (GaussianRelease, SelectionRelease)
    kind = next(kind for kind in kinds if kind.mechanism == line["mechanism"])
    # Ledgers of earlier versions do not name these: their bounds are norms.
    later = {"bound", "grid", "summation", "noise", "parts"}
    values = {
        field.name: line[field.name]
        for field in fields(kind)
        if field.name in line or field.name not in later
    }
    release: Release = kind(
        **{name: math.inf if value == "inf" else value for name, value in values.items()}
    )
    return release


def needed(release: Release, relation: str) -> float:
    """Return the least sensitivity that a release may claim under a neighbouring relation.

    Raises:
        KeyError: the kind of its bound is unknown.
        ValueError: its bound says nothing about sampled users.
    """
    return sensitivity_of(
        release.bound,
        release.clip,
        relation,
        sampling=release.sampling,
        rounding=release.rounding,
    )


def plain(value: object) -> object:
    """Return `value`, or "inf" for an infinite float, since JSON has no infinity."""
    return "inf" if isinstance(value, float) and math.isinf(value) else value
