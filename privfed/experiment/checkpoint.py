"""Checkpoint of an interrupted run: all public state that the next step needs, saved per step.

The order of writing makes resuming safe. A release is in the ledger before it exists, and in the
checkpoint after it was used. A run killed in between has paid for a step whose result it does not
know. Seeded noise is the same if the step is repeated, so a simulation repeats it, and the ledger
does not count it twice. Discrete noise would be fresh: the same users would be released twice for
one entry. So that step is given up: it stays paid for, and its users count as missing.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from privfed.federation.step_record import StepRecord
from privfed.foundation.atomic_files import reserve_room, write_into_room
from privfed.foundation.errors import BudgetError, ConfigError, PrivfedError

FILE = "checkpoint.npz"


ROOM = 1 << 16
"""Bytes that must be free besides the checkpoint, for the lines of ledger and account."""


def reserve(folder: Path, strategy: Any, rows: Sequence[str], extra: int) -> None:
    """Reserve room on the disk for the checkpoint after the next step.

    Called before the step is charged, so that a run on a full disk stops without paying for a step
    whose result it cannot keep.

    Args:
        folder: folder of the run.
        strategy: strategy of the run.
        rows: record of each step so far, as JSON.
        extra: bytes of the sums of the step, of which the model may grow.

    Raises:
        PrivfedError: if there is no room; nothing was charged.
    """
    arrays = _arrays(strategy)
    size = extra + sum(array.nbytes for array in arrays.values()) + sum(map(len, rows))
    try:
        reserve_room(folder / FILE, 2 * size + ROOM * (2 + len(arrays) // 64), ROOM)
    except OSError as error:
        raise PrivfedError(
            f"{folder}: no room for the result of step {strategy.done + 1} ({error.strerror}); it "
            "was not released and nothing was charged, go on with --resume when there is"
        ) from error


def save(folder: Path, strategy: Any, rows: Sequence[str]) -> None:
    """Save the state after a step.

    Args:
        folder: folder of the run.
        strategy: strategy of the run.
        rows: record of each step so far, as JSON, so that no row is encoded twice.
    """
    write_into_room(folder / FILE, _content(strategy, rows))


def _content(strategy: Any, rows: Sequence[str]) -> bytes:
    """Return the bytes of a checkpoint."""
    facts = {
        "done": strategy.done,
        "started": strategy.started,
        "clips": strategy.clips,
        "notes": list(strategy.federation.init.notes),
        "releases": len(strategy.federation.gate.ledger.releases),
        "chain": strategy.federation.gate.ledger.chain,
    }
    text = f'{json.dumps(facts)[:-1]}, "rows": [{", ".join(rows)}]}}'
    content = io.BytesIO()
    arrays = _arrays(strategy)
    np.savez(content, facts=np.frombuffer(text.encode(), dtype=np.uint8), **arrays)
    return content.getvalue()


def _arrays(strategy: Any) -> dict[str, Any]:
    """Return the arrays of a checkpoint by name."""
    arrays = {f"shared_{i}": array for i, array in enumerate(strategy.shared)}
    arrays |= {f"memory_{name}": array for name, array in strategy.memory().items()}
    init = strategy.federation.init.memory()
    return arrays | {f"init_{name}": array for name, array in init.items()}


def restore(folder: Path, strategy: Any) -> list[dict[str, Any]]:
    """Bring a new strategy to the state of the interrupted run, and reopen its ledger.

    Args:
        folder: folder of the run.
        strategy: strategy that has done nothing yet.

    Returns:
        The rows so far.

    Raises:
        BudgetError: steps that cannot be repeated are lost.
        ConfigError: checkpoint or ledger cannot be read.
    """
    ledger, rows, releases, chain = strategy.federation.gate.ledger, [], 0, ""
    if (folder / FILE).exists():
        known, arrays = read_checkpoint(folder)
        strategy.shared = [
            arrays[f"shared_{i}"] for i in range(sum(name.startswith("shared_") for name in arrays))
        ]
        for owner, prefix in ((strategy, "memory_"), (strategy.federation.init, "init_")):
            mine = [name for name in arrays if name.startswith(prefix)]
            if mine or owner is strategy:
                owner.recall({name.removeprefix(prefix): arrays[name] for name in mine})
        strategy.done, strategy.started, strategy.clips = (
            known["done"],
            known["started"],
            known["clips"],
        )
        strategy.federation.init.notes = tuple(known["notes"])
        rows, releases, chain = known["rows"], known["releases"], known["chain"]
    unknown = ledger.reopen(folder / "ledger.jsonl", releases, chain)
    if unknown and strategy.federation.gate.source.repeatable:
        ledger.expect(unknown)
    elif unknown:
        paid = {(release.name, release.round) for release in unknown}
        while strategy.done < len(strategy.plan) and paid & released_in(
            strategy, strategy.plan[strategy.done]
        ):
            rows.append(_give_up(strategy))
        if strategy.done == len(strategy.plan) and not strategy.shared:
            raise BudgetError("every step was paid for, and all results are lost; start a new run")
    return rows


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts and the arrays of a checkpoint.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with np.load(folder / FILE) as file:
            arrays = dict(file)
        return json.loads(arrays.pop("facts").tobytes()), arrays
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise ConfigError(
            f"{folder / FILE}: cannot be read ({error}); the run cannot be resumed"
        ) from error


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the steps that a run in progress has done."""
    done: list[dict[str, Any]] = (
        read_checkpoint(folder)[0]["rows"] if (folder / FILE).exists() else []
    )
    return done


def released_in(strategy: Any, step: Any) -> set[tuple[str, int]]:
    """Return (name, round) of the releases of a step."""
    return {(name, step.round) for name, _ in strategy.costs(step)}


def _give_up(strategy: Any) -> dict[str, Any]:
    """Skip the next step, whose result is lost; return its row."""
    step = strategy.plan[strategy.done]
    if step.task != strategy.rounds_task or not step.releases:
        raise BudgetError(
            f"the run was stopped while its {step.task} step was being released: that is paid "
            "for, and its result is lost. "
            "Nothing can be learnt without it; start a new run"
        )
    strategy.done += 1
    users = sum(strategy.federation.asked(step.phase.groups, step.group).values())
    record = StepRecord(strategy.done, step.task, step.round, users, missing_users=users)
    record.epsilon = strategy.federation.gate.ledger.epsilon
    return record.as_row()
