"""What the server tells nodes at the beginning of a step."""

from __future__ import annotations

import json
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
        groups: number of disjoint groups; 0 without groups.
        group: number of the group that takes part; None means everybody.
        sampling: probability with which each user takes part, by its own coin.
        secret: whether coins come from the operating system rather than from the seed.
        shapes: shape of each sum where users decide by themselves whether they take part: a node
            none of whose users does answers with zeros. Empty where everybody takes part.
    """

    step: int
    task: str
    round: int
    seed: int
    clips: tuple[float, ...]
    release: bool
    measure: str = ""
    groups: int = 0
    group: int | None = None
    sampling: float = 1.0
    secret: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()

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
            config |= {"groups": self.groups, "group": self.group}
        if self.sampling < 1:
            config |= {"sampling": self.sampling, "secret": self.secret}
        if self.shapes:
            config["shapes"] = json.dumps(self.shapes)
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
            int(config.get("groups", 0)),
            None if group is None else int(group),
            float(config.get("sampling", 1.0)),
            bool(config.get("secret", False)),
            tuple(tuple(map(int, shape)) for shape in json.loads(str(config.get("shapes", "[]")))),
        )
