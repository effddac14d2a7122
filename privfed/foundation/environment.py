"""Environment variables of the processes that privfed starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

NO_TELEMETRY = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)
"""Variables that numerical libraries read when they are loaded."""


def thread_limits(count: int = 1) -> dict[str, str]:
    """Return variables that limit numerical libraries to `count` threads per process."""
    return dict.fromkeys(THREAD_VARIABLES, str(count))


def module_path() -> str:
    """Return a PYTHONPATH with which another process finds the same modules as this one."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path)


def program_path() -> str:
    """Return a PATH on which the programs installed beside this interpreter come first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
