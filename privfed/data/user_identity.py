"""Identity of a user: the 64-bit number that decides all randomness about the user.

It never depends on other users. Replacing, renaming or moving a person therefore changes that
person's part of a sum and nobody else's. Simulated users are registered by number, which is their
identity. Real users are registered by name, and their identity is a hash of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Identities = NDArray[np.uint64]


def identities_of(names: Iterable[str]) -> Identities:
    """Return the identities (n,) of users who are registered by name.

    Args:
        names: the users' own names, the same on whichever node and in whichever table they are.
    """
    start = hashlib.sha256(b"privfed user\0")

    def digest(name: str) -> bytes:
        hashed = start.copy()
        hashed.update(name.encode("utf-8", "surrogatepass"))
        return hashed.digest()[:8]

    return np.frombuffer(b"".join(map(digest, names)), dtype="<u8").astype(np.uint64)
