"""privfed: private personalised federated learning on Flower."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privfed.models.estimator import PersonalModel

__version__ = "0.1.0"

# No process that this package starts may send usage statistics.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def load(run: str | os.PathLike[str], simulation: bool = False) -> PersonalModel:
    """Return the model that a finished run published, to predict with or to personalise.

    Args:
        run: folder of the run.
        simulation: no warning if the run is a simulation on a real table, which protects nobody.

    Raises:
        ConfigError: the folder has no model that can be personalised.
    """
    from privfed.models import estimator

    return estimator.load_model(run, simulation)
