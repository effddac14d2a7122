"""Who may take part: the nodes, the users behind each, and the secret with which each node proves who it is."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from privfed.data.cohort import spread_evenly
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError

TOKEN_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9_@+][A-Za-z0-9_@+.-]{0,99}")


@dataclass(frozen=True)
class Member:
    """One node: its name, how many users stand behind it, its secret, and whether its users are simulated."""

    name: str
    users: int
    token: str
    simulated: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ConfigError(
                f"roster: {self.name!r} cannot be a node's name; use up to 100 letters, digits and . _ - @ +"
            )
        if isinstance(self.users, bool) or not isinstance(self.users, int) or self.users < 1:
            raise ConfigError(
                f"roster: {self.name} must stand for at least one user, not {self.users!r}"
            )
        if not isinstance(self.token, str) or len(self.token) < TOKEN_BYTES:
            raise ConfigError(f"roster: the token of {self.name} is missing or too short")


class Roster:
    """The registered population. Users are numbered in the order of the members: known in advance, never from a message."""

    def __init__(self, members: Iterable[Member]) -> None:
        listed = list(members)
        self.members = {member.name: member for member in listed}
        if len(self.members) < len(listed):
            raise ConfigError("roster: two nodes have the same name")
        if not listed:
            raise ConfigError("roster: nobody is registered")

    @classmethod
    def of_simulated(cls, users: int, nodes: int) -> Roster:
        """Simulated users, spread evenly over nodes named 0, 1, ..."""
        return cls(
            Member(str(i), len(mine), new_token(), simulated=True)
            for i, mine in enumerate(spread_evenly(users, nodes))
        )

    @classmethod
    def read(cls, path: Path) -> Roster:
        """The roster in a JSON file as written by `save`."""
        try:
            members = json.loads(path.read_text(encoding="utf-8"))["nodes"]
            return cls(Member(**member) for member in members)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}: is not a roster ({error}); make one with privfed roster"
            ) from error

    def save(self, path: Path) -> None:
        """Keep it, readable by its owner only: it holds everybody's tokens."""
        content: dict[str, Any] = {"nodes": [vars(member) for member in self]}
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode(), mode=0o600)

    def public(self) -> list[dict[str, Any]]:
        """Names, users and kinds in order, without the tokens."""
        return [
            {key: value for key, value in vars(member).items() if key != "token"} for member in self
        ]

    def write_tokens(self, folder: Path) -> None:
        """A file with each node's token, to be given to that node."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for member in self:
            write_atomically(
                folder / f"{member.name}.token", f"{member.token}\n".encode(), mode=0o600
            )

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def nodes(self) -> dict[str, range]:
        """The numbers of the users behind each node."""
        ends = list(accumulate(member.users for member in self))
        return {
            member.name: range(end - member.users, end)
            for member, end in zip(self, ends, strict=True)
        }

    @property
    def users(self) -> int:
        """How many users are registered."""
        return sum(member.users for member in self)

    @property
    def simulated(self) -> bool:
        """Whether nobody is real."""
        return all(member.simulated for member in self)


def new_token() -> str:
    """A fresh secret."""
    return secrets.token_urlsafe(TOKEN_BYTES)
