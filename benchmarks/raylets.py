"""A Ray cluster of several raylets, each as on a machine of its own, all on this one: processes, ended by their ids.

Ray turns a loopback address into the machine's own and then listens on every interface. Here it does not: see `START`, and
`ON_LOOPBACK`, which whoever connects has to set before Ray is imported.
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
START = "from ray._private import services; services.get_node_ip_address = lambda address=None: '127.0.0.1'; "
START += "from ray.scripts.scripts import main; main()"
HEALTH_CHECK = {"period_ms": 1000, "failure_threshold": 3, "timeout_ms": 3000}
HEALTH = {f"RAY_health_check_{name}": str(value) for name, value in HEALTH_CHECK.items()}
"""The head asks every raylet once a second and gives it up after three failures; with Ray's own
settings that takes much longer."""
PATIENCE = 120.0
"""Seconds a raylet has to start."""


class Raylets:
    """The first is the head. cpus: logical cores of each, whatever the machine has; store: bytes of shared memory of each.

    health: settings of Ray's, how soon the head gives up a raylet.
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
        self.folder = Path(
            tempfile.mkdtemp(prefix="pf")
        )  # a short path, as Ray's sockets live below it
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.theirs: set[int] = set()
        """Every process that was started, those of lost raylets included."""

    def __enter__(self) -> Raylets:
        os.environ.update(ON_LOOPBACK)  # for this process, which is to connect
        try:
            for number in range(self.count):  # one after the other: they would race for ports
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
        """The raylet's own process."""
        for pid in descendants(self.processes[number].pid):
            if words(pid)[0].endswith("/raylet"):
                return pid
        raise RuntimeError(f"raylet {number} is not running")

    def of_node(self, nodes: list[dict[str, object]]) -> dict[str, int]:
        """Ray's node ids -> which of the raylets it is, 0 the head. nodes: what `ray.nodes()` says while all are alive."""
        numbers = {socket_of(words(self.pid(number))): number for number in range(self.count)}
        return {
            str(node["NodeID"]): numbers[str(node["RayletSocketName"])]
            for node in nodes
            if node["Alive"]
        }

    def send(self, number: int, what: signal.Signals) -> None:
        """To a raylet and, where it is to stand still, to all of its processes: as of a machine that has lost its network."""
        mine = descendants(self.processes[number].pid)
        self.theirs.update(mine)
        for pid in mine if what in (signal.SIGSTOP, signal.SIGCONT) else [self.pid(number)]:
            os.kill(pid, what)

    def stop(self) -> None:
        """End everything, the head last; what has not ended after ten seconds is killed."""
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
    """A process's command line; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return [""]


def socket_of(line: list[str]) -> str:
    """Where a raylet can be reached on its machine, from its command line."""
    return next(word.partition("=")[2] for word in line if word.startswith("--raylet_socket_name="))
