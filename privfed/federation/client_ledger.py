"""Ledger of a node: what its users were asked for, in all runs and by all servers.

One line per answered step, on disk before the answer leaves. A line records what the server
*promised* that the step costs: a node sees its own part only, not the noise. A step that is asked
again with the same parameters gets the same answer and is not charged twice.

The ledger belongs to one file of rows. Users of disjoint groups pay in parallel within a run; over
several runs the worst is assumed. All costs are stated under replace-one, whatever relation a run
has.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

import numpy as np
from flwr.common import Code, FitRes, Parameters, Status

from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import BudgetError, ConfigError
from privfed.privacy.accounting import Price, composed
from privfed.privacy.ledger import linked
from privfed.privacy.neighbouring import REPLACE_ONE, influence


@dataclass(frozen=True)
class AnsweredStep:
    """One line of the ledger.

    Attributes:
        run: number that the server drew for its run.
        plan: hash of the plan that the node was shown.
        step: number of the step.
        asked: hash of the announcement and of the parameters that came with it.
        clips: clip norms that were announced.
        prices: cost of each release of the step.
        relation: neighbouring relation of the costs.
    """

    run: str
    plan: str
    step: int
    asked: str
    clips: tuple[float, ...]
    prices: tuple[Price, ...]
    relation: str


class ClientLedger:
    """Ledger in a file; several processes may write to it in turn.

    Args:
        folder: folder of the file; made if it does not exist, readable by its owner only.
        data: file of rows that the ledger is about.

    Raises:
        ConfigError: if the folder cannot be written to, or the file is no ledger.
    """

    def __init__(self, folder: Path, data: Path) -> None:
        name = hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:16]
        self.path = folder / f"ledger-{name}.jsonl"
        self.steps: list[AnsweredStep] = []
        self._read, self._chain = 0, ""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                pass
        except OSError as error:
            raise ConfigError(
                f"{folder}: cannot keep this client's ledger there ({error.strerror}); "
                "give another folder with --state"
            ) from error

    def last(self, run: str) -> AnsweredStep | None:
        """Return the last step that was answered in a run."""
        return next((step for step in reversed(self.steps) if step.run == run), None)

    @property
    def runs(self) -> int:
        """Number of runs with at least one answered step."""
        return len({step.run for step in self.steps})

    def spent(self, without: str = "") -> Counter[Price]:
        """Count what all runs have cost, per price under replace-one.

        Args:
            without: run that is left out.
        """
        paid: dict[str, Counter[Price]] = {}
        for step in self.steps:
            if step.run != without:
                paid.setdefault(step.run, Counter()).update(
                    as_replaced(price, step.relation) for price in step.prices
                )
        total = Counter[Price]()
        for prices in paid.values():
            total += worst_user(prices)
        return total

    def charge(self, step: AnsweredStep, limit: float | None, delta: float) -> bool:
        """Record a step, on disk; its answer may leave once this method has returned.

        Args:
            step: the step.
            limit: most epsilon that everything together may cost; None: any.
            delta: delta at which it is stated.

        Returns:
            Whether it is new. A step that was answered last, and is asked in the same way, is not.

        Raises:
            ConfigError: if the run has another plan by now, or the step was answered already.
            BudgetError: if the limit would be exceeded.
        """
        with self._locked() as file:
            last = self.last(step.run)
            if last is not None:
                if last.plan != step.plan:
                    raise ConfigError("the server changed the plan of a run that has begun")
                if last.step == step.step and last.asked == step.asked:
                    return False
                if last.step == step.step:
                    raise ConfigError(f"step {step.step} was asked again with other parameters")
                if last.step > step.step:
                    raise ConfigError(f"step {step.step} was asked after step {last.step}")
            if limit is not None:
                mine = Counter(
                    as_replaced(price, each.relation)
                    for each in (*self.steps, step)
                    if each.run == step.run
                    for price in each.prices
                )
                check_limit(self.spent(step.run) + worst_user(mine), limit, delta)
            entry = asdict(step) | {"date": datetime.now(UTC).date().isoformat()}
            entry = json.loads(json.dumps(entry))
            chain = linked(self._chain, entry)
            file.write((json.dumps(entry | {"chain": chain}) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
            self.steps.append(step)
            self._read, self._chain = file.tell(), chain
        return True

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """Hold the file alone, with all that other processes have written read."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(handle, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(self._read)
            content = file.read()
            whole = content.rfind(b"\n") + 1
            for line in content[:whole].splitlines():
                self._take(line)
            self._read += whole
            # An incomplete line is dropped: its answer never left.
            file.truncate(self._read)
            file.seek(self._read)
            yield file

    def _take(self, line: bytes) -> None:
        """Read one line that follows the lines before it."""
        try:
            found = json.loads(line)
            chain = found.pop("chain")
            values = {field.name: found[field.name] for field in fields(AnsweredStep)}
            prices = tuple((mu, eps, group, q) for mu, eps, group, q in values["prices"])
            step = AnsweredStep(**{**values, "clips": tuple(values["clips"]), "prices": prices})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self.path}: is not a ledger of this client") from error
        if linked(self._chain, found) != chain:
            raise ConfigError(f"{self.path}: line {len(self.steps) + 1} was changed or is missing")
        self.steps.append(step)
        self._chain = chain

    # The last answer, for a server that asks again.

    def _answer(self, run: str) -> Path:
        return self.path.with_name(f"{self.path.stem}-{run}.answer")

    def keep_answer(self, step: AnsweredStep, answer: FitRes) -> None:
        """Keep the answer to the last step of a run, readable by its owner only."""
        facts = {"step": step.step, "asked": step.asked, "users": answer.num_examples}
        tensors = [np.frombuffer(tensor, dtype=np.uint8) for tensor in answer.parameters.tensors]
        content = io.BytesIO()
        text = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
        np.savez(content, text, *tensors)
        write_atomically(self._answer(step.run), content.getvalue(), mode=0o600)

    def kept_answer(self, step: AnsweredStep) -> FitRes | None:
        """Return the answer that was given to this step; None if it is not kept."""
        try:
            with np.load(self._answer(step.run)) as file:
                text, *tensors = (file[name].tobytes() for name in file.files)
            facts: Mapping[str, int | str] = json.loads(text)
        except (OSError, ValueError, EOFError, BadZipFile):
            return None
        if (facts["step"], facts["asked"]) != (step.step, step.asked):
            return None
        parameters = Parameters(tensors, "numpy.ndarray")
        return FitRes(
            Status(Code.OK, ""), parameters, int(facts["users"]), {"step": int(facts["step"])}
        )

    def forget_answer(self, run: str) -> None:
        """Remove the last answer of a run that is over."""
        self._answer(run).unlink(missing_ok=True)


def as_replaced(price: Price, relation: str) -> Price:
    """Return a price under replace-one: one user moves a clipped sum by at most twice its norm."""
    mu, epsilon, group, sampling = price
    factor = influence(REPLACE_ONE) / influence(relation)
    return factor * mu, factor * epsilon, group, sampling


def worst_user(prices: Counter[Price]) -> Counter[Price]:
    """Return prices that no user of a run exceeds: those of all users, and of every group at most.

    Args:
        prices: number of releases per price, of which a user pays those of one group.
    """
    everybody, groups = Counter[Price](), dict[int, Counter[Price]]()
    for (mu, epsilon, group, sampling), count in prices.items():
        mine = everybody if group is None else groups.setdefault(group, Counter())
        mine[mu, epsilon, None, sampling] += count
    worst = Counter[Price]()
    for mine in groups.values():
        worst |= mine
    return everybody + worst


def check_limit(prices: Counter[Price], limit: float, delta: float) -> None:
    """Refuse what would cost more than a limit.

    Raises:
        BudgetError: if it would.
    """
    total = composed(prices, delta)
    if total > limit:
        raise BudgetError(
            f"with all runs before it would cost epsilon={total:.4g} at delta={delta:g}, "
            f"--max-epsilon is {limit:g}; nothing was sent"
        )
