"""The server's side of secure aggregation: collect masked sums, and unmask their total once.

Nothing here is secret: the server sees encrypted shares, masked sums, and after a release is in
the ledger one secret per node, which takes masks off the total and off nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.errors import PrivfedError
from privfed.privacy.exact_sampling import Whole
from privfed.secure.graph import mirrored, neighbours
from privfed.secure.keys import KEY, SIGNATURE, Words, stream
from privfed.secure.node import ENTRY, REVEALED, SEALED, Message, exclusive_or, pads
from privfed.secure.noise_shares import chain, components_sum
from privfed.secure.shamir import combine
from privfed.secure.terms import Flags, MaskedSum, Terms, packed, sums_to_json

Exchange = Callable[[Mapping[int, Message]], Mapping[int, Mapping[str, object]]]
"""(messages by place) -> answers by place; a node that does not answer is left out."""


@dataclass
class StepState:
    """A step between its announcement and its end.

    Attributes:
        number: number of the step.
        sums: what is released.
        present: nodes that take part.
        survivors: nodes whose masked sums arrived.
        total: sum of all masked sums.
        bundles: encrypted shares of the nodes that take part, for this step.
    """

    number: int
    sums: list[MaskedSum]
    present: Flags
    survivors: Flags
    total: Words
    bundles: dict[int, bytes]


class SecureAggregator:
    """The server of one run.

    Args:
        terms: public frame of the run.
        exchange: sends messages to nodes, and returns their answers.
        nonce: different in every process of a server, since nodes never come back to a session
            that they have left; empty where noise may be repeated.
    """

    def __init__(self, terms: Terms, exchange: Exchange, nonce: bytes = b"") -> None:
        self.terms, self.exchange, self.nonce = terms, exchange, nonce
        self.degrees = terms.degrees
        self.keys = b""
        """Signed keys of all nodes; empty before they were agreed."""
        self.beside: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        """Neighbours of every node, (nodes, k)."""
        self.mirror = self.beside
        """Place of a node among the neighbours of each of its neighbours, (nodes, k)."""
        self.bundles: dict[int, tuple[int, bytes]] = {}
        """Per node the step of its last bundle, and the bundle."""
        self.step: StepState | None = None

    # Once a run.

    def agree(self, places: Sequence[int], step: int) -> None:
        """Have nodes exchange keys, and shares of their secrets for the first step.

        Args:
            places: nodes that are connected.
            step: number of the step that comes.
        """
        ask: Message = {"secure": "keys", "terms": self.terms.to_json()}
        answers = self.exchange({place: ask for place in places})
        each, keys = KEY + SIGNATURE, []
        for place in range(len(self.terms.keys)):
            key = answers.get(place, {}).get("key")
            keys.append(key if isinstance(key, bytes) and len(key) == each else bytes(each))
        self.keys, self.bundles = b"".join(keys), {}
        session = self.terms.session(self.keys, self.nonce)
        self.beside = neighbours(len(keys), self.degrees.neighbours, session)
        self.mirror = mirrored(self.beside)
        self.join([place for place in places if any(keys[place])], step)

    def join(self, places: Sequence[int], step: int) -> None:
        """Ask nodes that have no bundle for a step for one: at the start, or when they are back."""
        missing = [place for place in places if self.bundles.get(place, (0, b""))[0] != step]
        if missing:
            ask: Message = {
                "secure": "join",
                "terms": self.terms.to_json(),
                "keys": self.keys,
                "nonce": self.nonce,
                "step": step,
            }
            for place, answer in self.exchange({place: ask for place in missing}).items():
                self._keep_bundle(place, step, answer.get("bundle"))

    def _keep_bundle(self, place: int, step: int, bundle: object) -> None:
        if isinstance(bundle, bytes) and len(bundle) == ENTRY * self.degrees.neighbours:
            self.bundles[place] = (step, bundle)

    # Every step.

    def announce(
        self, step: int, sums: Sequence[MaskedSum], places: Sequence[int]
    ) -> dict[int, Message]:
        """Begin a step; return what each node that takes part is told.

        Args:
            step: number of the step.
            sums: what is released.
            places: nodes that are connected.

        Raises:
            PrivfedError: too few users are there.
        """
        self.join(places, step)
        known = self.bundles
        mine = {p: known[p][1] for p in places if p in known and known[p][0] == step}
        present = np.zeros(len(self.terms.keys), dtype=bool)
        present[list(mine)] = True
        self._check(present, step, "are connected")
        self.step = StepState(
            step,
            list(sums),
            present,
            np.zeros_like(present),
            np.zeros(sum(each.size for each in sums), dtype=np.uint64),
            mine,
        )
        told: Message = {"present": packed(present), "sums": sums_to_json(sums)}
        return {place: told for place in mine}

    def _check(self, flags: Flags, step: int, did: str) -> None:
        """Raise unless these nodes are enough for a step."""
        terms, beside = self.terms, self.beside
        lost, most = terms.lost(flags), terms.most_lost
        if lost > most:
            raise PrivfedError(
                f"only {terms.total - lost} of {terms.total} users {did} in step {step}, "
                f"privacy.honest needs {terms.total - most}; it was not released, and nothing was "
                "unmasked"
            )
        fewest = int(flags[beside[flags]].sum(axis=1).min())
        if fewest < self.degrees.threshold:
            raise PrivfedError(
                f"a node has only {fewest} neighbours left in step {step}, "
                f"{self.degrees.threshold} are needed; it was not released, and nothing was "
                "unmasked"
            )

    def take(self, place: int, masked: Words, bundle: object) -> bool:
        """Add the masked sums of a node; return whether they were taken.

        Args:
            place: place of the node.
            masked: its sums with noise and masks.
            bundle: its shares for the next step.
        """
        step = self._current()
        if not step.present[place] or step.survivors[place] or len(masked) != len(step.total):
            return False
        step.total = step.total + masked
        step.survivors[place] = True
        self._keep_bundle(place, step.number + 1, bundle)
        return True

    def close(self) -> int:
        """End the time for masked sums; return the number of users that are missing.

        Raises:
            PrivfedError: too few users have answered. Nothing can be unmasked.
        """
        step = self._current()
        self._check(step.survivors, step.number, "answered")
        return self.terms.lost(step.survivors)

    def unmask(self) -> list[Whole]:
        """Return the noisy total of each sum, in steps of its grid. The ledger has it already.

        Raises:
            PrivfedError: too few nodes answered. Nothing can be unmasked.
        """
        step = self._current()
        shares = self._revealed(step)
        level = self.terms.levels(len(step.total)).level(self.terms.lost(step.survivors))
        total, seeds = step.total, {}
        for place in np.flatnonzero(step.present).tolist():
            first, second = self._combined(place, shares[place])
            if step.survivors[place]:
                total = total - stream(first, len(total))
                seeds[place] = second
            else:
                total = total - self._pair_masks(step, place, first)
        total = total - self._excess(step, level, seeds)
        self.step = None
        ends = np.cumsum([each.size for each in step.sums])[:-1]
        return [part.view(np.int64) for part in np.split(total, ends)]

    def _current(self) -> StepState:
        if self.step is None:
            raise PrivfedError("no step is under way")
        return self.step

    def _revealed(self, step: StepState) -> dict[int, dict[int, bytes]]:
        """Have survivors vouch and reveal; return shares by owner and by place of the holder."""
        survivors = np.flatnonzero(step.survivors).tolist()
        ask: Message = {
            "secure": "survivors",
            "step": step.number,
            "survivors": packed(step.survivors),
        }
        k, tags = self.degrees.neighbours, {}
        for place, answer in self.exchange({place: ask for place in survivors}).items():
            found = answer.get("tags")
            if isinstance(found, bytes) and len(found) == KEY * k:
                tags[place] = found
        questions: dict[int, Message] = {}
        for place in survivors:
            if place not in tags:
                continue
            mine, sealed = [], []
            for j, at in zip(self.beside[place].tolist(), self.mirror[place].tolist(), strict=True):
                tag = tags.get(j, b"")[KEY * at : KEY * (at + 1)]
                mine.append(tag or bytes(KEY))
                entry = step.bundles.get(j, b"")[ENTRY * at : ENTRY * at + SEALED]
                sealed.append(entry or bytes(SEALED))
            questions[place] = {
                "secure": "unmask",
                "step": step.number,
                "tags": b"".join(mine),
                "shares": b"".join(sealed),
            }
        shares: dict[int, dict[int, bytes]] = {p: {} for p in range(len(self.terms.keys))}
        for place, answer in self.exchange(questions).items():
            found = answer.get("shares")
            if isinstance(found, bytes) and len(found) == REVEALED * k:
                owners = zip(self.beside[place].tolist(), self.mirror[place].tolist(), strict=True)
                for at, (j, x) in enumerate(owners):
                    shares[j][x + 1] = found[REVEALED * at : REVEALED * (at + 1)]
        return shares

    def _combined(self, place: int, shares: Mapping[int, bytes]) -> tuple[bytes, bytes]:
        """Return the two secrets of a node whose shares were revealed."""
        threshold = self.degrees.threshold
        if len(shares) < threshold:
            raise PrivfedError(
                f"only {len(shares)} of {threshold} shares were revealed: nothing was unmasked; "
                "what was released before is kept; go on with --resume"
            )
        places = tuple(sorted(shares)[:threshold])
        first, second = combine([shares[x] for x in places], places)
        return first, second

    def _excess(self, step: StepState, level: int, first: Mapping[int, bytes]) -> Words:
        """Return the components of all nodes' noise that are not needed.

        Args:
            step: the step.
            level: level of its losses.
            first: per survivor the seed of the first component that is not needed.
        """
        levels = self.terms.levels(len(step.total))
        count = len(levels.losses) - 1 - level
        seeds = [seed for each in first.values() for seed in (chain(each, count) if count else [])]
        parts = []
        for at, each in enumerate(step.sums):
            by_users = {
                users: levels.components(each.s, users)[level + 1 :]
                for users in {self.terms.users[place] for place in first}
            }
            deviations = [s for place in first for s in by_users[self.terms.users[place]]]
            parts.append(components_sum(seeds, deviations, at, each.size))
        return np.concatenate(parts).view(np.uint64)

    def _pair_masks(self, step: StepState, lost: int, secret: bytes) -> Words:
        """Return what the survivors' masks with a lost node add up to."""
        total = np.zeros_like(step.total)
        bundle = step.bundles[lost]
        hiding = pads(secret, self.degrees.neighbours)
        for at, j in enumerate(self.beside[lost].tolist()):
            if step.survivors[j]:
                hidden = bundle[ENTRY * at + SEALED : ENTRY * (at + 1)]
                seed = exclusive_or(hidden, hiding[at])
                mask = stream(seed, len(total))
                total = total + mask if j < lost else total - mask
        return total
