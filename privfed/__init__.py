"""privfed: private personalised federated learning on Flower."""

import os

__version__ = "0.1.0"

# Nothing this package starts reports home.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
