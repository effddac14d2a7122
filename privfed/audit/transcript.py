"""What a run showed to somebody who listens at the noise gate and reads everything that is sent or published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privfed.foundation.linalg import Array
from privfed.privacy.accounting import Release


@dataclass(frozen=True)
class Call:
    """One passage through the gate. total: what entered; made: what the gate made of it; out: what it gave out."""

    step: int
    name: str
    round: int
    terms: dict[str, Any]
    total: Array
    made: Array
    out: Array
    entry: Release | None
    """What the ledger says of it; None: nothing was written down."""


@dataclass(frozen=True)
class Message:
    """What a node was told. kind: fit or evaluate."""

    kind: str
    cid: str
    ins: Any

    @property
    def content(self) -> tuple[Any, ...]:
        """Parameters and settings, to the bit."""
        return tuple(self.ins.parameters.tensors), tuple(sorted(self.ins.config.items()))

    @property
    def words(self) -> str:
        """Which message it is, for a person."""
        config = self.ins.config
        told = (
            f"step {config['step']} ({config['task']})"
            if self.kind == "fit"
            else "the end of the run"
        )
        return f"what node {self.cid!r} is told in {told}"


@dataclass
class Transcript:
    """Everything one run showed."""

    calls: list[Call] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What went wrong at nodes."""
    stopped: str = ""
    """Why the run did not reach its end."""
    planned: list[tuple[str, int]] = field(default_factory=list)
    ledger: list[Release] = field(default_factory=list)
    published: dict[str, Any] = field(default_factory=dict)


def differences(one: Transcript, other: Transcript, honest: bool = True) -> Iterable[str]:
    """What is public and not the same in two runs, in words.

    honest: False where a node lies or is silent: that it counts as missing is then no news.
    """
    if len(one.messages) != len(other.messages):
        yield f"how many messages nodes are sent: {len(one.messages)} and {len(other.messages)}"
    for mine, theirs in zip(one.messages, other.messages, strict=False):
        if (mine.cid, mine.kind) != (theirs.cid, theirs.kind) or mine.content != theirs.content:
            yield mine.words
            break
    if one.ledger != other.ledger:
        yield "the ledger"
    left, right = (
        transcript.published if honest else without_absences(transcript.published)
        for transcript in (one, other)
    )
    yield from (
        f"the published {key}" for key in left if right and frozen(left[key]) != frozen(right[key])
    )


def without_absences(published: dict[str, Any]) -> dict[str, Any]:
    """The same without what tells of missing users."""
    rows = [
        {key: value for key, value in row.items() if key != "missing_users"}
        for row in published.get("rows", [])
    ]
    result = {key: value for key, value in published.get("result", {}).items() if key != "notes"}
    return {**published, "rows": rows, "result": result} if published else {}


def frozen(value: Any) -> Any:
    """Something that can be compared to the bit, arrays by their bytes."""
    if isinstance(value, dict):
        return {key: frozen(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [frozen(inner) for inner in value]
    return (
        (value.shape, value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value
    )
