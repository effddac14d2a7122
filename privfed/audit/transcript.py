"""Record of one run: calls of the noise gate, draws of noise, and all that is sent or published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from privfed.foundation.linalg import Array
from privfed.privacy.accounting import Release


@dataclass(frozen=True)
class Call:
    """One passage through the gate.

    Attributes:
        step: number of steps done before.
        name: name of the release.
        round: round of the release.
        terms: further arguments of the call.
        total: what entered.
        made: what the gate made of it.
        out: what the gate returned.
        entry: its release in the ledger; None if nothing was written.
    """

    step: int
    name: str
    round: int
    terms: dict[str, Any]
    total: Array
    made: Array
    out: Array
    entry: Release | None


@dataclass(frozen=True)
class Message:
    """Message to a node.

    Attributes:
        kind: fit or evaluate.
        cid: name of the node.
        ins: Flower's instructions.
    """

    kind: str
    cid: str
    ins: Any

    @property
    def content(self) -> tuple[Any, ...]:
        """Return parameters and settings, for exact comparison."""
        return tuple(self.ins.parameters.tensors), tuple(sorted(self.ins.config.items()))

    @property
    def words(self) -> str:
        """Return which message it is, in words."""
        config = self.ins.config
        told = (
            f"step {config['step']} ({config['task']})"
            if self.kind == "fit"
            else "the end of the run"
        )
        return f"what node {self.cid!r} is told in {told}"


@dataclass(frozen=True)
class Reply:
    """Answer of a node that runs the real client.

    Attributes:
        message: what the node was asked.
        answer: Flower's answer.
        shapes: shapes of the arrays that were asked for.
        users: registered users of the node.
        absent: how many of them are absent.
    """

    message: Message
    answer: Any
    shapes: list[tuple[int, ...]]
    users: int
    absent: int = 0


@dataclass(frozen=True)
class Draw:
    """One draw from the source of noise.

    Attributes:
        name: name of the release that it is for.
        round: round of the release.
        written: number of releases that the ledger had when it was drawn.
    """

    name: str
    round: int
    written: int


@dataclass
class Transcript:
    """Everything that one run showed."""

    calls: list[Call] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Lines that were logged or printed."""
    failures: list[str] = field(default_factory=list)
    """Errors at nodes."""
    stopped: str = ""
    """Error that ended the run early; empty if none did."""
    planned: list[tuple[str, int]] = field(default_factory=list)
    ledger: list[Release] = field(default_factory=list)
    published: dict[str, Any] = field(default_factory=dict)


def differences(one: Transcript, other: Transcript, honest: bool = True) -> Iterable[str]:
    """Yield what is public and differs between two runs, in words.

    Args:
        one: transcript of a run.
        other: transcript of another run.
        honest: False if a node lies or is silent; the count of missing users may then differ.
    """
    if len(one.messages) != len(other.messages):
        yield f"how many messages nodes are sent: {len(one.messages)} and {len(other.messages)}"
    for mine, theirs in zip(one.messages, other.messages, strict=False):
        if (mine.cid, mine.kind) != (theirs.cid, theirs.kind) or mine.content != theirs.content:
            yield mine.words
            break
    if one.ledger != other.ledger:
        yield "the ledger"
    if honest and one.said != other.said:
        yield "what is logged or printed"
    left, right = (
        transcript.published if honest else without_absences(transcript.published)
        for transcript in (one, other)
    )
    yield from (
        f"the published {key}" for key in left if right and frozen(left[key]) != frozen(right[key])
    )


def without_absences(published: dict[str, Any]) -> dict[str, Any]:
    """Return the same without the counts of missing users."""
    rows = [
        {key: value for key, value in row.items() if key != "missing_users"}
        for row in published.get("rows", [])
    ]
    result = {key: value for key, value in published.get("result", {}).items() if key != "notes"}
    return {**published, "rows": rows, "result": result} if published else {}


def frozen(value: Any) -> Any:
    """Return a value that can be compared exactly; arrays by their bytes."""
    if isinstance(value, dict):
        return {key: frozen(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [frozen(inner) for inner in value]
    return (
        (value.shape, value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value
    )
