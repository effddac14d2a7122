"""The frame of a run that a strategy is given.

It says who takes part, holds the noise gate and the split of the budget, and takes progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from privfed.data.cohort import groups_of
from privfed.federation.step_record import StepRecord
from privfed.foundation.linalg import Array
from privfed.privacy.gate import NoiseGate
from privfed.privacy.settings import PrivacySettings


@dataclass(eq=False)
class Federation:
    """The public frame of a run, the same for every algorithm."""

    nodes: Mapping[str, range]
    """Users behind each registered node: known in advance, never taken from a message."""
    d: int
    k: int
    seed: int
    gate: NoiseGate
    privacy: PrivacySettings
    init: Any = None
    """The server side of the initialiser."""
    error: str = "mse"
    """What is minimised: mse (targets are numbers), risk (labels -1 and 1) or frobenius."""
    personal: bool = False
    """Whether this is a simulation whose users' own predictors can be judged at the end."""
    schema: Any = None
    """What the columns mean, if the data are a table."""
    U_star: Array | None = None
    """The true representation, in simulations."""
    validate: Callable[[list[Array]], dict[str, float]] | None = None
    """Error of a published model on fresh public users, if there are any."""
    on_step: Callable[[StepRecord], None] = field(default=lambda row: None)
    join_timeout: float = 600
    """Seconds to wait for all nodes before the first step."""
    rejoin_timeout: float = 0
    """Seconds to wait in later steps until users enough for the quorum are connected."""
    quorum: float = 0.0
    """Fraction of the users that a step needs; with fewer, the run stops and can be resumed."""
    strict: bool = True
    """Whether a failing node stops the run (in one process it is a bug), or counts as zero."""
    publish: bool = False
    """Whether nodes are sent the published model at the end, to fit the final heads."""
    ready: float = 0.0
    """Time at which every node had joined, by time.perf_counter."""

    @property
    def n(self) -> int:
        """Public number of users: the divisor of every mean, whoever replies."""
        return sum(len(users) for users in self.nodes.values())

    def asked(self, groups: int, group: int | None) -> dict[str, int]:
        """Return the number of registered users per node who take part in a step.

        Args:
            groups: number of disjoint groups that the users are split into.
            group: the group that takes part; None for all users.
        """
        if group is None:
            return {cid: len(users) for cid, users in self.nodes.items()}
        return {cid: counts[group] for cid, counts in self._by_group(groups).items()}

    @lru_cache(maxsize=1)  # noqa: B019  one federation per run
    def _by_group(self, groups: int) -> dict[str, list[int]]:
        n = self.n
        members = {
            cid: groups_of(np.asarray(users, dtype=np.int64), n, groups, self.seed)
            for cid, users in self.nodes.items()
        }
        return {cid: np.bincount(mine, minlength=groups).tolist() for cid, mine in members.items()}
