"""Whole processes for tests: a server and clients on this machine, ended by id; all waits end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from privfed.config.composition import compose
from privfed.experiment.checkpoint import FILE
from privfed.experiment.wiring import Experiment
from privfed.foundation.environment import NO_TELEMETRY, thread_limits
from privfed.runtimes.superlink_processes import descendants

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = NO_TELEMETRY | thread_limits() | {"PRIVFED_TOKEN": ""}
PATIENCE = 300.0
"""Seconds any event is waited for: far more than it takes, as the machine may be busy."""


def eventually(happened: Callable[[], Any], what: str, within: float = PATIENCE) -> Any:
    """The first true value; an error when there is none in time."""
    deadline = time.monotonic() + within
    while not (value := happened()):
        assert time.monotonic() < deadline, f"{what}: not within {within:g} s"
        time.sleep(0.01)
    return value


class Process:
    """One running command; it prints to files, so that it never waits for a reader."""

    def __init__(
        self,
        command: str,
        arguments: tuple[str, ...],
        folder: Path,
        number: int,
        environment: dict[str, str],
        program: tuple[str, ...] = ("-m", "privfed"),
    ) -> None:
        self.out, self.err = folder / f"{number}.out", folder / f"{number}.err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.popen = subprocess.Popen(
                [sys.executable, *program, command, *arguments],
                cwd=folder,
                env=os.environ | ENVIRONMENT | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def said(self) -> str:
        return self.out.read_text()

    @property
    def complaints(self) -> str:
        return self.err.read_text()

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def says(self, text: str) -> None:
        """Wait until it has printed this."""

        def said() -> bool:
            return text in self.said or text in self.complaints or not self.running

        eventually(said, f"{self.popen.args}: {text!r}")
        assert text in self.said or text in self.complaints, (
            f"ended without {text!r}: {self.said}{self.complaints}"
        )

    def ends(self, code: int) -> str:
        """Wait until it has ended with this exit code; the last line it printed as an error."""
        assert self.popen.wait(PATIENCE) == code, f"{self.popen.args}: {self.said}{self.complaints}"
        return self.complaints.splitlines()[-1] if self.complaints else ""

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        """As the power going out."""
        if self.running:
            self.send(signal.SIGKILL)
            self.popen.wait(PATIENCE)


class Fleet:
    """Starts processes in a folder of their own, and ends those that are left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Process] = []
        self.program: tuple[str, ...] = ("-m", "privfed")
        """How Python starts the commands."""

    def start(self, command: str, *arguments: object, **environment: str) -> Process:
        process = Process(
            command,
            tuple(map(str, arguments)),
            self.folder,
            len(self.started),
            environment,
            self.program,
        )
        self.started.append(process)
        return process

    def server(self, *arguments: object, port: int = 0) -> tuple[Process, int]:
        """A server, once it listens, and its port."""
        server = self.start("server", *arguments, "--listen", f"127.0.0.1:{port}")
        server.says("listening on 127.0.0.1:")
        return server, int(server.said.partition("listening on 127.0.0.1:")[2].partition(";")[0])

    def client(
        self,
        port: int,
        user: str,
        *arguments: object,
        tokens: str = "run/private/tokens",
        **environment: str,
    ) -> Process:
        """A client with its token."""
        given = arguments or ("--simulate", "--insecure")
        options = (
            "--server",
            f"127.0.0.1:{port}",
            "--user",
            user,
            "--token-file",
            f"{tokens}/{user}.token",
        )
        return self.start("client", *options, *given, **environment)

    def close(self) -> None:
        for process in self.started:
            process.kill()


KNOWN_NOISE = """
import sys
import privfed.experiment.wiring as wiring
from privfed.__main__ import main
from privfed.privacy.noise import SeededNoise

class KnownNoise(SeededNoise):
    name, repeatable = "discrete", False

wiring.noise_source = lambda kind, seed, simulated: KnownNoise(seed)
if __name__ == "__main__":
    sys.exit(main())
"""
"""A program like privfed whose noise for real users a test can repeat."""

MARK = "PRIVFED_TEST_PROCESS"
"""Environment variable by which processes that a test has started can be found later."""


def printed_by(code: str, within: float = PATIENCE) -> str:
    """Return what Python code prints that runs in a process of its own and may import benchmarks.

    All processes that it has started are ended, even if it fails or takes too long.
    """
    mark, paths = uuid.uuid4().hex, [str(ROOT), str(ROOT / "benchmarks")]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), MARK: mark}
    # Files rather than pipes: a process that is left must not keep anybody waiting.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        in_time = True
        try:
            process.wait(within)
        except subprocess.TimeoutExpired:
            in_time = False
        finally:
            end_all(process, mark)
        out.seek(0)
        err.seek(0)
        assert in_time, f"not within {within:g} s: {err.read()}"
        assert process.returncode == 0, err.read()
        return out.read()


def end_all(process: subprocess.Popen[Any], mark: str) -> None:
    """End a process and all processes with the same mark, by their ids."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)  # it ends what it has started, and removes its files
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)

    def ended() -> bool:
        left = marked(mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return process.poll() is not None and not left

    eventually(ended, "processes of a test end", within=30)


def marked(mark: str) -> set[int]:
    """Return the ids of all living processes with this mark, and of those that they started.

    Some of Ray's processes overwrite their environment, but the ones that started them do not.
    """
    entry, found = f"{MARK}={mark}".encode(), set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to somebody else
            if entry in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found | {child for pid in found for child in descendants(pid)}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The steps a run has taken so far, from its checkpoint."""
    if not (folder / FILE).exists():
        return []
    with np.load(folder / FILE) as file:
        return json.loads(file["facts"].tobytes())["rows"]


def unfinished_model_of(folder: Path) -> np.ndarray:
    """The representation so far, from the checkpoint of an interrupted run."""
    with np.load(folder / FILE) as file:
        return file["shared_0"]


def ledger_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's ledger."""
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def model_of(folder: Path) -> np.ndarray:
    """The published representation."""
    with np.load(folder / "model.npz") as model:
        assert model.files == ["U"], "a head must never be published"
        return model["U"]


class EnoughError(Exception):
    """A run has taken as many steps as were asked for."""


def reference(
    *overrides: str,
    absent: Callable[[int], set[str]] = lambda step: set(),
    steps: int | None = None,
) -> np.ndarray:
    """The representation of the same run in this process.

    absent: nodes nobody hears from, by step. steps: stop after these.
    """
    experiment = Experiment(compose(overrides))
    strategy = experiment.strategy
    everybody = strategy._registered

    def present(manager: Any) -> list[Any]:
        away = absent(strategy.done + 1) if strategy.done < len(strategy.plan) else set()
        return [node for node in everybody(manager) if node.cid not in away]

    def stop(row: dict[str, Any]) -> None:
        if row["step"] == steps:
            raise EnoughError

    strategy._registered = present
    with contextlib.suppress(EnoughError):
        experiment.run(on_step=stop)
    return strategy.shared[0]
