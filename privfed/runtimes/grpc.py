"""Real processes over gRPC: a server, and clients on this machine or on others, all registered and proven."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import ndarrays_to_parameters
from threadpoolctl import threadpool_limits

from privfed.federation.client_factory import NodeFactory
from privfed.federation.roster import Member, Roster
from privfed.foundation.errors import ConfigError, PrivfedError, check_positive
from privfed.privacy.clip_norms import MEASURES
from privfed.runtimes.admission import Door
from privfed.runtimes.certificates import make_certificates
from privfed.runtimes.grpc_transport import Certificates, listening
from privfed.runtimes.inprocess import checked_nodes, patient, serve

LOOPBACK = "127.0.0.1"
SPARE = 64
"""Connections beyond the registered nodes: those who will be turned away, and those who come back."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
ONE_THREAD = {
    name: "1"
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
}


class Grpc:
    """One server process, and a process on this machine for every node of simulated users, connected through TLS on loopback.

    `privfed server` opens it to clients from elsewhere.
    """

    def __init__(
        self,
        name: str,
        nodes: int,
        round_timeout: float,
        join_timeout: float,
        rejoin_timeout: float,
        quorum: float,
    ) -> None:
        self.name, self.nodes = name, nodes
        self.round_timeout = float(check_positive("runtime.round_timeout", round_timeout))
        self.patience = patient(join_timeout, rejoin_timeout, quorum)
        self.spawn = True
        """Whether the nodes of simulated users are started here."""
        self.outside: tuple[str, Certificates | None] | None = None
        """Where clients from elsewhere connect, HOST:PORT, with TLS if there are certificates; None: nowhere."""
        self.about = "the federation"
        """What clients are told they take part in."""
        self.on_listening: Callable[[int], None] = lambda port: None

    def nodes_for(self, users: int) -> int:
        """How many nodes these users are spread over."""
        return checked_nodes(self.nodes, users) or 1

    def run(self, strategy: Any, factory: NodeFactory, roster: Roster, rounds: int) -> None:
        """Listen, start what is to be started, run Flower's server loop, send everybody home."""
        door = Door(roster, welcome=lambda node: self._welcome(factory, roster, node))
        with ExitStack() as stack:
            stack.enter_context(threadpool_limits(1))
            stack.enter_context(interruptible(door))
            largest, most = largest_answer(strategy), len(roster) + SPARE
            if self.outside is not None:
                port = stack.enter_context(listening(door, *self.outside, largest, most))
                self.on_listening(port)
            if self.spawn:
                secrets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="privfed-")))
                make_certificates(secrets, [LOOPBACK])
                port = stack.enter_context(
                    listening(door, f"{LOOPBACK}:0", Certificates.read(secrets), largest, most)
                )
                mine = [member for member in roster if member.simulated]
                stack.enter_context(processes(mine, port, secrets, door))
            serve(strategy, door, rounds, workers=len(roster), timeout=self.round_timeout)
            door.dismiss(min(5.0, self.round_timeout))

    def publish(self, experiment: Any, folder: Path) -> None:
        """Give the model of a finished run to whoever comes, until interrupted: it is public, and heads cost no privacy."""
        with np.load(folder / "model.npz") as file:
            model = [file[name] for name in experiment.strategy.publishes]
        door = Door(
            experiment.roster,
            welcome=lambda node: self._welcome(experiment.factory, experiment.roster, ""),
        )
        door.published = ndarrays_to_parameters(model)
        assert self.outside is not None
        with interruptible(door), listening(door, *self.outside, 1 << 20, SPARE) as port:
            where = f"{self.outside[0].rpartition(':')[0]}:{port}"
            print(
                f"giving the model in {folder} to whoever comes to {where}, until Ctrl-C",
                flush=True,
            )
            threading.Event().wait()

    def _welcome(self, factory: NodeFactory, roster: Roster, node: str) -> dict[str, Any]:
        """What a node is sent when it has proven who it is; a stranger who takes the published model is one user."""
        if not node:
            return factory.welcome(range(1), self.about, published=True)
        return factory.welcome(
            roster.nodes[node], self.about, simulated=roster.members[node].simulated
        )


def largest_answer(strategy: Any) -> int:
    """Bytes that the longest honest answer can have, with room for its wrapping."""
    extra = 8 * max(measure.size for measure in MEASURES.values())
    sizes = [
        sum(8 * math.prod(shape) + extra for shape in strategy.shapes(step).values())
        for step in strategy.plan
    ]
    return max(sizes, default=0) + (1 << 20)


@contextmanager
def interruptible(door: Door) -> Iterator[None]:
    """While nodes are waited for, Ctrl-C and a request to end cut all connections, so that nothing keeps the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        door.close()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def processes(members: list[Member], port: int, folder: Path, door: Door) -> Iterator[None]:
    """A client process for each of these nodes; one that ends in an error of its own stops the run.

    folder: readable by this user only; has the server's ca.crt, and will have the tokens.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = os.environ | QUIET | ONE_THREAD | {"PYTHONPATH": path}
    running: dict[str, subprocess.Popen[str]] = {}
    over = threading.Event()

    def watch(name: str, process: subprocess.Popen[str]) -> None:
        _, errors = process.communicate()
        if process.returncode > 0 and not over.is_set():
            last = errors.strip().splitlines()[-1:] or ["no message"]
            error = ConfigError if process.returncode == ConfigError.exit_code else PrivfedError
            door.fail(error(f"node {name} stopped: {last[0].removeprefix('privfed: ')}"))

    try:
        for member in members:
            token = folder / f"{member.name}.token"
            token.write_text(member.token)
            command = [
                sys.executable,
                "-m",
                "privfed",
                "client",
                "--server",
                f"{LOOPBACK}:{port}",
                "--user",
                member.name,
            ]
            command += [
                "--token-file",
                str(token),
                "--root-certificates",
                str(folder / "ca.crt"),
                "--simulate",
                "--quiet",
            ]
            process = subprocess.Popen(
                command,
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
