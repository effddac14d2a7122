"""Roster of a federation: its nodes, the users behind each, and the token of each node."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from privfed.data.cohort import spread_evenly
from privfed.data.user_identity import Identities, identities_of
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError, nearest
from privfed.privacy.account_place import set_of
from privfed.secure.terms import roster_digest

TOKEN_BYTES = 32
PUBLIC = re.compile("([0-9a-f]{64})?")
NAME = re.compile(r"[A-Za-z0-9_@+][A-Za-z0-9_@+.-]{0,99}")


@dataclass(frozen=True)
class Member:
    """One registered node.

    Attributes:
        name: unique name of the node.
        users: number of users behind the node.
        token: secret with which the node proves its identity.
        simulated: whether the users are simulated.
        key: public key that the node made, hexadecimal; empty if it made none.

    Raises:
        ConfigError: if a value is not allowed.
    """

    name: str
    users: int
    token: str
    simulated: bool = False
    key: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ConfigError(
                f"roster: {self.name!r} cannot be a node's name; "
                "use up to 100 letters, digits and . _ - @ +"
            )
        if isinstance(self.users, bool) or not isinstance(self.users, int) or self.users < 1:
            raise ConfigError(
                f"roster: {self.name} must stand for at least one user, not {self.users!r}"
            )
        if not isinstance(self.token, str) or len(self.token) < TOKEN_BYTES:
            raise ConfigError(f"roster: the token of {self.name} is missing or too short")
        if not isinstance(self.key, str) or not PUBLIC.fullmatch(self.key):
            raise ConfigError(
                f"roster: the key of {self.name} must be what privfed client --enroll printed"
            )


class Roster:
    """The registered population.

    Users are numbered in the order of the members. The numbers are known in advance and never
    taken from a message.

    Raises:
        ConfigError: if a name is registered twice, or nobody is.
    """

    def __init__(self, members: Iterable[Member]) -> None:
        listed = list(members)
        self.members = {member.name: member for member in listed}
        if len(self.members) < len(listed):
            raise ConfigError("roster: two nodes have the same name")
        if not listed:
            raise ConfigError("roster: nobody is registered")
        self.path: Path | None = None
        """File that the roster was read from."""
        self._stamp = 0

    @classmethod
    def of_simulated(cls, users: int, nodes: int) -> Roster:
        """Spread simulated users evenly over nodes named 0, 1, ..."""
        return cls(
            Member(str(i), len(mine), new_token(), simulated=True)
            for i, mine in enumerate(spread_evenly(users, nodes))
        )

    @classmethod
    def read(cls, path: Path) -> Roster:
        """Read a JSON file as written by `save`.

        Raises:
            ConfigError: if the file cannot be read or is no roster.
        """
        try:
            members = json.loads(path.read_text(encoding="utf-8"))["nodes"]
            roster = cls(Member(**member) for member in members)
            roster.path, roster._stamp = path, path.stat().st_mtime_ns
            return roster
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}: is not a roster ({error}); make one with privfed roster"
            ) from error

    def refresh_tokens(self) -> list[str]:
        """Take over tokens that have changed in the file; return the names of their nodes.

        Who is registered does not change during a run: the number of users is public and fixed.
        """
        try:
            stamp = 0 if self.path is None else self.path.stat().st_mtime_ns
            if self.path is None or stamp == self._stamp:
                return []
            new = Roster.read(self.path).members
        except (OSError, ConfigError):
            return []  # gone, or being written; the tokens known so far hold
        self._stamp = stamp
        changed = [
            name
            for name, member in self.members.items()
            if name in new and new[name].token != member.token
        ]
        for name in changed:
            self.members[name] = replace(self.members[name], token=new[name].token)
        return changed

    def with_new_tokens(self, names: Iterable[str]) -> Roster:
        """Return the same roster with fresh tokens for some nodes.

        Raises:
            ConfigError: if a name is not registered.
        """
        chosen = set(names)
        for name in sorted(chosen):
            if name not in self.members:
                raise ConfigError(f"{name}: is not registered; {nearest(name, self.members)}")
        return Roster(
            replace(member, token=new_token()) if member.name in chosen else member
            for member in self
        )

    def save(self, path: Path) -> None:
        """Write the roster, readable by its owner only: it holds the tokens of all nodes."""
        content: dict[str, Any] = {"nodes": [vars(member) for member in self]}
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode(), mode=0o600)

    def public(self) -> list[dict[str, Any]]:
        """Return the members in order, without their tokens."""
        return [
            {key: value for key, value in vars(member).items() if key != "token"} for member in self
        ]

    def digest(self) -> bytes | None:
        """Return the hash of public keys and numbers of users; None unless all have a key."""
        if not all(member.key for member in self):
            return None
        return roster_digest([each.key for each in self], [each.users for each in self])

    def identity(self) -> list[str]:
        """Return facts that each identify these users; see `DataSource.identity`."""
        members = f"members: {set_of(self.members)}"
        return [members, *([] if self.path is None else [f"roster {self.path.resolve()}"])]

    def write_tokens(self, folder: Path, names: Iterable[str] | None = None) -> None:
        """Write one file per node with its token, to be given to that node.

        Args:
            folder: where the files go.
            names: nodes whose files are written; all unless given.
        """
        chosen = set(self.members if names is None else names)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for member in (each for each in self if each.name in chosen):
            write_atomically(
                folder / f"{member.name}.token", f"{member.token}\n".encode(), mode=0o600
            )

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def nodes(self) -> dict[str, range]:
        """Public numbers of the users behind each node."""
        ends = list(accumulate(member.users for member in self))
        return {
            member.name: range(end - member.users, end)
            for member, end in zip(self, ends, strict=True)
        }

    def identities(self, named: bool) -> dict[str, Identities]:
        """Return the identities of the users of all nodes for which they are known here.

        A real user who is alone on its node has the node's name. Names of several real users are
        known to their node only.

        Args:
            named: whether data name their users, also where these are simulated.
        """
        known = {}
        for member in self:
            if member.simulated and not named:
                known[member.name] = np.asarray(self.nodes[member.name], dtype=np.uint64)
            elif not member.simulated and member.users == 1:
                known[member.name] = identities_of([member.name])
        return known

    @property
    def users(self) -> int:
        """Number of registered users."""
        return sum(member.users for member in self)

    @property
    def simulated(self) -> bool:
        """Whether the users of all nodes are simulated."""
        return all(member.simulated for member in self)


def new_token() -> str:
    """Return a fresh secret."""
    return secrets.token_urlsafe(TOKEN_BYTES)
