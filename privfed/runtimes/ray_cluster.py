"""The Ray that a run uses: its own on this machine, or a cluster that is running already.

Ray is imported here only, inside functions: no other runtime needs it, and it takes half a second.
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from privfed.foundation.environment import NO_TELEMETRY, module_path, thread_limits
from privfed.foundation.errors import ConfigError

STORE_BYTES = 256 * 2**20
"""Shared memory for messages that are too large to travel inside a call."""
CONNECT_SECONDS = 5
RAY_SETTINGS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"}
"""No hint about graphics processors; normal priority of the nodes' processes, which Ray lowers."""


def check_installed() -> None:
    """Check that Ray, an optional dependency, is installed.

    Raises:
        ConfigError: if it is not.
    """
    if find_spec("ray") is None:
        raise ConfigError.of("runtime", "ray", "Ray is not installed; pip install 'privfed[ray]'")


class ClusterAddress:
    """Constraint on a setting: auto, or host:port."""

    def check(self, key: str, value: Any) -> None:
        """Raise a ConfigError that names `key` unless `value` is the address of a cluster."""
        if not isinstance(value, str) or not re.fullmatch(r"auto|[^\s:/]+:\d{1,5}", value):
            allowed = "must be auto or host:port, or null for a Ray on this machine alone"
            raise ConfigError.of(key, value, allowed)


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def attached(address: str | None, verbose: bool) -> Iterator[Any]:
    """Connect to Ray, and disconnect afterwards.

    Disconnecting ends a Ray of this run's own and leaves other clusters running. A process that is
    connected already stays so.

    Args:
        address: auto or host:port of a running cluster; a Ray on this machine alone if None.
        verbose: show what Ray and the nodes' processes print.

    Yields:
        The `ray` module.

    Raises:
        ConfigError: if the cluster does not answer or cannot be used.
    """
    import ray

    if ray.is_initialized():
        yield ray
        return
    for name, value in {**NO_TELEMETRY, **RAY_SETTINGS}.items():
        os.environ.setdefault(name, value)
    # Without this, lost processes are reported in spite of log_to_driver.
    ray._private.worker._worker_logs_enabled = verbose
    settings: dict[str, Any] = {"log_to_driver": verbose}
    settings["logging_level"] = logging.INFO if verbose else logging.ERROR
    constants = ray._private.ray_constants
    reachable = constants.ENABLE_RAY_CLUSTER
    if address is None:
        # Ray then listens on the loopback interface instead of all.
        constants.ENABLE_RAY_CLUSTER = False
        settings |= {
            "address": "local",
            "num_cpus": usable_cores(),
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        }
    else:
        settings["address"] = address = _answering(address)
    try:
        try:
            ray.init(**settings)
        except (RuntimeError, ConnectionError, ValueError) as error:
            # Another version of Ray or Python is among the reasons.
            words = " ".join(str(error).split())
            raise ConfigError.of(
                "runtime.address", address, f"Ray cannot be used: {words}"
            ) from error
        yield ray
    finally:
        ray.shutdown()
        constants.ENABLE_RAY_CLUSTER = reachable


def _answering(address: str) -> str:
    """Return the address if a server answers there: Ray itself would try for minutes."""
    import grpc

    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if address == "auto":
        return address  # Ray looks for its processes on this machine, which takes no time
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
        except grpc.FutureTimeoutError as error:
            allowed = (
                f"no Ray cluster answered within {CONNECT_SECONDS} s; "
                "start one with ray start --head"
            )
            raise ConfigError.of("runtime.address", address, allowed) from error
    return address


def room(ray: Any, cpus: float, gpus: float) -> int:
    """Return the number of nodes that the machines of the cluster have room for.

    Args:
        ray: the `ray` module, connected.
        cpus: processor cores per node.
        gpus: graphics processors per node.
    """
    held = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    return sum(
        min(times_in(has.get("CPU", 0), cpus), times_in(has.get("GPU", 0), gpus)) for has in held
    )


def times_in(has: float, each: float) -> int:
    """Return how often `each` fits into what a machine has."""
    return int(has / each + 1e-6) if each else sys.maxsize


def runtime_environment(cpus: float) -> dict[str, dict[str, str]]:
    """Return Ray's `runtime_env` of a node's process: one thread per core, and no telemetry.

    Args:
        cpus: processor cores per node.
    """
    limits = thread_limits(max(1, math.floor(cpus)))
    return {"env_vars": {**NO_TELEMETRY, **limits, "PYTHONPATH": module_path()}}
