"""What every initialiser shares: the server half of the steps that come before an algorithm's first round."""

from __future__ import annotations

from privfed.algorithm.phases import Step
from privfed.federation.federation import Federation
from privfed.foundation.linalg import Array


class Initialiser:
    """Finds a first model. One writes `task`, `shape` and `step`; a public start writes only `before`."""

    task: str | None = None
    """What users are asked for; None: nothing."""
    gives: tuple[str, ...] = ("U",)
    """The arrays it starts an algorithm with."""
    rounds = 1
    clip: float | str = 1.0
    notes: tuple[str, ...] = ()
    """What a reader of the result should know about how the start was found."""

    def before(self, federation: Federation) -> list[Array]:
        """What is shared before any user is asked: public."""
        return []

    def shape(self, federation: Federation) -> tuple[int, ...]:
        """Shape of a step's sum."""
        raise TypeError(f"{type(self).__name__} does not say what it asks for")

    def release(
        self, federation: Federation, step: Step, total: Array, bound: float, users: int
    ) -> Array:
        """The mean over all users, each of norm at most bound, through the gate."""
        return (
            federation.gate.release(step.task, total, bound=bound, mu=step.mu, round=step.round)
            / users
        )

    def step(self, federation: Federation, t: int, shared: list[Array], mean: Array) -> list[Array]:
        """What is shared after step t = 1..rounds, from the released mean; after the last one the arrays in `gives`."""
        raise TypeError(f"{type(self).__name__} does not say what a step does")
