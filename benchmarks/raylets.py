"""A Ray cluster of several raylets on one machine, each as on a separate machine.

Processes are ended by their ids. Ray turns a loopback address into the machine's own address and
then listens on every interface. `START` prevents this. A process that connects must set
`ON_LOOPBACK` before it imports Ray.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from privfed.runtimes.ports import free_port
from privfed.runtimes.superlink_processes import descendants, exists

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
HERE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
ON_LOOPBACK = {**QUIET, HERE: "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
START = (
    "from ray._private import services; "
    "services.get_node_ip_address = lambda address=None: '127.0.0.1'; "
)
START += "from ray.scripts.scripts import main; main()"
HEALTH_CHECK = {"period_ms": 1000, "failure_threshold": 3, "timeout_ms": 3000}
HEALTH = {f"RAY_health_check_{name}": str(value) for name, value in HEALTH_CHECK.items()}
"""The head checks every raylet once per second and gives it up after three failures.

With Ray's own settings that takes much longer.
"""
PATIENCE = 120.0
"""Seconds within which a raylet must start."""


class Raylets:
    """Several raylets, of which the first is the head.

    Args:
        count: number of raylets.
        cpus: logical cores per raylet, whatever the machine has.
        store: bytes of shared memory per raylet.
        health: Ray's settings of how soon the head gives up a raylet.
    """

    def __init__(
        self,
        count: int = 3,
        cpus: int = 3,
        store: int = 80 * 2**20,
        health: Mapping[str, str] = HEALTH,
    ) -> None:
        if count < 1 or cpus < 1:
            raise ValueError(f"a cluster needs raylets with cores, not {count} with {cpus}")
        self.count, self.cpus, self.store, self.health = count, cpus, store, dict(health)
        # The path must be short, because Ray's sockets are below it.
        self.folder = Path(tempfile.mkdtemp(prefix="pf"))
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.theirs: set[int] = set()
        """Ids of all processes that were started, including those of lost raylets."""

    def __enter__(self) -> Raylets:
        os.environ.update(ON_LOOPBACK)  # for this process, which will connect
        try:
            for number in range(self.count):  # one by one, otherwise they would race for ports
                self._start(number)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, number: int) -> None:
        line = [
            sys.executable,
            "-c",
            START,
            "start",
            "--block",
            "--disable-usage-stats",
            "--node-ip-address=127.0.0.1",
        ]
        line += [
            f"--num-cpus={self.cpus}",
            f"--object-store-memory={self.store}",
            "--min-worker-port=0",
            "--max-worker-port=0",
        ]
        if number == 0:
            line += [
                "--head",
                f"--port={self.port}",
                f"--ray-client-server-port={free_port()}",
                "--include-dashboard=false",
            ]
            line += [f"--temp-dir={self.folder / 'c'}"]
        else:
            line += [f"--address={self.address}"]
        path = self.folder / f"{number}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                line,
                env=os.environ | QUIET | self.health | {"RAY_worker_niceness": "0", HERE: "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        deadline = time.monotonic() + PATIENCE
        while "Ray runtime started" not in (said := path.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"raylet {number} did not start: {said[-2000:]}")
            time.sleep(0.05)
        self.theirs.update(descendants(process.pid))

    def pid(self, number: int) -> int:
        """Return the process id of the raylet itself."""
        for pid in descendants(self.processes[number].pid):
            if words(pid)[0].endswith("/raylet"):
                return pid
        raise RuntimeError(f"raylet {number} is not running")

    def of_node(self, nodes: list[dict[str, object]]) -> dict[str, int]:
        """Return the number of the raylet by Ray's node id; the head has 0.

        Args:
            nodes: result of `ray.nodes()` while all raylets are alive.
        """
        numbers = {socket_of(words(self.pid(number))): number for number in range(self.count)}
        return {
            str(node["NodeID"]): numbers[str(node["RayletSocketName"])]
            for node in nodes
            if node["Alive"]
        }

    def send(self, number: int, what: signal.Signals) -> None:
        """Send a signal to a raylet.

        SIGSTOP and SIGCONT go to all of its processes, as if its machine had lost its network.
        """
        mine = descendants(self.processes[number].pid)
        self.theirs.update(mine)
        for pid in mine if what in (signal.SIGSTOP, signal.SIGCONT) else [self.pid(number)]:
            os.kill(pid, what)

    def stop(self) -> None:
        """End all processes, the head last; kill those that have not ended after ten seconds."""
        self.theirs.update(pid for process in self.processes for pid in descendants(process.pid))
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + 10.0
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
        for pid in self.theirs | {
            process.pid for process in self.processes if process.poll() is None
        }:
            if exists(pid) and any("ray" in word for word in words(pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def words(pid: int) -> list[str]:
    """Return the command line of a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return [""]


def socket_of(line: list[str]) -> str:
    """Return the name of a raylet's socket, from its command line."""
    return next(word.partition("=")[2] for word in line if word.startswith("--raylet_socket_name="))
