"""Ports of this machine: which are in use, and which are free."""

from __future__ import annotations

import socket


def in_use(host: str, port: int) -> bool:
    """Return whether a server answers at a port."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def free_port() -> int:
    """Return a port of the loopback interface that no server uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
