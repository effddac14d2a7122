"""Identity of a node: its registered name, and the proof that it holds the token of that name."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

PROTOCOL = 2
"""Version of what server and nodes say to each other; it must be the same on both sides."""


def compatible(theirs: object, ours: str) -> bool:
    """Return whether a version of privfed fits another: they may differ in the patch level."""
    return isinstance(theirs, str) and theirs.split(".")[:2] == ours.split(".")[:2]


@dataclass(frozen=True)
class Identity:
    """Name of a node and the secret token that proves it."""

    name: str
    token: str = field(repr=False)

    def prove(self, challenge: bytes) -> bytes:
        """Answer a challenge of the server. See :func:`prove`."""
        return prove(self.token, self.name, challenge)

    @property
    def ticket(self) -> bytes | None:
        """Name and ticket for the metadata of a call; None without a token or a usual name."""
        if not self.token or not self.name.isascii():
            return None
        return self.name.encode() + b"\0" + ticket_of(self.token, self.name)


def prove(token: str, node: str, challenge: bytes) -> bytes:
    """Return the answer to a challenge that only the holder of the token can give.

    Args:
        token: secret of the node, as registered in the roster.
        node: name of the node.
        challenge: fresh random bytes, chosen by the server.

    Returns:
        HMAC-SHA256 of the name and the challenge under the token.
    """
    message = b"privfed node\0" + node.encode() + b"\0" + challenge
    return hmac.new(token.encode(), message, hashlib.sha256).digest()


def ticket_of(token: str, node: str) -> bytes:
    """Return what a node shows to get one of its own places at the server; it proves nothing else.

    Args:
        token: secret of the node, as registered in the roster.
        node: name of the node.
    """
    message = b"privfed place\0" + node.encode()
    return hmac.new(token.encode(), message, hashlib.sha256).digest()
