"""privfed: private personalised federated learning on Flower."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privfed.models.estimator import PersonalModel

__version__ = "0.1.0"

# Nothing this package starts reports home.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def load(run: str | os.PathLike[str]) -> PersonalModel:
    """The model that a finished run published, to predict with or to personalise; `run` is its folder."""
    from privfed.models import estimator

    return estimator.load(run)
