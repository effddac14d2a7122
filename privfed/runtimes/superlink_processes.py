"""A SuperLink and SuperNodes as processes of this machine, with TLS and registered keys, ended by their process ids."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w

from privfed.commands.flower_app import STATUS
from privfed.config.choices import CONF
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.runtimes.certificates import make_certificates, make_node_key

APP = CONF.parent
"""The folder with pyproject.toml: the Flower app."""
NAME = "loopback"
START_TIMEOUT = 60.0
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Every node computes with one thread: the nodes are the parallelism.
    **{
        name: "1"
        for name in (
            "OMP_NUM_THREADS",
            "OPENBLAS_NUM_THREADS",
            "MKL_NUM_THREADS",
            "NUMBA_NUM_THREADS",
        )
    },
}


class Loopback:
    """One federation. home: a folder for its keys, logs and Flower's own files; say: is told every command that is run."""

    def __init__(
        self, home: Path, port: int = 0, say: Callable[[str], None] = lambda command: None
    ) -> None:
        self.home, self.say = home, say
        if port and answers("127.0.0.1", port):
            raise ConfigError.of(
                "runtime.port", port, "the port is in use; choose another, or 0 for a free one"
            )
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        own = {"FLWR_HOME": str(home / "flwr"), STATUS: str(home)}
        self.environment = os.environ | QUIET | {"PYTHONPATH": path, "PATH": tools} | own

    def start(self) -> None:
        """Make certificates, start the SuperLink and wait until it answers."""
        tls = self.home / "tls"
        make_certificates(tls, ["127.0.0.1", "localhost"])
        self.say(f"export FLWR_HOME={shlex.quote(self.environment['FLWR_HOME'])}")
        connection = {"address": self.address, "root-certificates": str(tls / "ca.crt")}
        (self.home / "flwr").mkdir()
        content = tomli_w.dumps({"superlink": {"default": NAME, NAME: connection}})
        write_atomically(self.home / "flwr" / "config.toml", content.encode())
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += [
            "--ssl-ca-certfile",
            str(tls / "ca.crt"),
            "--ssl-certfile",
            str(tls / "server.crt"),
        ]
        command += ["--ssl-keyfile", str(tls / "server.key"), "--enable-supernode-auth"]
        command += ["--disable-runtime-dependency-installation"]
        self._spawn("superlink", command)
        deadline = time.monotonic() + START_TIMEOUT
        while not answers("127.0.0.1", self.port):
            self.check()
            if time.monotonic() > deadline:
                raise PrivfedError(
                    f"the SuperLink did not start within {START_TIMEOUT:g} s: {self.last_words('superlink')}"
                )
            time.sleep(0.1)

    def add_node(self, name: str, node_config: Mapping[str, Any], registered: bool = True) -> None:
        """Make a key, register it, and start the SuperNode that holds it."""
        key = self.home / f"{name}.key"
        if not key.exists():
            make_node_key(key)
            if registered:
                self.flwr(
                    "supernode",
                    "register",
                    f"{key}.pub",
                    NAME,
                    "--name",
                    f"node-{name}",
                    "--format",
                    "json",
                )
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in node_config.items())
        command = ["flower-supernode", "--superlink", self.address]
        command += [
            "--root-certificates",
            str(self.home / "tls" / "ca.crt"),
            "--auth-supernode-private-key",
            str(key),
        ]
        command += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", settings]
        self._spawn(f"node {name}", command)

    def run(self, run_config: Mapping[str, Any]) -> str:
        """Start a run of the app in this repository; its number."""
        if not (APP / "pyproject.toml").exists():
            raise ConfigError(
                "runtime=superlink: needs a clone of privfed, whose pyproject.toml describes the Flower app"
            )
        path = self.home / f"run-{time.time_ns()}.toml"
        write_atomically(path, tomli_w.dumps(run_config).encode())
        return str(
            self.flwr("run", str(APP), NAME, "--run-config", str(path), "--format", "json")[
                "run-id"
            ]
        )

    def status(self, run: str) -> tuple[str, str]:
        """What the SuperLink says of a run: its status, and why."""
        row = self.flwr("list", NAME, "--run-id", run, "--format", "json")["runs"][0]
        return str(row["status"]), str(row.get("status-details", ""))

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """The answer of a `flwr` command."""
        command = ["flwr", *arguments]
        self.say(shlex.join(command))
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {
                "success": False,
                "error-message": " ".join((done.stderr or done.stdout).split())[-300:],
            }
        if not answer.get("success"):
            raise PrivfedError(f"{' '.join(command[:3])} failed: {answer.get('error-message')}")
        return answer

    def check(self) -> None:
        """Raise where a process that ought to run has ended; a SuperNode that was killed is the run's business."""
        for name, process in self.processes.items():
            if (code := process.poll()) is not None and (name == "superlink" or code > 0):
                why = f"killed by signal {-code}" if code < 0 else self.last_words(name)
                raise PrivfedError(
                    f"the {name.replace('node', 'SuperNode').replace('superlink', 'SuperLink')} stopped: {why}"
                )

    def last_words(self, name: str) -> str:
        """What the log of a process says about its end, in one line."""
        text = re.sub(r"\x1b\[\d+m", "", (self.home / f"{name}.log").read_text(errors="replace"))
        lines = [line.strip() for line in text.splitlines()]
        errors = [line for line in lines if "error" in line.lower() and "For more" not in line] or [
            line for line in lines if line
        ]
        return errors[-1][-300:] if errors else "no message"

    def stop(self) -> None:
        """End every process, first the nodes, then the SuperLink, and what they have started; each is given ten seconds."""
        theirs = [pid for process in self.processes.values() for pid in descendants(process.pid)]
        for name in sorted(self.processes, key=lambda name: name == "superlink"):
            if self.processes[name].poll() is None:
                self.processes[name].terminate()
        deadline = time.monotonic() + 10.0
        for process in self.processes.values():
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        while (theirs := [pid for pid in theirs if exists(pid)]) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in theirs:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _spawn(self, name: str, command: list[str]) -> None:
        self.say(shlex.join(command))
        with (self.home / f"{name}.log").open("ab") as output:
            self.processes[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for us alone: we end the others in order.
                start_new_session=True,
            )


@contextmanager
def interruptible() -> Iterator[None]:
    """A request to end (SIGTERM) is answered like Ctrl-C, so that what was started is ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    table = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=False
    ).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    found = [pid]
    for parent in found:  # grows while it is gone through
        found += [child for child, its_parent in pairs if its_parent == parent]
    return found[1:]


def exists(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(host: str, port: int) -> bool:
    """Whether somebody listens there."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False
