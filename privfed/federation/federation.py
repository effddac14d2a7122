"""What a strategy is given: who takes part, the noise gate, the budget and its split, and where progress goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from privfed.data.cohort import groups_of
from privfed.foundation.linalg import Array
from privfed.privacy.gate import NoiseGate
from privfed.privacy.settings import PrivacySettings


@dataclass(eq=False)
class Federation:
    """The public frame of a run, the same for every algorithm."""

    nodes: Mapping[str, range]
    """Registered nodes and the users behind each: known in advance, never taken from a message."""
    d: int
    k: int
    seed: int
    gate: NoiseGate
    privacy: PrivacySettings
    init: Any = None
    """The server half of the initialiser."""
    error: str = "mse"
    """What is to be made small: mse (targets are numbers), risk (labels -1 and 1) or frobenius."""
    personal: bool = False
    """A simulation whose users' own predictors can be judged at the end."""
    schema: Any = None
    """What the columns of a table mean, where data are one."""
    U_star: Array | None = None
    """The true representation, in simulations."""
    validate: Callable[[list[Array]], dict[str, float]] | None = None
    """Error of a published model on fresh public users, where there are some."""
    on_step: Callable[[dict[str, Any]], None] = field(default=lambda row: None)
    join_timeout: float = 600
    """Seconds to wait for all nodes before the first step."""
    rejoin_timeout: float = 0
    """Seconds to wait in later steps until enough users are connected."""
    quorum: float = 0.0
    """Fraction of the users a step needs; with fewer the run stops, and can be resumed."""
    strict: bool = True
    """A node that fails stops the run (in one process, where it is a bug); otherwise its users count as zero."""
    publish: bool = False
    """Whether nodes are sent the published model at the end, so that their users can fit final heads."""
    ready: float = 0.0
    """When every node had joined (time.perf_counter)."""

    @property
    def n(self) -> int:
        """The public number of users: the divisor of every mean, whoever replies."""
        return sum(len(users) for users in self.nodes.values())

    def asked(self, groups: int, group: int | None) -> dict[str, int]:
        """Registered users of each node who take part: all, or those of one of so many disjoint groups."""
        if group is None:
            return {cid: len(users) for cid, users in self.nodes.items()}
        return {cid: counts[group] for cid, counts in self._by_group(groups).items()}

    @lru_cache(maxsize=1)  # noqa: B019  one federation a run
    def _by_group(self, groups: int) -> dict[str, list[int]]:
        n = self.n
        members = {
            cid: groups_of(np.asarray(users, dtype=np.int64), n, groups, self.seed)
            for cid, users in self.nodes.items()
        }
        return {cid: np.bincount(mine, minlength=groups).tolist() for cid, mine in members.items()}
