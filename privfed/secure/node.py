"""The node's side of secure aggregation: mask sums, and reveal one secret per neighbour and step.

    keys        the server sends the terms of the run; the node answers with its signed key
    join        the server sends all signed keys; the node finds its neighbours, agrees a key with
                each, and answers with the shares of its secrets for the next step (a *bundle*)
    (a step)    the node sends its sums with noise and masks, and the bundle of the following step
    survivors   the server names the nodes whose sums arrived; the node vouches for that set
    unmask      the node reveals, per neighbour, its share of the self-mask of a survivor, or of
                the key that opens the pair masks of a lost node, if its neighbours vouch likewise

What a node enforces, whatever the server says: a step is answered once per session, and later steps
after earlier ones. A session that was left is never entered again, in no run: its masks would be
used a second time, for other sums or other nodes. Nodes without a key count as absent. One set of
survivors per step, which holds the node itself, and users enough; one of the two secrets of a
neighbour; nothing at all about a step of which it was told another set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.secure.graph import neighbours
from privfed.secure.journal import Journal
from privfed.secure.keys import (
    KEY,
    SIGNATURE,
    TAG,
    NodeKey,
    PairKeys,
    Words,
    agreed,
    agreement_message,
    derived,
    digest,
    is_signed,
    opened,
    quick,
    quick_each,
    seal,
    stream,
)
from privfed.secure.noise_shares import LEVELS, chain, components_sum
from privfed.secure.shamir import SHARE, coefficients, split
from privfed.secure.terms import MaskedSum, Terms, packed, sums_from_json, unpacked

Message = dict[str, bytes | str | int | float | bool]
SECRETS = 2 + LEVELS
"""Number of a node's secrets of a step: key of its pair masks, self-mask, seeds of components."""
SEALED = SHARE * SECRETS + TAG
"""Bytes of an encrypted share of these."""
ENTRY = SEALED + KEY
"""Bytes of a bundle per neighbour: the encrypted share, and the hidden seed of the pair mask."""
REVEALED = 2 * SHARE
"""Bytes that a node reveals per neighbour."""
WIDTH = 2.0**62
"""Largest absolute value of a sum in steps of the grid; with its noise it fits 64 bits."""


@dataclass(frozen=True)
class Session:
    """What is fixed once the keys of all nodes are known.

    Attributes:
        terms: the public frame of the run.
        me: place of this node.
        digest: digest of terms and keys.
        joined: which nodes have a key in this session; only they can take part.
        beside: places of the neighbours in ascending order.
        pairs: agreed keys per neighbour, in the same order; None if it has not joined.
    """

    terms: Terms
    me: int
    digest: bytes
    joined: NDArray[np.bool_]
    beside: NDArray[np.int64]
    pairs: list[PairKeys | None] = field(repr=False)


class SecureNode:
    """One node.

    Args:
        key: secret of the node.
        journal: what the node remembers.
        roster: digest of the roster that the node was told out of band; None believes the server,
            in simulations.
        check: refuses terms that the operator does not allow.
    """

    def __init__(
        self,
        key: NodeKey,
        journal: Journal | None = None,
        roster: bytes | None = None,
        check: Callable[[Terms], None] = lambda terms: None,
    ) -> None:
        self.key, self.journal = key, journal or Journal()
        self.roster, self.check = roster, check
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """What was agreed; after a restart, from the journal.

        Raises:
            ConfigError: nothing was.
        """
        if self._session is None:
            if not self.journal.keys:
                raise refused("the server skips the agreement of keys")
            terms = self.accepted(self.journal.terms)
            keys, nonce = bytes.fromhex(self.journal.keys), bytes.fromhex(self.journal.nonce)
            self._session = self._agree(terms, keys, nonce)
        return self._session

    def answer(self, message: Mapping[str, Any]) -> Message:
        """Answer a message of the protocol, other than a step.

        Raises:
            ConfigError: it is refused.
        """
        stages = {
            "keys": self.signed_key,
            "join": self.join,
            "survivors": self.vouch,
            "unmask": self.reveal,
        }
        stage = stages.get(str(message.get("secure")))
        if stage is None:
            raise refused(f"{str(message.get('secure'))[:40]!r} is not part of the protocol")
        return stage(message)

    # Once a run.

    def accepted(self, text: object) -> Terms:
        """Return the terms of the server, if this node accepts them.

        Raises:
            ConfigError: it does not.
        """
        terms = Terms.from_json(str(text))
        if self.roster is not None and terms.roster != self.roster:
            raise ConfigError(
                "refused: the server's roster has the hash "
                f"{terms.roster.hex()[:16]}..., this node was told {self.roster.hex()[:16]}...; "
                "nothing was sent"
            )
        terms.place(self.key.public)
        self.check(terms)
        return terms

    def signed_key(self, message: Mapping[str, Any]) -> Message:
        """Answer the terms of a run with a signed key."""
        terms = self.accepted(message.get("terms"))
        public = self.key.agreement(terms.run).public_key().public_bytes_raw()
        signature = self.key.sign(agreement_message(terms.run, terms.roster, public))
        return {"key": public + signature}

    def join(self, message: Mapping[str, Any]) -> Message:
        """Take the keys of all nodes; answer with the bundle of the step that comes."""
        keys, nonce, text = message.get("keys"), message.get("nonce"), str(message.get("terms"))
        if not isinstance(keys, bytes) or not isinstance(nonce, bytes):
            raise refused("the server sends no keys")
        if (text, keys.hex(), nonce.hex()) != (
            self.journal.terms,
            self.journal.keys,
            self.journal.nonce,
        ) or not self._session:
            self._enter(self.accepted(text), text, keys, nonce)
        return {"bundle": self.bundle(int(message.get("step", 0)))}

    def _enter(self, terms: Terms, text: str, keys: bytes, nonce: bytes) -> None:
        """Begin a session, and note that the one before was left."""
        journal, entered = self.journal, terms.session(keys, nonce).hex()
        if entered in journal.left:
            raise refused("the server comes back to keys that were given up")
        session = self._agree(terms, keys, nonce)
        if journal.session and journal.session != entered:
            journal.left.append(journal.session)
            journal.request = ""
        if terms.run != journal.run:
            journal = Journal(run=terms.run, left=journal.left, path=journal.path)
        journal.terms, journal.keys, journal.nonce = text, keys.hex(), nonce.hex()
        journal.session = entered
        journal.write()
        self.journal, self._session = journal, session

    def _agree(self, terms: Terms, keys: bytes, nonce: bytes) -> Session:
        """Verify the keys of the neighbours, and agree on a key with each."""
        each = KEY + SIGNATURE
        if len(keys) != each * len(terms.keys):
            raise refused("the server sends keys of other nodes than the roster's")
        me = terms.place(self.key.public)
        session = terms.session(keys, nonce)
        beside = neighbours(len(terms.keys), terms.degrees.neighbours, session)[me]
        mine = self.key.agreement(terms.run)
        pairs: list[PairKeys | None] = []
        joined = np.array([any(keys[at : at + KEY]) for at in range(0, len(keys), each)])
        if keys[each * me : each * me + KEY] != mine.public_key().public_bytes_raw():
            raise refused("the server sends another key for this node")
        for j in beside.tolist():
            key, signature = keys[each * j : each * j + KEY], keys[each * j + KEY : each * (j + 1)]
            signed = agreement_message(terms.run, terms.roster, key)
            if not joined[j]:
                pairs.append(None)
                continue
            if not is_signed(bytes.fromhex(terms.keys[j]), signature, signed):
                raise refused("the server sends a key that its node has not signed")
            try:
                shared = agreed(mine, key, session, (min(me, j), max(me, j)))
                pairs.append(PairKeys.of(shared, me, j))
            except ValueError as error:
                raise refused("the server sends a key that is none") from error
        return Session(terms, me, session, joined, beside, pairs)

    # Secrets of a step.

    def _secret(self, step: int, purpose: str) -> bytes:
        run = self.session.terms.run
        return derived(self.key.secret, "step", run, self.session.digest, step, purpose)

    def _pair_seeds(self, step: int) -> list[bytes]:
        """Return the seed of the mask that is shared with each neighbour; zeros with nobody."""
        return quick_each(
            (None if pair is None else pair.masks for pair in self.session.pairs), "mask", step
        )

    def bundle(self, step: int) -> bytes:
        """Return the encrypted shares of this node's secrets of a step, one entry per neighbour."""
        session, threshold = self.session, self.session.terms.degrees.threshold
        lost, seeds = self._secret(step, "lost"), chain(self._secret(step, "excess"), LEVELS)
        content = lost + self._secret(step, "self") + b"".join(seeds)
        randomness = stream(self._secret(step, "shares"), coefficients(SECRETS, threshold))
        shares = split(content, threshold, len(session.beside), randomness)
        entries = []
        hiding = pads(lost, len(session.pairs))
        for share, pair, pad, seed in zip(
            shares, session.pairs, hiding, self._pair_seeds(step), strict=True
        ):
            if pair is None:  # nobody is there to keep it, so nobody gets it
                entries.append(bytes(ENTRY))
                continue
            sealed = seal(pair.box, session.me, step, share)
            entries.append(sealed + exclusive_or(seed, pad))
        return b"".join(entries)

    # Every step.

    def masked(
        self, message: Mapping[str, Any], arrays: Sequence[Array], request: bytes
    ) -> tuple[Words, Message]:
        """Return the sums of a step with noise and masks, and the bundle of the next step.

        Args:
            message: announcement of the step.
            arrays: sums over the node's users.
            request: digest of everything that the sums depend on.

        Raises:
            ConfigError: the step is refused.
        """
        step, text = int(message.get("step", 0)), str(message.get("sums"))
        present = unpacked(message.get("present"), len(self.session.terms.keys))
        sums = sums_from_json(text)
        self._admit(step, present, text, request)
        total = self.noisy(step, sums, arrays)
        total = total + stream(self._secret(step, "self"), len(total))
        for j, seed in zip(self.session.beside.tolist(), self._pair_seeds(step), strict=True):
            if present[j]:
                mask = stream(seed, len(total))
                total = total + mask if self.session.me < j else total - mask
        return total, {"bundle": self.bundle(step + 1)}

    def _admit(self, step: int, present: NDArray[np.bool_], sums: str, request: bytes) -> None:
        """Note a step in the journal, unless it was answered before in another way."""
        session, journal = self.session, self.journal
        whole = digest("step", session.digest, step, packed(present), sums, request).hex()
        if step == journal.step and whole == journal.request:
            return
        if step < journal.step or (step == journal.step and (journal.request or journal.survivors)):
            raise refused(f"step {step} was answered before")
        if (present & ~session.joined).any():
            raise refused(f"step {step} names nodes that have not joined")
        if not present[session.me] or not session.terms.enough(present):
            raise refused(f"step {step} has too few users to hide among")
        if int(present[session.beside].sum()) < session.terms.degrees.threshold:
            raise refused(f"step {step} has too few neighbours of this node")
        journal.step, journal.request, journal.sums = step, whole, sums
        journal.present, journal.survivors = packed(present).hex(), ""
        journal.write()

    def noisy(self, step: int, sums: Sequence[MaskedSum], arrays: Sequence[Array]) -> Words:
        """Return the sums on their grids with this node's part of the noise, without masks."""
        terms, parts = self.session.terms, []
        if [each.size for each in sums] != [array.size for array in arrays]:
            raise refused(f"step {step} announces sums of other sizes")
        levels = terms.levels(sum(each.size for each in sums))
        mine = terms.users[self.session.me]
        seeds = [self._secret(step, "noise")]
        excess = len(levels.losses) - 1
        seeds += chain(self._secret(step, "excess"), excess) if excess else []
        for place, (each, array) in enumerate(zip(sums, arrays, strict=True)):
            if terms.total * each.radius / each.grid > WIDTH:
                raise refused(f"step {step} has a grid on which sums do not fit")
            on_grid = np.rint(np.nan_to_num(array.ravel()) / each.grid)
            part = np.clip(on_grid, -WIDTH, WIDTH).astype(np.int64)
            deviations = levels.components(each.s, mine)
            parts.append(part + components_sum(seeds, deviations, place, each.size))
        return np.concatenate(parts).view(np.uint64)

    def vouch(self, message: Mapping[str, Any]) -> Message:
        """Answer the names of the survivors with one tag per neighbour, over that very set."""
        session, journal = self.session, self.journal
        step = int(message.get("step", 0))
        survivors = unpacked(message.get("survivors"), len(session.terms.keys))
        if step != journal.step or not journal.request:
            raise refused(f"step {step} is not the one that was answered last")
        present = unpacked(bytes.fromhex(journal.present), len(session.terms.keys))
        if journal.survivors and journal.survivors != packed(survivors).hex():
            raise refused(f"the server names other survivors of step {step} than before")
        if not survivors[session.me] or (survivors & ~present).any():
            raise refused(f"the survivors of step {step} are not those who took part")
        if not session.terms.enough(survivors):
            raise refused(f"step {step} has too few survivors")
        if int(survivors[session.beside].sum()) < session.terms.degrees.threshold:
            raise refused(f"step {step} has too few survivors next to this node")
        journal.survivors = packed(survivors).hex()
        journal.write()
        keys = (None if pair is None else pair.said for pair in session.pairs)
        return {"tags": b"".join(quick_each(keys, "survivors", self._view()))}

    def _view(self) -> bytes:
        """Return the digest of everything that nodes have to agree on before they reveal."""
        journal = self.journal
        return digest(
            "view", self.session.digest, journal.step, journal.present, journal.survivors,
            hashlib.sha256(journal.sums.encode()).digest(),
        )  # fmt: skip

    def reveal(self, message: Mapping[str, Any]) -> Message:
        """Answer with one share per neighbour: of a survivor's self-mask, or of a lost node's key.

        For a survivor it is also the share of the seed of the first component of the noise that is
        not needed.
        """
        session, journal = self.session, self.journal
        step, terms = int(message.get("step", 0)), session.terms
        tags, sealed = message.get("tags"), message.get("shares")
        k = len(session.beside)
        if step != journal.step or not journal.survivors:
            raise refused(f"step {step} has no survivors that this node has vouched for")
        if not isinstance(tags, bytes) or len(tags) != KEY * k:
            raise refused("the server sends no tags of the neighbours")
        if not isinstance(sealed, bytes) or len(sealed) != SEALED * k:
            raise refused("the server sends no shares of the neighbours")
        survivors = unpacked(bytes.fromhex(journal.survivors), len(terms.keys))
        present = unpacked(bytes.fromhex(journal.present), len(terms.keys))
        keys = (None if pair is None else pair.heard for pair in session.pairs)
        expected = quick_each(keys, "survivors", self._view())
        vouched = sum(
            compare_digest(tag, tags[KEY * place : KEY * (place + 1)])
            for place, (j, tag) in enumerate(zip(session.beside.tolist(), expected, strict=True))
            if survivors[j]
        )
        if vouched < terms.degrees.threshold:
            raise refused(f"the neighbours were told other survivors of step {step}")
        levels = terms.levels(sum(each.size for each in sums_from_json(journal.sums)))
        level = levels.level(terms.lost(survivors))
        if step not in journal.unmasked:
            journal.unmasked.append(step)
            journal.write()
        shares = []
        for place, (j, pair) in enumerate(zip(session.beside.tolist(), session.pairs, strict=True)):
            text = sealed[SEALED * place : SEALED * (place + 1)]
            content = None
            if present[j] and pair is not None:
                content = opened(pair.box, j, step, text)
            shares.append(part_of(content, bool(survivors[j]), level, len(levels.losses)))
        return {"shares": b"".join(shares)}


def part_of(content: bytes | None, survived: bool, level: int, count: int) -> bytes:
    """Return what is revealed of a share of a node's secrets: of one of the two, never of both.

    Args:
        content: decrypted share; None if there is none.
        survived: whether the node survived.
        level: level of the losses of the step.
        count: number of components of noise.
    """
    if content is None:
        return bytes(REVEALED)
    if not survived:
        return content[:SHARE] + bytes(SHARE)
    start = SHARE * (2 + level)
    excess = content[start : start + SHARE] if level + 1 < count else bytes(SHARE)
    return content[SHARE : 2 * SHARE] + excess


def pads(lost: bytes, count: int) -> list[bytes]:
    """Return what hides the seeds of a node's pair masks, by neighbour.

    Args:
        lost: the secret that is revealed if the node is lost.
        count: number of neighbours.
    """
    whole = stream(quick(lost, "pads"), count * KEY // 8).tobytes()
    return [whole[KEY * i : KEY * (i + 1)] for i in range(count)]


def exclusive_or(a: bytes, b: bytes) -> bytes:
    """Return the bitwise exclusive or of two strings of the same length."""
    return (int.from_bytes(a, "little") ^ int.from_bytes(b, "little")).to_bytes(len(a), "little")


def refused(reason: str) -> ConfigError:
    """Return the error with which a node refuses."""
    return ConfigError(f"refused: {reason}; nothing was sent for it")
