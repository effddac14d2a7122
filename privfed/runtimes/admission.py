"""Admission of nodes: a Flower client manager that admits registered nodes only.

Flower's gRPC knows no identity of clients. Before a connection counts, the server therefore asks
through `get_properties`:

    server -> node   hello: a fresh random challenge, the server's version
    node -> server   its name, its version, proof = HMAC-SHA256(token, name and challenge)
    server -> node   welcome: the settings its client is made from (on connections that last)
    node -> server   ready

Every other connection is refused, told why, and noted in the log. A name is connected once at a
time. Users are counted by the roster, never by a message. After training, the server can send the
published model to every client that connects instead.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
from collections.abc import Callable
from weakref import WeakSet

from flwr.common import Code, EvaluateIns, GetPropertiesIns, Parameters, ReconnectIns, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion

from privfed import __version__
from privfed.federation.identity import prove
from privfed.federation.node_settings import Welcome
from privfed.federation.roster import Roster, new_token
from privfed.runtimes.flower_internals import GrpcBridgeClosed, GrpcClientProxy

log = logging.getLogger("privfed.admission")


class RefusedError(Exception):
    """A connection is refused.

    Attributes:
        later: whether trying again may help.
    """

    def __init__(self, reason: str, later: bool = False) -> None:
        super().__init__(reason)
        self.later = later


class AdmissionControl(ClientManager):
    """Registered nodes that are connected now, by name.

    Args:
        roster: registered nodes.
        welcome: returns the settings that a node is sent once it has proven its identity; None if
            nodes are sent their settings with every message. Its argument is the name of the node,
            or empty for a client that takes the published model.
        hello_timeout: seconds to wait for a proof.
        ready_timeout: seconds to wait until the node has made its client.
        trusting: believe names without a proof, in simulations whose nodes the server starts
            itself.
    """

    def __init__(
        self,
        roster: Roster,
        welcome: Callable[[str], Welcome] | None = None,
        hello_timeout: float = 30.0,
        ready_timeout: float = 600.0,
        trusting: bool = False,
    ) -> None:
        self.roster, self.welcome, self.trusting = roster, welcome, trusting
        self.hello_timeout, self.ready_timeout = hello_timeout, ready_timeout
        self.published: Parameters | None = None
        """The model that every client is sent, once training is over."""
        self.failure: Exception | None = None
        """Why waiting for nodes makes no sense any more."""
        self._nobody = new_token()
        """Stands for the token of a name that is not registered."""
        self._nodes: dict[str, ClientProxy] = {}
        self._entering: dict[str, ClientProxy] = {}
        self._gone: WeakSet[ClientProxy] = WeakSet()
        self._asking: WeakSet[ClientProxy] = WeakSet()
        self._changed = threading.Condition()

    # Flower's interface.

    def register(self, client: ClientProxy) -> bool:
        """Start to find out who has connected; return at once."""
        threading.Thread(target=self.receive, args=(client,), daemon=True).start()
        return True

    def unregister(self, client: ClientProxy) -> None:
        """Forget a connection that has ended."""
        with self._changed:
            self._gone.add(client)
            if self._leave(client):
                log.info("%s has left", client.cid)
            self._changed.notify_all()

    def num_available(self) -> int:
        """Return the number of connected nodes."""
        return len(self.all())

    def all(self) -> dict[str, ClientProxy]:
        """Return the connected nodes by name.

        Raises:
            Exception: the error given to `fail`, if there was one.
        """
        if self.failure is not None:
            raise self.failure
        with self._changed:
            return dict(self._nodes)

    def wait_for(self, num_clients: int, timeout: int = 86400) -> bool:
        """Wait up to `timeout` seconds for `num_clients` nodes; return whether they connected."""
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
        """Return the first `num_clients` nodes: the strategy itself decides who takes part."""
        return list(self.all().values())[:num_clients]

    # Identities.

    def fail(self, error: Exception) -> None:
        """Raise an error wherever nodes are waited for."""
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()

    def dismiss(self, timeout: float) -> None:
        """Tell every node that the run is over.

        Args:
            timeout: seconds that each node has to answer.
        """
        for proxy in self._nodes.copy().values():
            _attempt(proxy.reconnect, ReconnectIns(seconds=None), timeout, None)

    def close(self) -> None:
        """End every connection, so that no answer is waited for."""
        with self._changed:
            everybody = [*self._nodes.values(), *self._entering.values()]
        for proxy in everybody:
            _hang_up(proxy)

    def holds(self, proxy: ClientProxy) -> bool:
        """Return whether a connection was admitted or is being asked for its identity."""
        with self._changed:
            return proxy in self._asking or any(
                proxy is each for each in (*self._nodes.values(), *self._entering.values())
            )

    def receive(self, proxy: ClientProxy) -> None:
        """Admit a connection, or refuse it and say why."""
        self._asking.add(proxy)
        try:
            if self.published is not None:
                self._send_published(proxy, self.published)
            else:
                self.admit(proxy)
        except RefusedError as refusal:
            log.warning("turned away: %s", refusal)
            goodbye: dict[str, Scalar] = {"refused": str(refusal), "later": refusal.later}
            _attempt(_ask, proxy, goodbye, 5.0)
            _hang_up(proxy)
        except GrpcBridgeClosed:
            log.warning("%r left before it was let in", proxy.cid)
            _hang_up(proxy)
        except Exception as error:
            log.warning("%r did not keep to the protocol (%s)", proxy.cid, type(error).__name__)
            _hang_up(proxy)
        finally:
            self._asking.discard(proxy)

    def admit(self, proxy: ClientProxy) -> None:
        """Admit a node under its proven name.

        Raises:
            RefusedError: if it is not registered, cannot prove it, or is connected already.
        """
        node = self._identify(proxy)
        with self._changed:
            if node in self._nodes or node in self._entering:
                raise RefusedError(f"{node} is connected already", later=True)
            self._entering[node] = proxy
            proxy.cid = node
        try:
            if self.welcome is not None:
                _ask(proxy, {"welcome": self.welcome(node).to_json()}, self.ready_timeout)
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

    def _leave(self, proxy: ClientProxy) -> bool:
        """Free the place of this connection only: another one may have its name by now."""
        places = [nodes for nodes in (self._nodes, self._entering) if nodes.get(proxy.cid) is proxy]
        for nodes in places:
            del nodes[proxy.cid]
        return bool(places)

    def _identify(self, proxy: ClientProxy) -> str:
        """Return the proven name of a node."""
        challenge = secrets.token_bytes(32)
        answer = _ask(proxy, {"hello": challenge, "version": __version__}, self.hello_timeout)
        node, proof, version = (answer.get(key) for key in ("node", "proof", "version"))
        if not isinstance(node, str) or not isinstance(proof, bytes):
            raise RefusedError("no name or no proof given")
        called = repr(node[:100])
        if version != __version__:
            raise RefusedError(
                f"{called} runs privfed {str(version)[:20]}, the server {__version__}; "
                "install the same version"
            )
        member = self.roster.members.get(node)
        # An unknown name takes as long as a wrong token and gets the same answer, so that strangers
        # cannot find out who is registered.
        expected = prove(member.token if member else self._nobody, node, challenge)
        proven = hmac.compare_digest(expected, proof)
        if member is None or not (proven or self.trusting):
            raise RefusedError(f"{called} is not registered, or its token is wrong")
        return node

    def _send_published(self, proxy: ClientProxy, published: Parameters) -> None:
        """Send the published model, which is public; the head fitted to it stays on the node."""
        hello: dict[str, Scalar] = {"hello": secrets.token_bytes(32), "version": __version__}
        answer = _ask(proxy, hello, self.hello_timeout)
        if self.welcome is not None:
            _ask(proxy, {"welcome": self.welcome("").to_json()}, self.ready_timeout)
        proxy.evaluate(EvaluateIns(published, {"judge": False}), self.ready_timeout, None)
        log.info("gave the published model to %r", str(answer.get("node"))[:100])
        _attempt(proxy.reconnect, ReconnectIns(seconds=None), 5.0, None)


def _ask(proxy: ClientProxy, question: dict[str, Scalar], timeout: float) -> dict[str, Scalar]:
    """Return the answer to a question of the admission protocol."""
    answer = proxy.get_properties(GetPropertiesIns(question), timeout, None)
    if answer.status.code != Code.OK:
        raise RefusedError(f"{proxy.cid!r} failed: {answer.status.message[:200]!r}")
    return answer.properties


def _hang_up(proxy: ClientProxy) -> None:
    """End a connection, if it is one that lasts."""
    if isinstance(proxy, GrpcClientProxy):
        proxy.bridge.close()


def _attempt(last_word: Callable[..., object], *arguments: object) -> None:
    """Say something to a node that may have gone; nothing depends on the answer."""
    try:
        last_word(*arguments)
    except Exception as error:
        log.debug("not heard: %s", type(error).__name__)
