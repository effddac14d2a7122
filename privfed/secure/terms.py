"""The public frame of a run under secure aggregation: every node is told it, and checks it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.errors import ConfigError
from privfed.secure.graph import Degrees, degrees
from privfed.secure.keys import KEY, digest
from privfed.secure.noise_shares import FEW_LEVELS, LEVELS, LONG, Levels

Flags = NDArray[np.bool_]
"""One flag per node, in the order of the terms."""


@dataclass(frozen=True)
class Terms:
    """Who takes part, and how many of them may be lost or collude.

    Attributes:
        run: number of the run.
        keys: public key of every node, hexadecimal, in the order of the roster.
        users: number of users of every node.
        honest: fraction of the users that has to answer in every step.
        colluding: fraction of the users whose nodes may collude with the server.

    Raises:
        ConfigError: the numbers leave no noise, or there are too few nodes.
    """

    run: str
    keys: tuple[str, ...]
    users: tuple[int, ...]
    honest: float
    colluding: float

    def __post_init__(self) -> None:
        if not 0 < self.honest <= 1:
            raise ConfigError.of("privacy.honest", self.honest, "must be above 0, at most 1")
        if not 0 <= self.colluding < self.honest:
            allowed = "must be at least 0 and below privacy.honest: nobody would add noise"
            raise ConfigError.of("privacy.colluding", self.colluding, allowed)
        if self.total - self.most_colluding - self.most_lost < 1:
            allowed = f"leaves no user of {self.total} to add noise; nothing was sent"
            raise ConfigError.of("privacy.honest", self.honest, allowed)
        if len(set(self.keys)) < len(self.keys):
            raise ConfigError("roster: two nodes have the same public key")

    @cached_property
    def total(self) -> int:
        """Number of registered users."""
        return sum(self.users)

    @cached_property
    def most_lost(self) -> int:
        """Largest number of users that may be lost in a step."""
        return int((1 - self.honest) * self.total * (1 + 1e-12))

    @cached_property
    def most_colluding(self) -> int:
        """Largest number of users behind colluding nodes."""
        return int(self.colluding * self.total * (1 + 1e-12))

    def nodes_with(self, users: int) -> int:
        """Return the largest number of nodes that have at most so many users together."""
        return int(np.searchsorted(np.cumsum(sorted(self.users)), users, side="right"))

    @cached_property
    def degrees(self) -> Degrees:
        """Numbers of neighbours and shares."""
        lost, colluding = self.nodes_with(self.most_lost), self.nodes_with(self.most_colluding)
        return degrees(len(self.keys), lost, colluding)

    def levels(self, size: int) -> Levels:
        """Return the levels of losses of a step that releases `size` numbers."""
        count = FEW_LEVELS if size > LONG else LEVELS
        return Levels(self.total, self.most_colluding, self.most_lost, count)

    @cached_property
    def roster(self) -> bytes:
        """Digest of who is registered, which nodes are told beforehand by somebody they trust."""
        return roster_digest(self.keys, self.users)

    @cached_property
    def digest(self) -> bytes:
        """Digest of everything here."""
        return digest("terms", self.to_json())

    def session(self, keys: bytes, nonce: bytes) -> bytes:
        """Return the digest of a session: of everything that was agreed before its first step.

        Args:
            keys: signed keys of all nodes.
            nonce: what the server makes a new session different by.
        """
        return digest("session", self.digest, keys, nonce)

    def place(self, key: bytes) -> int:
        """Return the place of the node with a public key.

        Raises:
            ConfigError: there is none.
        """
        try:
            return self.keys.index(key.hex())
        except ValueError:
            raise ConfigError(
                "refused: the server's roster does not hold the public key of this node; "
                "nothing was sent"
            ) from None

    def enough(self, flags: Flags) -> bool:
        """Return whether these nodes have as many users as every step needs."""
        return self.lost(flags) <= self.most_lost

    def lost(self, flags: Flags) -> int:
        """Return the number of users behind all other nodes."""
        return self.total - int(np.dot(flags, self.users))

    def to_json(self) -> str:
        """Return the text that travels to nodes."""
        told = {
            "colluding": self.colluding,
            "honest": self.honest,
            "keys": self.keys,
            "run": self.run,
            "users": self.users,
        }
        return json.dumps(told)

    @classmethod
    def from_json(cls, text: str) -> Terms:
        """Read what the server sent.

        Raises:
            ConfigError: it is not what it should be.
        """
        try:
            found = json.loads(text)
            keys = tuple(bytes.fromhex(key).hex() for key in found["keys"])
            users = tuple(found["users"])
            fine = len(keys) == len(users) and all(len(key) == 2 * KEY for key in keys)
            if not fine or not all(type(each) is int and each > 0 for each in users):
                raise ValueError("keys and numbers of users")
            return cls(
                str(found["run"]), keys, users, float(found["honest"]), float(found["colluding"])
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"the server's terms cannot be read ({str(error)[:80]})") from error


def roster_digest(keys: Sequence[str], users: Sequence[int]) -> bytes:
    """Return the digest of registered public keys and numbers of users, in order."""
    listed = [[key, count] for key, count in zip(keys, users, strict=True)]
    return digest("roster", json.dumps(listed))


@dataclass(frozen=True)
class MaskedSum:
    """One sum of a step, as nodes send it.

    Attributes:
        size: number of entries.
        grid: step of the grid, a power of 2.
        s: standard deviation of the noise in steps of the grid; 0 means none.
        kind: kind of the bound on one user's part.
        radius: radius of a ball that holds every user's part.
    """

    size: int
    grid: float
    s: int
    kind: str
    radius: float

    @property
    def std(self) -> float:
        """Standard deviation of the noise."""
        return self.grid * self.s


def sums_to_json(sums: Sequence[MaskedSum]) -> str:
    """Return the text in which a step's sums are announced."""
    return json.dumps([asdict(each) for each in sums])


def sums_from_json(text: str) -> list[MaskedSum]:
    """Read what the server announced.

    Raises:
        ConfigError: it is not what it should be.
    """
    try:
        found: list[Mapping[str, Any]] = json.loads(text)
        sums = [
            MaskedSum(
                int(each["size"]),
                float(each["grid"]),
                int(each["s"]),
                str(each["kind"]),
                float(each["radius"]),
            )
            for each in found
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the server's sums cannot be read ({str(error)[:80]})") from error
    if not sums or any(not (s.size > 0 and s.grid > 0 and s.s >= 0) for s in sums):
        raise ConfigError("the server announces sums that cannot be")
    return sums


def packed(flags: Flags) -> bytes:
    """Return flags as bits."""
    return np.packbits(flags).tobytes()


def unpacked(bits: object, count: int) -> Flags:
    """Return flags from bits.

    Raises:
        ConfigError: there are not as many.
    """
    if not isinstance(bits, bytes) or len(bits) != (count + 7) // 8:
        raise ConfigError("the server names nodes that do not exist")
    return np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=count).astype(bool)
