"""Real processes over gRPC: a server, and clients on this machine or on others.

All clients are registered and prove their identity.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import ndarrays_to_parameters
from threadpoolctl import threadpool_limits

from privfed.federation.client_factory import ClientFactory
from privfed.federation.node_settings import Welcome
from privfed.federation.roster import Member, Roster
from privfed.foundation.environment import NO_TELEMETRY, module_path, thread_limits
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.privacy.adaptive_clipping import MEASURES
from privfed.runtimes.admission import AdmissionControl
from privfed.runtimes.certificates import make_certificates
from privfed.runtimes.grpc_transport import KEEPALIVE, Certificates, listening
from privfed.runtimes.interruption import answering, interruptible
from privfed.runtimes.places import Places
from privfed.runtimes.runtime import Nodes, Patience, Quorum, Runtime, Seconds, checked_nodes
from privfed.runtimes.server_loop import Drain, run_server_loop
from privfed.runtimes.status_server import ServerStatus, serving_status

LOOPBACK = "127.0.0.1"
NEWCOMERS, NEWCOMERS_PER_ADDRESS = 64, 16
"""Connections at a time of clients that take a published model: in all, and from one address."""
NEWCOMER_TIMEOUT = 60.0
"""Seconds that such a client has for each of its answers."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Endpoint:
    """Where clients from other machines connect.

    Attributes:
        address: HOST:PORT; port 0 takes a free one.
        certificates: for TLS; plain text if None.
    """

    address: str
    certificates: Certificates | None


class Grpc(Runtime):
    """One server process, and one client process per node of simulated users.

    The processes are connected through TLS on the loopback interface. `privfed server` opens the
    server to clients from other machines.

    Args:
        name: name of the runtime.
        nodes: number of client processes; one unless given.
        round_timeout: seconds that a node has per round.
        join_timeout: see :class:`Patience`.
        rejoin_timeout: see :class:`Patience`.
        quorum: see :class:`Patience`.
        start_quorum: see :class:`Patience`.
        keepalive: seconds between pings on a quiet connection.
        drain_timeout: seconds that a step in progress has to end after SIGTERM.
    """

    def __init__(
        self,
        name: str,
        nodes: Nodes,
        round_timeout: Seconds,
        join_timeout: Seconds,
        rejoin_timeout: Seconds,
        quorum: Quorum,
        start_quorum: Quorum = 0.5,
        keepalive: Seconds = KEEPALIVE,
        drain_timeout: Seconds = 25.0,
    ) -> None:
        self.name, self.nodes, self.round_timeout = name, nodes, float(round_timeout)
        self.patience = Patience(
            join_timeout, rejoin_timeout, quorum, strict=False, start_quorum=start_quorum
        )
        self.keepalive, self.drain_timeout = float(keepalive), float(drain_timeout)
        self.spawn = True
        """Whether the nodes of simulated users are started on this machine."""
        self.outside: Endpoint | None = None
        """Where clients from other machines connect; nowhere unless given."""
        self.about = "the federation"
        """Description of the federation that clients are sent."""
        self.status: str | None = None
        """HOST:PORT of the operator's status page; none unless given."""
        self.on_listening: Callable[[int], None] = lambda port: None

    def nodes_for(self, users: int) -> int:
        """See :class:`Runtime`."""
        return checked_nodes(self.nodes, users) or 1

    def run(self, strategy: Any, factory: ClientFactory, roster: Roster, rounds: int) -> None:
        """See :class:`Runtime`."""

        def welcome(node: str) -> Welcome:
            return self.welcome(factory, roster, node)

        # Settings that cannot be sent are an error before anybody joins.
        welcome(next(iter(roster.nodes))).to_json()
        admission = AdmissionControl(roster, welcome)
        drain = Drain(admission.close, self.drain_timeout)
        with ExitStack() as stack:
            stack.enter_context(threadpool_limits(1))
            stack.enter_context(interruptible((signal.SIGINT,), admission.close))
            stack.enter_context(answering(signal.SIGTERM, drain.request))
            largest = largest_answer(strategy)
            if self.status is not None:
                shown = ServerStatus(strategy, admission, self.about)
                port = stack.enter_context(serving_status(shown, self.status))
                where = f"{self.status.rpartition(':')[0]}:{port}"
                print(f"status on http://{where}/ (also /healthz, /readyz, /metrics)", flush=True)
            if self.outside is not None:
                place = self.outside
                port = stack.enter_context(
                    self.listening(admission, place.address, place.certificates, largest)
                )
                self.on_listening(port)
            if self.spawn:
                secrets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="privfed-")))
                make_certificates(secrets, [LOOPBACK])
                certificates = Certificates.read(secrets)
                port = stack.enter_context(
                    self.listening(admission, f"{LOOPBACK}:0", certificates, largest)
                )
                mine = [member for member in roster if member.simulated]
                stack.enter_context(client_processes(mine, port, secrets, admission))
            timeout = self.round_timeout
            run_server_loop(strategy, admission, rounds, len(roster), timeout, drain)
            admission.dismiss(min(5.0, timeout))

    def publish(
        self, factory: ClientFactory, roster: Roster, names: Sequence[str], folder: Path
    ) -> None:
        """Send the model of a finished run to every client that connects, until interrupted.

        The model is public, and heads fitted to it cost no privacy.

        Args:
            factory: makes the clients.
            roster: nodes registered for the run.
            names: names of the model's arrays, in the order in which clients take them.
            folder: folder of the run.
        """
        assert self.outside is not None
        with np.load(folder / "model.npz") as file:
            model = [file[name] for name in names]
        admission = AdmissionControl(roster, lambda node: self.welcome(factory, roster, ""))
        admission.published = ndarrays_to_parameters(model)
        admission.places = Places(roster, NEWCOMERS, NEWCOMERS_PER_ADDRESS)
        admission.ready_timeout = NEWCOMER_TIMEOUT
        address, certificates = self.outside.address, self.outside.certificates
        with (
            interruptible(STOP_SIGNALS, admission.close),
            self.listening(admission, address, certificates, 1 << 20) as port,
        ):
            where = f"{address.rpartition(':')[0]}:{port}"
            words = f"giving the model in {folder} to whoever comes to {where}, until Ctrl-C"
            print(words, flush=True)
            threading.Event().wait()

    def listening(
        self,
        admission: AdmissionControl,
        address: str,
        certificates: Certificates | None,
        largest: int,
    ) -> AbstractContextManager[int]:
        """Start a server; see :func:`privfed.runtimes.grpc_transport.listening`."""
        return listening(
            admission, address, certificates, largest, admission.places, self.keepalive
        )

    def welcome(self, factory: ClientFactory, roster: Roster, node: str) -> Welcome:
        """Return the settings that a node is sent.

        Args:
            factory: makes the clients.
            roster: registered nodes.
            node: name of a registered node; empty for a client that only takes the published
                model, which counts as one user.
        """
        if not node:
            return factory.welcome(range(1), self.about, published=True)
        simulated = roster.members[node].simulated
        return factory.welcome(roster.nodes[node], self.about, simulated=simulated)


def largest_answer(strategy: Any) -> int:
    """Return the most bytes that an honest answer can have, with 1 MiB for its envelope."""
    extra = 8 * max(measure.size for measure in MEASURES.values())
    sizes = [
        sum(8 * math.prod(shape) + extra for shape in strategy.shapes(step).values())
        for step in strategy.plan
    ]
    return max(sizes, default=0) + (1 << 20)


@contextmanager
def client_processes(
    members: Sequence[Member], port: int, folder: Path, admission: AdmissionControl
) -> Iterator[None]:
    """Start one client process per node, and end all of them afterwards.

    A process that ends with an error stops the run.

    Args:
        members: nodes of simulated users.
        port: port of the server on this machine.
        folder: folder readable by this user only, with the server's ca.crt; tokens are written to
            it.
        admission: is told about failures.
    """
    environment = os.environ | NO_TELEMETRY | thread_limits() | {"PYTHONPATH": module_path()}
    running: dict[str, subprocess.Popen[str]] = {}
    over = threading.Event()

    def watch(name: str, process: subprocess.Popen[str]) -> None:
        _, errors = process.communicate()
        if process.returncode > 0 and not over.is_set():
            last = errors.strip().splitlines()[-1:] or ["no message"]
            error = ConfigError if process.returncode == ConfigError.exit_code else PrivfedError
            admission.fail(error(f"node {name} stopped: {last[0].removeprefix('privfed: ')}"))

    try:
        for member in members:
            token = folder / f"{member.name}.token"
            token.write_text(member.token)
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "privfed", "client", "--simulate", "--quiet"),
                    *("--server", f"{LOOPBACK}:{port}", "--user", member.name),
                    *("--token-file", str(token)),
                    *("--root-certificates", str(folder / "ca.crt")),
                ],
                env=environment,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            running[member.name] = process
            threading.Thread(target=watch, args=(member.name, process), daemon=True).start()
        yield
    finally:
        over.set()
        for process in running.values():
            try:
                process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                process.kill()
