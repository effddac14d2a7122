"""What a run leaves behind, and what it ran on."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privfed import __version__
from privfed.data.error_bins import Scale
from privfed.foundation.linalg import Array


@dataclass
class Outcome:
    """What a run leaves behind, before it is written."""

    result: dict[str, Any]
    model: dict[str, Array]
    rows: list[dict[str, Any]] = field(default_factory=list)
    histograms: dict[str, Array] = field(default_factory=dict)
    scale: Scale | None = None
    split: NDArray[np.int64] | None = None
    """Examples of each user in each class (n, classes), in simulations with classes."""
    by_size: Array | None = None
    """Who gains, by number of rows (see `privfed.report.gain_chart`), in simulations on tables."""
    schema: Any = None
    """What the columns of a table mean."""


@cache
def versions() -> dict[str, str]:
    """Of Python and the packages that decide what a run computes."""
    packages = (
        "flwr",
        "numpy",
        "scipy",
        "hydra-core",
        *(("torch",) if "torch" in sys.modules else ()),
    )
    return {
        "python": python_version(),
        "privfed": __version__,
        **{name: version(name) for name in packages},
    }


def peak_rss_mb() -> float:
    """Most memory this process has held; Linux knows it since the last exec, elsewhere since the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
