"""Keys of nodes: Ed25519 identities, X25519 agreement, HKDF, ChaCha20; all from `cryptography`."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError

Words = NDArray[np.uint64]
KEY = 32
"""Bytes of every key and seed."""
SIGNATURE = 64
TAG = 16
"""Bytes that authenticated encryption adds."""
STREAM_NONCE = bytes(12)
"""Every stream has a key of its own."""


def derived(secret: bytes, *purpose: str | int | bytes) -> bytes:
    """Return a key that follows from a secret and a purpose, by HKDF with SHA-256.

    Args:
        secret: uniformly random bytes, or an agreed secret.
        purpose: parts that name the purpose; no two lists of parts give the same key.
    """
    return HKDF(hashes.SHA256(), KEY, None, encoded(*purpose)).derive(secret)


def quick(key: bytes, *purpose: str | int | bytes) -> bytes:
    """Return a key that follows from a uniformly random key and a purpose, by HMAC-SHA256."""
    return hmac.digest(key, encoded(*purpose), "sha256")


def quick_each(keys: Iterable[bytes | None], *purpose: str | int | bytes) -> list[bytes]:
    """Return `quick` of many keys and one purpose; zeros where there is no key."""
    told = encoded(*purpose)
    return [bytes(KEY) if key is None else hmac.digest(key, told, "sha256") for key in keys]


def encoded(*parts: str | int | bytes) -> bytes:
    """Return the parts with their kinds and lengths: different lists give different bytes."""
    pieces = []
    for part in parts:
        kind = b"b" if isinstance(part, bytes) else b"i" if isinstance(part, int) else b"s"
        data = part if isinstance(part, bytes) else str(part).encode()
        pieces.append(kind + len(data).to_bytes(4, "little") + data)
    return b"".join(pieces)


def digest(*parts: str | int | bytes) -> bytes:
    """Return SHA-256 of the encoded parts."""
    return hashlib.sha256(encoded(*parts)).digest()


def stream(seed: bytes, count: int) -> Words:
    """Return the first `count` words of 64 bits of the ChaCha20 stream of a 256-bit seed.

    It is what ChaCha20-Poly1305 makes of zeros, which takes one call.
    """
    if len(seed) != KEY:
        raise ValueError(f"a seed has {KEY} bytes, not {len(seed)}")
    text = ChaCha20Poly1305(seed).encrypt(STREAM_NONCE, bytes(8 * count), None)
    return np.frombuffer(text, dtype="<u8", count=count)


@dataclass(frozen=True)
class NodeKey:
    """Long-lived secret of a node, made and kept by the node.

    Everything secret of a run follows from it, the number of the run and the step, so that a node
    that was restarted goes on with the same keys.

    Attributes:
        secret: 32 random bytes.
    """

    secret: bytes = field(repr=False)

    @classmethod
    def fresh(cls) -> NodeKey:
        """Make a new key."""
        return cls(secrets.token_bytes(KEY))

    @classmethod
    def simulated(cls, *known: str | int) -> NodeKey:
        """Make the key of a simulated node, which anybody who knows the arguments can repeat."""
        return cls(digest("simulated node", *known))

    @classmethod
    def read(cls, path: Path) -> NodeKey:
        """Read a key as written by `save`.

        Raises:
            ConfigError: the file cannot be read, or holds no key.
        """
        try:
            secret = bytes.fromhex(path.read_text(encoding="ascii").strip())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise ConfigError(f"{path}: holds no key of a node") from error
        if len(secret) != KEY:
            raise ConfigError(f"{path}: holds no key of a node")
        return cls(secret)

    def save(self, path: Path) -> None:
        """Write the key, readable by its owner only."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, f"{self.secret.hex()}\n".encode(), mode=0o600)

    @cached_property
    def _signing(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(derived(self.secret, "signing"))

    @cached_property
    def public(self) -> bytes:
        """Public key by which the roster knows the node."""
        return self._signing.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return a signature of the message."""
        return self._signing.sign(message)

    def agreement(self, run: str) -> X25519PrivateKey:
        """Return the key of a run with which pair keys are agreed."""
        return X25519PrivateKey.from_private_bytes(derived(self.secret, "agreement", run))


def agreement_message(run: str, roster: bytes, key: bytes) -> bytes:
    """Return what a node signs: its key for the run, in a federation of this roster."""
    return encoded("privfed agreement", run, roster, key)


@lru_cache(maxsize=65536)
def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether the holder of a public key has signed a message."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class PairKeys:
    """What two nodes have in common in a session.

    Attributes:
        masks: key from which the seeds of their masks follow.
        said: key by which this node vouches for what it was told.
        heard: the same of the other node.
        box: encrypts shares of secrets.
    """

    masks: bytes = field(repr=False)
    said: bytes = field(repr=False)
    heard: bytes = field(repr=False)
    box: ChaCha20Poly1305 = field(repr=False)

    @classmethod
    def of(cls, key: bytes, me: int, other: int) -> PairKeys:
        """Derive all keys of a pair from the one that was agreed.

        Args:
            key: the agreed key.
            me: place of this node.
            other: place of the other node.
        """
        said, heard = quick(key, "tags", me), quick(key, "tags", other)
        return cls(quick(key, "masks"), said, heard, ChaCha20Poly1305(quick(key, "shares")))


def agreed(mine: X25519PrivateKey, theirs: bytes, session: bytes, pair: tuple[int, int]) -> bytes:
    """Return the key of a pair of nodes.

    Args:
        mine: own key of the run.
        theirs: public key of the other node.
        session: digest of everything that was agreed before.
        pair: places of the two nodes, the smaller one first.

    Raises:
        ValueError: the other key is no key.
    """
    shared = mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    return derived(shared, "pair", session, *pair)


def seal(box: ChaCha20Poly1305, sender: int, step: int, content: bytes) -> bytes:
    """Encrypt what one node of a pair tells the other in a step.

    Args:
        box: cipher of the pair.
        sender: place of the sender; a pair's two directions never share a nonce.
        step: number of the step; a message of another step cannot be opened in its stead.
        content: what is told; a function of everything else, so that a repetition is the same.
    """
    return box.encrypt(_nonce(sender, step), content, None)


def opened(box: ChaCha20Poly1305, sender: int, step: int, sealed: bytes) -> bytes | None:
    """Decrypt what `seal` made; None if it was not made by that sender for that step."""
    try:
        return box.decrypt(_nonce(sender, step), sealed, None)
    except InvalidTag:
        return None


def _nonce(sender: int, step: int) -> bytes:
    return step.to_bytes(8, "little") + sender.to_bytes(4, "little")
