"""The Ray a run uses: our own on this machine, or a cluster that is running already; and what it has room for.

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

from privfed.foundation.errors import ConfigError

STORE_BYTES = 256 * 2**20
"""Shared memory for messages too large to travel inside a call; we send little."""
CONNECT_SECONDS = 5
THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
RAY_SETTINGS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_worker_niceness": "0"}
"""No tip about graphics processors; nodes' processes with the priority of any other, which Ray of itself lowers."""


def check_installed() -> None:
    """Ray is an extra."""
    if find_spec("ray") is None:
        raise ConfigError.of("runtime", "ray", "Ray is not installed; pip install 'privfed[ray]'")


def check_address(address: Any) -> str | None:
    """None, auto or host:port."""
    if address is None or (
        isinstance(address, str) and re.fullmatch(r"auto|[^\s:/]+:\d{1,5}", address)
    ):
        return address
    raise ConfigError.of(
        "runtime.address",
        address,
        "must be auto or host:port, or null for a Ray on this machine alone",
    )


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def attached(address: str | None, verbose: bool) -> Iterator[Any]:
    """The `ray` module, connected; afterwards disconnected, which ends a Ray of our own and leaves others running.

    A process that is connected already stays so.
    """
    import ray

    if ray.is_initialized():
        yield ray
        return
    for name, value in {**QUIET, **RAY_SETTINGS}.items():
        os.environ.setdefault(name, value)
    ray._private.worker._worker_logs_enabled = (
        verbose  # lost processes would be reported in spite of log_to_driver
    )
    settings: dict[str, Any] = {"log_to_driver": verbose}
    settings["logging_level"] = logging.INFO if verbose else logging.ERROR
    constants = ray._private.ray_constants
    reachable = constants.ENABLE_RAY_CLUSTER
    if address is None:
        constants.ENABLE_RAY_CLUSTER = (
            False  # Ray then listens on loopback instead of every interface
        )
        settings |= {
            "address": "local",
            "num_cpus": cores(),
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        }
    else:
        settings["address"] = address = _answering(address)
    try:
        try:
            ray.init(**settings)
        except (
            RuntimeError,
            ConnectionError,
            ValueError,
        ) as error:  # among them other versions of Ray or Python
            words = " ".join(str(error).split())
            raise ConfigError.of(
                "runtime.address", address, f"Ray cannot be used: {words}"
            ) from error
        yield ray
    finally:
        ray.shutdown()
        constants.ENABLE_RAY_CLUSTER = reachable


def _answering(address: str) -> str:
    """The address, if a server answers there: Ray itself would try for minutes."""
    import grpc

    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if address == "auto":
        return address  # Ray looks for its processes on this machine, and answers at once
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
        except grpc.FutureTimeoutError as error:
            allowed = f"no Ray cluster answered within {CONNECT_SECONDS} s; start one with ray start --head"
            raise ConfigError.of("runtime.address", address, allowed) from error
    return address


def room(ray: Any, cpus: float, gpus: float) -> int:
    """How many nodes with these resources each the machines of the cluster hold."""
    held = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    return sum(min(fit(has.get("CPU", 0), cpus), fit(has.get("GPU", 0), gpus)) for has in held)


def fit(has: float, each: float) -> int:
    """How often `each` fits into what a machine has."""
    return int(has / each + 1e-6) if each else sys.maxsize


def environment(cpus: float) -> dict[str, dict[str, str]]:
    """What a node's process is started with: our modules, as many threads as cores, and no telemetry."""
    modules = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    threads = str(max(1, math.floor(cpus)))
    return {"env_vars": {**QUIET, **dict.fromkeys(THREADS, threads), "PYTHONPATH": modules}}
