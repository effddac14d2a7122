"""A SuperLink and SuperNodes as processes of this machine, with TLS and registered keys."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w

from privfed.config.option_groups import CONF
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.environment import (
    NO_TELEMETRY,
    module_path,
    program_path,
    thread_limits,
)
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.runtimes.certificates import make_certificates, make_node_key
from privfed.runtimes.ports import free_port, in_use
from privfed.runtimes.superlink_grid import STATUS

APP = CONF.parent
"""The folder with pyproject.toml: the Flower app."""
NAME = "loopback"
"""Name of the SuperLink in Flower's configuration."""
START_TIMEOUT = 60.0
# Every node computes with one thread: the nodes are the parallelism.
ENVIRONMENT = NO_TELEMETRY | thread_limits()


class LocalDeployment:
    """A SuperLink with its SuperNodes on this machine.

    Args:
        home: folder for keys, logs and Flower's own files.
        port: port of the SuperLink; 0 takes a free one.
        say: called with every command line that is executed.

    Raises:
        ConfigError: if the port is in use.
    """

    def __init__(
        self, home: Path, port: int = 0, say: Callable[[str], None] = lambda command: None
    ) -> None:
        self.home, self.say = home, say
        if port and in_use("127.0.0.1", port):
            raise ConfigError.of(
                "runtime.port", port, "the port is in use; choose another, or 0 for a free one"
            )
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        paths = {"PYTHONPATH": module_path(), "PATH": program_path()}
        own = {"FLWR_HOME": str(home / "flwr"), STATUS: str(home)}
        self.environment = os.environ | ENVIRONMENT | paths | own

    def start(self) -> None:
        """Make certificates, start the SuperLink and wait until it answers.

        Raises:
            PrivfedError: if it stops, or does not answer within START_TIMEOUT seconds.
        """
        tls = self.home / "tls"
        make_certificates(tls, ["127.0.0.1", "localhost"])
        self.say(f"export FLWR_HOME={shlex.quote(self.environment['FLWR_HOME'])}")
        connection = {"address": self.address, "root-certificates": str(tls / "ca.crt")}
        (self.home / "flwr").mkdir()
        content = tomli_w.dumps({"superlink": {"default": NAME, NAME: connection}})
        write_atomically(self.home / "flwr" / "config.toml", content.encode())
        command = [
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--ssl-ca-certfile", str(tls / "ca.crt")),
            *("--ssl-certfile", str(tls / "server.crt")),
            *("--ssl-keyfile", str(tls / "server.key")),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
        ]
        self._spawn("superlink", command)
        deadline = time.monotonic() + START_TIMEOUT
        while not in_use("127.0.0.1", self.port):
            self.check()
            if time.monotonic() > deadline:
                raise PrivfedError(
                    f"the SuperLink did not start within {START_TIMEOUT:g} s: "
                    f"{self.last_words('superlink')}"
                )
            time.sleep(0.1)

    def add_node(self, name: str, node_config: Mapping[str, Any], registered: bool = True) -> None:
        """Make a key, register it, and start the SuperNode that holds it.

        Args:
            name: name of the node.
            node_config: see :mod:`privfed.federation.node_config`.
            registered: whether the key is registered at the SuperLink.
        """
        key = self.home / f"{name}.key"
        if not key.exists():
            make_node_key(key)
            if registered:
                self.flwr("supernode", "register", f"{key}.pub", NAME, "--name", f"node-{name}")
        authority = self.home / "tls" / "ca.crt"
        self._spawn(f"node {name}", supernode_command(self.address, authority, key, node_config))

    def run(self, run_config: Mapping[str, Any]) -> str:
        """Start a run of the Flower app in this repository.

        Args:
            run_config: see :mod:`privfed.config.flower_run_config`.

        Returns:
            The number of the run.

        Raises:
            ConfigError: if privfed was installed without its pyproject.toml.
        """
        if not (APP / "pyproject.toml").exists():
            raise ConfigError(
                "runtime=superlink: needs a clone of privfed, "
                "whose pyproject.toml describes the Flower app"
            )
        path = self.home / f"run-{time.time_ns()}.toml"
        write_atomically(path, tomli_w.dumps(run_config).encode())
        return str(self.flwr("run", str(APP), NAME, "--run-config", str(path))["run-id"])

    def status(self, run: str) -> tuple[str, str]:
        """Return the status of a run at the SuperLink, and the reason for it.

        Args:
            run: number of the run.
        """
        row = self.flwr("list", NAME, "--run-id", run)["runs"][0]
        return str(row["status"]), str(row.get("status-details", ""))

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Execute a `flwr` command.

        Returns:
            Its answer, from JSON.

        Raises:
            PrivfedError: if it fails.
        """
        command = ["flwr", *arguments, "--format", "json"]
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
        """Check that all processes run; a SuperNode that was killed is left to the run itself.

        Raises:
            PrivfedError: if another process has ended.
        """
        for name, process in self.processes.items():
            if (code := process.poll()) is not None and (name == "superlink" or code > 0):
                why = f"killed by signal {-code}" if code < 0 else self.last_words(name)
                called = name.replace("node", "SuperNode").replace("superlink", "SuperLink")
                raise PrivfedError(f"the {called} stopped: {why}")

    def last_words(self, name: str) -> str:
        """Return what the log of a process says about its end, in one line."""
        text = re.sub(r"\x1b\[\d+m", "", (self.home / f"{name}.log").read_text(errors="replace"))
        lines = [line.strip() for line in text.splitlines()]
        errors = [line for line in lines if "error" in line.lower() and "For more" not in line] or [
            line for line in lines if line
        ]
        return errors[-1][-300:] if errors else "no message"

    def stop(self) -> None:
        """End the nodes, then the SuperLink, and all processes that they have started.

        They have ten seconds to end by themselves.
        """
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
                # Ctrl-C reaches this process only, which ends the others in order.
                start_new_session=True,
            )


def supernode_command(
    superlink: str, authority: Path, key: Path, node_config: Mapping[str, Any], port: int = 0
) -> list[str]:
    """Return the command that starts a SuperNode.

    Args:
        superlink: HOST:PORT of the SuperLink.
        authority: file with the certificate of the authority that signed the SuperLink's.
        key: file with the private key of the node.
        node_config: see :mod:`privfed.federation.node_config`.
        port: local port of the node's own processes; 0 takes a free one.
    """
    settings = " ".join(f"{name}={json.dumps(value)}" for name, value in node_config.items())
    return [
        *("flower-supernode", "--superlink", superlink),
        *("--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(key)),
        *("--host", "127.0.0.1", "--port", str(port or free_port())),
        *("--node-config", settings),
    ]


def descendants(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started, directly or not."""
    table = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=False
    ).stdout
    pairs = [tuple(map(int, line.split())) for line in table.splitlines()]
    found = [pid]
    for parent in found:  # the list grows in the loop
        found += [child for child, its_parent in pairs if its_parent == parent]
    return found[1:]


def exists(pid: int) -> bool:
    """Return whether there is a process with this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
