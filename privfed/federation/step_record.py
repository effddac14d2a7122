"""What is recorded of each step of a run: one line of rounds.csv."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class StepRecord:
    """The record of one step. Nothing in it tells about a single user.

    Attributes:
        step: number of the step in the plan, from 1.
        task: what users were asked for.
        round: round of the phase; 0 only measures clip norms.
        users: public number of users who were asked.
        epsilon: what everything released so far costs.
        missing_users: number of asked users whose node did not answer.
        seconds: time that the step took; None where users are real, whose rows it would tell of.
        clip: clip norm of the first sum; None where nothing was released.
        noise_std: standard deviation of the noise in its mean; None likewise.
        errors: errors of the shared parameters on fresh public users, by name.
    """

    step: int
    task: str
    round: int
    users: int
    epsilon: float = 0.0
    missing_users: int = 0
    seconds: float | None = 0.0
    clip: float | None = None
    noise_std: float | None = None
    errors: dict[str, float] = field(default_factory=dict)

    def as_row(self) -> dict[str, Any]:
        """Return the record as a line of rounds.csv: values by name of the column."""
        known = {key: value for key, value in vars(self).items() if value is not None}
        del known["errors"]
        return {**known, **self.errors}
