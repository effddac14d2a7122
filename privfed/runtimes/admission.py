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
import time
from collections import Counter
from collections.abc import Callable
from weakref import WeakSet

from flwr.common import Code, EvaluateIns, GetPropertiesIns, Parameters, ReconnectIns, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.criterion import Criterion

from privfed import __version__
from privfed.federation.identity import PROTOCOL, compatible, prove
from privfed.federation.node_settings import Welcome
from privfed.federation.roster import Roster, new_token
from privfed.foundation.errors import PrivfedError
from privfed.runtimes.flower_internals import GrpcBridgeClosed, GrpcClientProxy
from privfed.runtimes.grpc_transport import ClientBridge
from privfed.runtimes.places import Places

log = logging.getLogger("privfed.admission")
REMINDERS = (3.0, 10.0, 30.0, 60.0)
"""Seconds between lines that say who is waited for; the last one repeats."""
NAMED = 20
"""Most nodes that one line of the log names."""


class RefusedError(Exception):
    """A connection is refused.

    Attributes:
        later: whether trying again may help.
        kind: the reason in two words, under which refusals are counted.
    """

    def __init__(self, reason: str, later: bool = False, kind: str = "protocol") -> None:
        super().__init__(reason)
        self.later, self.kind = later, kind


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
        hello_timeout: float = 10.0,
        ready_timeout: float = 600.0,
        trusting: bool = False,
    ) -> None:
        self.roster, self.welcome, self.trusting = roster, welcome, trusting
        self.hello_timeout, self.ready_timeout = hello_timeout, ready_timeout
        self.places = Places(roster)
        """Who may hold a connection."""
        self.refusals: Counter[str] = Counter()
        """Number of refused connections by reason."""
        self.places.on_refused = self._count_refusal
        self._columns: tuple[str, str] | None = None
        """Hash of the names of features, where the server prescribes none, and who came first."""
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
        self.refresh()
        with self._changed:
            return dict(self._nodes)

    def refresh(self) -> None:
        """Take over tokens that the operator has replaced; end connections made with old ones."""
        for name in self.roster.refresh_tokens():
            with self._changed:
                proxy = self._nodes.get(name) or self._entering.get(name)
            log.info("the token of %s was replaced", name)
            if proxy is not None:
                _hang_up(proxy)

    def wait_for(self, num_clients: int, timeout: int = 86400) -> bool:
        """Wait up to `timeout` seconds for `num_clients` nodes; return whether they connected."""
        deadline, reminders = time.monotonic() + timeout, list(REMINDERS)
        while True:
            left = deadline - time.monotonic()
            with self._changed:
                complete = self._changed.wait_for(
                    lambda: len(self._nodes) >= num_clients or self.failure is not None,
                    timeout=max(0.0, min(left, reminders[0])),
                )
            if complete or left <= reminders[0]:
                break
            self.log_missing()
            reminders = reminders[1:] or reminders
        if not complete:
            self.log_missing()
        return self.num_available() >= num_clients

    def missing(self) -> list[str]:
        """Return the registered nodes that are not connected, for the operator alone."""
        with self._changed:
            return [name for name in self.roster.nodes if name not in self._nodes]

    def log_missing(self) -> None:
        """Name the nodes that are not connected, on the screen of the operator."""
        away = self.missing()
        if away:
            more = f" and {len(away) - NAMED} more" if len(away) > NAMED else ""
            names = ", ".join(away[:NAMED])
            log.info("%d of %d nodes missing: %s%s", len(away), len(self.roster), names, more)

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
            self._count_refusal(refusal.kind)
            goodbye: dict[str, Scalar] = {"refused": str(refusal), "later": refusal.later}
            _attempt(_ask, proxy, goodbye, 5.0)
            _hang_up(proxy)
        except GrpcBridgeClosed:
            log.warning("%r left before it was let in", proxy.cid)
            self._count_refusal("left early")
            _hang_up(proxy)
        except Exception as error:
            log.warning("%r did not keep to the protocol (%s)", proxy.cid, type(error).__name__)
            self._count_refusal("protocol")
            _hang_up(proxy)
        finally:
            self._asking.discard(proxy)

    def admit(self, proxy: ClientProxy) -> None:
        """Admit a node under its proven name.

        Raises:
            RefusedError: if it is not registered, cannot prove it, or is connected already.
        """
        node = self._identify(proxy)
        if isinstance(proxy, GrpcClientProxy) and isinstance(proxy.bridge, ClientBridge):
            proxy.bridge.proven(node)
        with self._changed:
            if node in self._nodes or node in self._entering:
                raise RefusedError(
                    f"{node} is connected already", later=True, kind="connected already"
                )
            self._entering[node] = proxy
            proxy.cid = node
        try:
            if self.welcome is not None:
                settings = self._settings(node)
                told = _ask(proxy, {"welcome": settings}, self.ready_timeout)
                self._check_columns(node, told.get("columns"))
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

    def _settings(self, node: str) -> str:
        """Return the text of a node's welcome.

        Raises:
            RefusedError: if it cannot be made, which is no fault of the node.
        """
        assert self.welcome is not None
        try:
            return self.welcome(node).to_json()
        except Exception as error:
            log.exception("the settings for nodes cannot be made; nobody can join")
            self.fail(PrivfedError(f"the settings for nodes cannot be made ({error})"))
            raise RefusedError("the server cannot make its settings", kind="server") from error

    def _check_columns(self, node: str, columns: Scalar | None) -> None:
        """Refuse a node whose features have other names than those of the node that came first.

        Args:
            node: name of the node.
            columns: hash of the names, from nodes that were not told which columns to read.
        """
        if not isinstance(columns, str):
            return
        with self._changed:
            known, first = self._columns = self._columns or (columns, node)
        if columns != known:
            log.warning(
                "%s has other columns than %s, who came first; say with data.columns=[...] "
                "which ones are meant",
                node,
                first,
            )
            raise RefusedError(
                "your file has other columns than that of the node which came first; the server's "
                "operator can name the columns (data.columns)",
                kind="other columns",
            )

    def _count_refusal(self, kind: str) -> None:
        with self._changed:
            self.refusals[kind] += 1

    def _leave(self, proxy: ClientProxy) -> bool:
        """Free the place of this connection only: another one may have its name by now."""
        places = [nodes for nodes in (self._nodes, self._entering) if nodes.get(proxy.cid) is proxy]
        for nodes in places:
            del nodes[proxy.cid]
        return bool(places)

    def _identify(self, proxy: ClientProxy) -> str:
        """Return the proven name of a node."""
        self.refresh()
        challenge = secrets.token_bytes(32)
        answer = _ask(proxy, _hello(challenge), self.hello_timeout)
        node, proof, version = (answer.get(key) for key in ("node", "proof", "version"))
        if not isinstance(node, str) or not isinstance(proof, bytes):
            raise RefusedError("no name or no proof given")
        called = repr(node[:100])
        if not compatible(version, __version__):
            raise RefusedError(
                f"{called} runs privfed {str(version)[:20]}, the server {__version__}; "
                "install the same version",
                kind="version",
            )
        member = self.roster.members.get(node)
        # An unknown name takes as long as a wrong token and gets the same answer, so that strangers
        # cannot find out who is registered.
        expected = prove(member.token if member else self._nobody, node, challenge)
        proven = hmac.compare_digest(expected, proof)
        if member is None or not (proven or self.trusting):
            raise RefusedError(
                f"{called} is not registered, or its token is wrong", kind="not registered"
            )
        return node

    def _send_published(self, proxy: ClientProxy, published: Parameters) -> None:
        """Send the published model, which is public; the head fitted to it stays on the node."""
        answer = _ask(proxy, _hello(secrets.token_bytes(32)), self.hello_timeout)
        if self.welcome is not None:
            _ask(proxy, {"welcome": self.welcome("").to_json()}, self.ready_timeout)
        proxy.evaluate(EvaluateIns(published, {"judge": False}), self.ready_timeout, None)
        log.info("gave the published model to %r", str(answer.get("node"))[:100])
        _attempt(proxy.reconnect, ReconnectIns(seconds=None), 5.0, None)


def _hello(challenge: bytes) -> dict[str, Scalar]:
    """Return the first question of the admission protocol."""
    return {"hello": challenge, "version": __version__, "protocol": PROTOCOL}


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
