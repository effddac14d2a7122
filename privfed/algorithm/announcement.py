"""What the server tells nodes at the beginning of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.common import Scalar


@dataclass(frozen=True)
class Announcement:
    """The settings of one step, the same for every node.

    Attributes:
        step: number of the step in the plan, from 1; answers repeat it.
        task: what users are asked for.
        round: round of the phase; 0 only measures clip norms.
        seed: seed of the run.
        clips: clip norm of each sum, in the order in which sums are sent; 0 where not known yet.
        release: whether sums are sent, or only what measures their norms.
        measure: how norms are measured; empty: not at all.
        users: number of users who are divided into groups; 0 without groups.
        groups: number of disjoint groups; 0 without groups.
        group: number of the group that takes part; None means everybody.
        sampling: probability with which each user takes part, by its own coin.
        secret: whether coins come from the operating system rather than from the seed.
    """

    step: int
    task: str
    round: int
    seed: int
    clips: tuple[float, ...]
    release: bool
    measure: str = ""
    users: int = 0
    groups: int = 0
    group: int | None = None
    sampling: float = 1.0
    secret: bool = False

    def to_config(self) -> dict[str, Scalar]:
        """Return the configuration that travels in a Flower message."""
        config: dict[str, Scalar] = {
            "step": self.step,
            "task": self.task,
            "round": self.round,
            "seed": self.seed,
            "clip": np.array(self.clips).tobytes(),
            "release": self.release,
            "measure": self.measure,
        }
        if self.group is not None:
            config |= {"users": self.users, "groups": self.groups, "group": self.group}
        if self.sampling < 1:
            config |= {"sampling": self.sampling, "secret": self.secret}
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Scalar]) -> Announcement:
        """Read the configuration of a Flower message.

        Raises:
            KeyError, TypeError, ValueError: if the message is not an announcement.
        """
        clips = config["clip"]
        if not isinstance(clips, bytes):
            raise TypeError("the clip norms of an announcement are bytes")
        group = config.get("group")
        return cls(
            int(config["step"]),
            str(config["task"]),
            int(config["round"]),
            int(config["seed"]),
            tuple(np.frombuffer(clips).tolist()),
            bool(config["release"]),
            str(config["measure"]),
            int(config.get("users", 0)),
            int(config.get("groups", 0)),
            None if group is None else int(group),
            float(config.get("sampling", 1.0)),
            bool(config.get("secret", False)),
        )
