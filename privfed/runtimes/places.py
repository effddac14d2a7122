"""Places of a server: registered nodes have their own, strangers share a few.

A node shows a ticket with its call, which only the holder of its token can make. A ticket does not
admit anybody: it decides which places a connection competes for before it is asked for its proof.
So strangers, however many, never hold the place of a registered node.
"""

from __future__ import annotations

import hmac
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from privfed.federation.identity import ticket_of
from privfed.federation.roster import Roster, new_token

STRANGERS, PER_ADDRESS = 32, 8
"""Connections without a ticket at a time: in all, and from one address."""
PER_NODE = 2
"""Connections of one node at a time: the one that counts, and one that comes after it."""
SLACK = 16
"""Threads for connections that are refused at once."""


class NoPlaceError(Exception):
    """There is no place for a connection now; waiting may help."""


@dataclass(eq=False)
class Place:
    """One connection.

    Attributes:
        address: where it comes from, without its port.
        node: name of the node whose ticket it showed; empty for a stranger.
    """

    address: str
    node: str = ""


class Places:
    """Counts connections and refuses those that are too many.

    Args:
        roster: registered nodes.
        strangers: most connections without a ticket.
        per_address: most of them from one address.
    """

    def __init__(
        self, roster: Roster, strangers: int = STRANGERS, per_address: int = PER_ADDRESS
    ) -> None:
        self.roster, self.strangers, self.per_address = roster, strangers, per_address
        self.on_refused: Callable[[str], None] = lambda reason: None
        self._nobody = new_token()
        self._held: set[Place] = set()
        self._nodes: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def most(self) -> int:
        """Number of threads that serve every place and refuse others at once."""
        return PER_NODE * len(self.roster) + self.strangers + SLACK

    def claim(self, address: str, ticket: bytes | None) -> Place:
        """Return a place for a connection.

        Args:
            address: where it comes from, without its port.
            ticket: name and ticket as in the metadata of its call; None: it showed none.

        Raises:
            NoPlaceError: if there is none.
        """
        place = Place(address, self._shown(ticket))
        with self._lock:
            try:
                self._check(place)
            except NoPlaceError:
                self.on_refused("no place")
                raise
            self._held.add(place)
            self._count(place, 1)
        return place

    def prove(self, place: Place, node: str) -> None:
        """Give a connection that has proven its name a place of that node."""
        with self._lock:
            if place in self._held and place.node != node:
                self._count(place, -1)
                place.node = node
                self._count(place, 1)

    def leave(self, place: Place) -> None:
        """Free the place of a connection that has ended."""
        with self._lock:
            if place in self._held:
                self._held.discard(place)
                self._count(place, -1)

    def _shown(self, ticket: bytes | None) -> str:
        """Return the node whose ticket is genuine; unknown names take as long as known ones."""
        name, _, proof = (ticket or b"\0").partition(b"\0")
        node = name.decode("ascii", errors="replace")
        member = self.roster.members.get(node)
        expected = ticket_of(member.token if member else self._nobody, node)
        genuine = hmac.compare_digest(expected, proof)
        return node if member is not None and genuine else ""

    def _check(self, place: Place) -> None:
        if place.node:
            if self._nodes[place.node] >= PER_NODE:
                raise NoPlaceError(f"{place.node} has {PER_NODE} connections already")
        elif sum(self._addresses.values()) >= self.strangers:
            raise NoPlaceError("too many strangers are connected")
        elif self._addresses[place.address] >= self.per_address:
            raise NoPlaceError("too many strangers are connected from that address")

    def _count(self, place: Place, change: int) -> None:
        counter, key = (self._nodes, place.node) if place.node else (self._addresses, place.address)
        counter[key] += change
        if not counter[key]:
            del counter[key]
