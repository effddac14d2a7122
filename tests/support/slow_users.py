"""An algorithm whose users take their time, for tests of patience: `algo=slow`."""

from __future__ import annotations

from pathlib import Path

from support.processes import Fleet

YAML = """
defaults:
  - fedrep
  - _self_
client: {_target_: slow_client.SlowClient}
"""
CODE = """
import os, time
from clients.fedrep import FedRepClient

class SlowClient(FedRepClient):
    def fit(self, *arguments):
        time.sleep(float(os.environ.get("TEST_SECONDS", "0")))
        return super().fit(*arguments)
"""


def slow_users(fleet: Fleet) -> tuple[str, ...]:
    """Write the algorithm; return the options that choose it."""
    folder = fleet.folder / "own"
    (folder / "algo").mkdir(parents=True)
    (folder / "algo/slow.yaml").write_text(YAML)
    (folder / "slow_client.py").write_text(CODE)
    return ("--config-dir", str(Path("own")))
