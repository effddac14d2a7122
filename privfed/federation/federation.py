"""The frame of a run that a strategy is given.

It says who takes part, holds the noise gate and the split of the budget, and takes progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import bdtrc

from privfed.data.cohort import groups_of
from privfed.data.user_identity import Identities
from privfed.federation.step_record import StepRecord
from privfed.foundation.linalg import Array
from privfed.privacy.gate import NoiseGate
from privfed.privacy.settings import PrivacySettings
from privfed.secure.terms import Terms

RARE = 1e-12
"""Probability that the honest users of one node in one group are more than the server expects."""


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
    identities: Mapping[str, Identities] = field(default_factory=dict)
    """Identities of the users of nodes whose users the server knows; see `Roster.identities`."""
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
    start_quorum: float = 1.0
    """Fraction of the users that have to be there after that time; others may join later."""
    rejoin_timeout: float = 0
    """Seconds to wait in later steps until users enough for the quorum are connected."""
    quorum: float = 0.0
    """Fraction of the users that a step needs; with fewer, the run stops and can be resumed."""
    strict: bool = True
    """Whether a failing node stops the run (in one process it is a bug), or counts as zero."""
    publish: bool = False
    """Whether nodes are sent the published model at the end, to fit the final heads."""
    before_release: Callable[[int], None] = field(default=lambda size: None)
    """Called before a step is charged, with the bytes of its sums: makes sure that its result can
    be kept, and raises otherwise."""
    secure: Terms | None = None
    """Frame of secure aggregation; None: the server is trusted with the sums of nodes."""
    ready: float = 0.0
    """Time at which every node had joined, by time.perf_counter."""

    @property
    def n(self) -> int:
        """Public number of users: the divisor of every mean, whoever replies."""
        return sum(len(users) for users in self.nodes.values())

    @property
    def registered(self) -> dict[str, int]:
        """Number of registered users per node."""
        return {cid: len(users) for cid, users in self.nodes.items()}

    def expected(self, groups: int) -> float:
        """Return the public number of users by which a sum is divided, before Poisson sampling.

        Args:
            groups: number of disjoint groups, one of which takes part; 0: everybody does. Only the
                users themselves know their groups, so the divisor is the expected size of a group.
        """
        return self.n / groups if groups else self.n

    def reach(self, groups: int, group: int | None) -> dict[str, int]:
        """Return the number of users per node whose parts the server lets into a sum.

        Where the server knows the identities of a node's users, it is the number of them who are in
        the group. Only a node of several real users knows who they are: for such a node it is a
        number that its users in one group exceed with probability below RARE. Each node's sum is
        projected onto the ball of that many clip norms. Projections onto convex sets do not
        increase distances, so one user moves the sum no further than without it.

        Args:
            groups: number of disjoint groups; 0: there are none.
            group: the group that takes part; None: everybody does.
        """
        if group is None:
            return self.registered
        counts = self._by_group(groups)
        return {
            cid: counts[cid][group] if cid in counts else most_in_a_group(users, groups)
            for cid, users in self.registered.items()
        }

    def asked(self, groups: int, group: int | None) -> dict[str, int]:
        """Return the nodes that are asked in a step, with the number of registered users of each.

        Nodes none of whose users can take part are not asked, unless that holds for all nodes, or
        nobody may know who takes part.
        """
        if self.secure is not None:
            return self.registered
        able = {cid for cid, users in self.reach(groups, group).items() if users}
        return {cid: n for cid, n in self.registered.items() if cid in able or not able}

    @lru_cache(maxsize=1)  # noqa: B019  one federation per run
    def _by_group(self, groups: int) -> dict[str, list[int]]:
        """Return the number of users per group, for nodes whose users' identities are known."""
        return {
            cid: np.bincount(groups_of(who, groups, self.seed), minlength=groups).tolist()
            for cid, who in self.identities.items()
        }


@lru_cache(maxsize=4096)
def most_in_a_group(users: int, groups: int) -> int:
    """Return the smallest number that the users of a node in one group rarely exceed.

    Args:
        users: number of users of the node.
        groups: number of groups, each as likely as any other for every user; 0: no groups.
    """
    if groups <= 1:
        return users
    low, high = 0, users
    while low < high:
        middle = (low + high) // 2
        rare = bdtrc(middle, users, 1.0 / groups) <= RARE
        low, high = (low, middle) if rare else (middle + 1, high)
    return max(1, low)
