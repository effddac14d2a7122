"""One SuperNode as a process: what is checked before it starts, and why it ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from privfed.foundation.environment import program_path
from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.runtimes.interruption import interruptible
from privfed.runtimes.superlink_processes import ENVIRONMENT

KEPT_LINES = 50
"""Lines of output that are searched for the reason of the end."""


def check_node_key(path: Path) -> None:
    """Check that a file holds a private key that Flower accepts.

    Raises:
        ConfigError: if it does not, or cannot be read.
    """
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"--key {path}: cannot be read ({error.strerror})") from error
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        made = 'ssh-keygen -t ecdsa -b 384 -N "" -f FILE'
        raise ConfigError(f"--key {path}: is not a private key as made by {made}")


def run_supernode(command: Sequence[str]) -> None:
    """Run a SuperNode until its operator ends it; print what it prints.

    Args:
        command: see :func:`privfed.runtimes.superlink_processes.supernode_command`.

    Raises:
        PrivfedError: if it ends with an error.
    """
    process = subprocess.Popen(
        command,
        env=os.environ | ENVIRONMENT | {"PATH": program_path()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output: list[str] = []

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            del output[:-KEPT_LINES]
            print(line, end="", flush=True)

    threading.Thread(target=listen, daemon=True).start()
    with interruptible():
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=15)
            return
    if code:
        time.sleep(0.5)  # its last lines are still being read
        raise why_supernode_ended("".join(output))


def why_supernode_ended(output: str) -> PrivfedError:
    """Return the reason for the end of a SuperNode, in one line.

    Args:
        output: the last lines that it printed.
    """
    lines = [line.strip() for line in re.sub(r"\x1b\[\d+m", "", output).splitlines()]
    place = next((i for i, line in enumerate(lines) if "Exit Code:" in line), None)
    if place is None:
        last = next((line for line in reversed(lines) if line), "no message")
        return PrivfedError(f"flower-supernode ended: {last}")
    said = [
        line for line in lines[place + 1 : place + 4] if line and "Failed to initialize" not in line
    ]
    if "Failed to activate" in " ".join(said):
        # Flower answers both cases with the same code.
        return ConfigError(
            "the SuperLink does not take this node's key: it is not registered "
            "(flwr supernode register KEY.pub), or a node with it counts as online, "
            "which it does for up to a minute after it was killed; then try again"
        )
    return ConfigError(f"flower-supernode ended: {said[0] if said else lines[place]}")
