"""Who is let in: a Flower client manager that admits registered nodes only, each after it has proven who it is.

Flower's gRPC knows no client identity. So before a connection counts, the server asks through `get_properties`:

    server -> node   hello: a fresh random challenge, the server's version
    node -> server   its name, its version, proof = HMAC-SHA256(token, name and challenge)
    server -> node   welcome: the settings its client is made from (on connections that last)
    node -> server   ready

Everything else is turned away, told why, and noted in the log. A name is connected once at a time; users are counted by the
roster, never by a message. After training the door can instead hand the published model to whoever comes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

from flwr.common import Code, EvaluateIns, GetPropertiesIns, Parameters, ReconnectIns, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion

from privfed import __version__
from privfed.federation.roster import Roster

log = logging.getLogger("privfed.door")


class RefusedError(Exception):
    """Somebody is turned away, for this reason. later: trying again may help."""

    def __init__(self, reason: str, later: bool = False) -> None:
        super().__init__(reason)
        self.later = later


def prove(token: str, node: str, challenge: bytes) -> bytes:
    """What only the holder of the node's token can answer to a challenge."""
    return hmac.new(
        token.encode(), b"privfed node\0" + node.encode() + b"\0" + challenge, hashlib.sha256
    ).digest()


class Door(ClientManager):
    """Registered nodes that are connected now, by name.

    welcome: the settings a node is sent when it has proven who it is; None where the node knows them by other means.
    trusting: names are believed without proof, for simulations whose nodes the server starts itself.
    """

    def __init__(
        self,
        roster: Roster,
        welcome: Callable[[str], Mapping[str, Any]] | None = None,
        hello_timeout: float = 30.0,
        ready_timeout: float = 600.0,
        trusting: bool = False,
    ) -> None:
        self.roster, self.welcome, self.trusting = roster, welcome, trusting
        self.hello_timeout, self.ready_timeout = hello_timeout, ready_timeout
        self.published: Parameters | None = None
        """The model that whoever comes is given, once training is over."""
        self.failure: Exception | None = None
        """Why waiting for nodes makes no sense any more."""
        self._nodes: dict[str, ClientProxy] = {}
        self._entering: dict[str, ClientProxy] = {}
        self._gone: WeakSet[ClientProxy] = WeakSet()
        self._asking: WeakSet[ClientProxy] = WeakSet()
        self._changed = threading.Condition()

    # Flower's interface.

    def register(self, client: ClientProxy) -> bool:
        """Somebody has come; find out who, without keeping the connection waiting."""
        threading.Thread(target=self._receive, args=(client,), daemon=True).start()
        return True

    def unregister(self, client: ClientProxy) -> None:
        """Somebody has left."""
        with self._changed:
            self._gone.add(client)
            if self._leave(client):
                log.info("%s has left", client.cid)
            self._changed.notify_all()

    def num_available(self) -> int:
        """How many nodes are connected."""
        return len(self.all())

    def all(self) -> dict[str, ClientProxy]:
        """The connected nodes by name."""
        if self.failure is not None:
            raise self.failure
        with self._changed:
            return dict(self._nodes)

    def wait_for(self, num_clients: int, timeout: int = 86400) -> bool:
        """Whether so many nodes are connected within so many seconds."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._nodes) >= num_clients or self.failure is not None, timeout=timeout
            )
        return self.num_available() >= num_clients

    def sample(
        self,
        num_clients: int,
        min_num_clients: int | None = None,
        criterion: Criterion | None = None,
    ) -> list[ClientProxy]:
        """The first so many nodes: who takes part is the strategy's business."""
        return list(self.all().values())[:num_clients]

    # Who is who.

    def fail(self, error: Exception) -> None:
        """Stop everybody who waits for nodes."""
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()

    def dismiss(self, timeout: float) -> None:
        """The run is over: tell every node to go home."""
        for proxy in self._nodes.copy().values():
            _attempt(proxy.reconnect, ReconnectIns(seconds=None), timeout, None)

    def close(self) -> None:
        """Cut every connection, so that nobody is waited for."""
        with self._changed:
            everybody = [*self._nodes.values(), *self._entering.values()]
        for proxy in everybody:
            _hang_up(proxy)

    def _receive(self, proxy: ClientProxy) -> None:
        self._asking.add(proxy)
        try:
            if self.published is not None:
                self._hand_out(proxy, self.published)
            else:
                self._admit(proxy)
        except RefusedError as refusal:
            log.warning("turned away: %s", refusal)
            goodbye: dict[str, Scalar] = {"refused": str(refusal), "later": refusal.later}
            _attempt(self._ask, proxy, goodbye, 5.0)
            _hang_up(proxy)
        except Exception as error:
            left = type(error).__name__ == "GrpcBridgeClosed"
            what = (
                "left before it was let in"
                if left
                else f"did not keep to the protocol ({type(error).__name__})"
            )
            log.warning("%r %s", proxy.cid, what)
            _hang_up(proxy)
        finally:
            self._asking.discard(proxy)

    def _admit(self, proxy: ClientProxy) -> None:
        """Let a node in, or raise RefusedError."""
        node = self._identify(proxy)
        with self._changed:
            if node in self._nodes or node in self._entering:
                raise RefusedError(f"{node} is connected already", later=True)
            self._entering[node] = proxy
            proxy.cid = node
        try:
            if self.welcome is not None:
                self._ask(proxy, {"welcome": json.dumps(self.welcome(node))}, self.ready_timeout)
        except Exception:
            with self._changed:
                self._leave(proxy)
            raise
        with self._changed:
            self._leave(proxy)
            if proxy in self._gone:
                return
            self._nodes[node] = proxy
            self._changed.notify_all()
        log.info("%s has joined (%d of %d)", node, len(self._nodes), len(self.roster))

    def holds(self, proxy: ClientProxy) -> bool:
        """Whether this connection was let in, or is being asked who it is."""
        with self._changed:
            return proxy in self._asking or any(
                proxy is each for each in (*self._nodes.values(), *self._entering.values())
            )

    def _leave(self, proxy: ClientProxy) -> bool:
        """Give the place of this connection free, and of no other: its name may be another's by now."""
        places = [nodes for nodes in (self._nodes, self._entering) if nodes.get(proxy.cid) is proxy]
        for nodes in places:
            del nodes[proxy.cid]
        return bool(places)

    def _identify(self, proxy: ClientProxy) -> str:
        """The proven name of whoever is there."""
        challenge = secrets.token_bytes(32)
        answer = self._ask(proxy, {"hello": challenge, "version": __version__}, self.hello_timeout)
        node, proof, version = (answer.get(key) for key in ("node", "proof", "version"))
        if not isinstance(node, str) or not isinstance(proof, bytes):
            raise RefusedError("no name or no proof given")
        called = repr(node[:100])
        if version != __version__:
            raise RefusedError(
                f"{called} runs privfed {str(version)[:20]}, the server {__version__}; install the same version"
            )
        member = self.roster.members.get(node)
        # A stranger costs as much time as a wrong token, so that names cannot be guessed by the clock.
        expected = prove(member.token if member else "nobody", node, challenge)
        proven = hmac.compare_digest(expected, proof)
        if member is None:
            raise RefusedError(f"{called} is not registered")
        if not proven and not self.trusting:
            raise RefusedError(f"{called} could not prove its identity: the token is wrong")
        return node

    def _hand_out(self, proxy: ClientProxy, published: Parameters) -> None:
        """Give the published model to whoever comes: it is public, and the head fitted on it stays where it is."""
        answer = self._ask(
            proxy, {"hello": secrets.token_bytes(32), "version": __version__}, self.hello_timeout
        )
        if self.welcome is not None:
            self._ask(proxy, {"welcome": json.dumps(self.welcome(""))}, self.ready_timeout)
        proxy.evaluate(EvaluateIns(published, {"judge": False}), self.ready_timeout, None)
        log.info("gave the published model to %r", str(answer.get("node"))[:100])
        _attempt(proxy.reconnect, ReconnectIns(seconds=None), 5.0, None)

    @staticmethod
    def _ask(proxy: ClientProxy, question: dict[str, Scalar], timeout: float) -> dict[str, Scalar]:
        answer = proxy.get_properties(GetPropertiesIns(question), timeout, None)
        if answer.status.code != Code.OK:
            raise RefusedError(f"{proxy.cid!r} failed: {answer.status.message[:200]!r}")
        return answer.properties


def _hang_up(proxy: ClientProxy) -> None:
    """End a connection, where there is one that can be ended from this side."""
    bridge = getattr(proxy, "bridge", None)
    if bridge is not None:
        bridge.close()


def _attempt(last_word: Callable[..., object], *arguments: object) -> None:
    """Say something to somebody who may have gone; nothing depends on its being heard."""
    try:
        last_word(*arguments)
    except Exception as error:
        log.debug("not heard: %s", type(error).__name__)
