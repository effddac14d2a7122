"""Cost of a command in a separate process, with all processes it starts: time and memory."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
TICKS = os.sysconf("SC_CLK_TCK")
PAUSE = 0.05


@dataclass
class Cost:
    """Cost of a command.

    Attributes:
        wall: wall seconds.
        cpu: CPU seconds.
        peak_mb: peak memory of its first process.
        code: exit code.
        complaint: last line of its error output if it failed.
        marks: wall and CPU seconds at which each awaited event was seen, by name.
    """

    wall: float = 0.0
    cpu: float = 0.0
    peak_mb: float = 0.0
    code: int = 0
    complaint: str = ""
    marks: dict[str, tuple[float, float]] = field(default_factory=dict)


def watched(command: Sequence[str], marks: Mapping[str, Callable[[], bool]] | None = None) -> Cost:
    """Run a command to its end and observe it every PAUSE seconds.

    CPU seconds are the operating system's account of the command and its children.

    Args:
        command: command line.
        marks: events to wait for: name -> whether the event has happened.
    """
    cost, waiting, done = Cost(), dict(marks or {}), Event()
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, env=os.environ | QUIET, stdout=subprocess.DEVNULL, stderr=errors
        )

        def wait() -> None:
            _, status, usage = os.wait4(process.pid, 0)
            cost.wall, cost.cpu = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
            cost.code = process.returncode = os.waitstatus_to_exitcode(status)
            done.set()

        Thread(target=wait, daemon=True).start()
        try:
            while not done.wait(PAUSE):
                cost.peak_mb = max(cost.peak_mb, peak_mb(process.pid))
                for name in [name for name, happened in waiting.items() if happened()]:
                    cost.marks[name] = (time.perf_counter() - start, tree_cpu(process.pid))
                    del waiting[name]
        except KeyboardInterrupt:
            process.terminate()
            done.wait()
            raise
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    cost.complaint = lines[-1] if cost.code and lines else ""
    return cost


def peak_mb(pid: int) -> float:
    """Return the peak memory of a process since its start; 0 if it is unknown.

    rusage is not used, because it mixes this number with that of the parent.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def tree_cpu(pid: int) -> float:
    """Return CPU seconds of a process, its living descendants, and those it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [
            child
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS + sum(tree_cpu(int(child)) for child in children)
