"""An algorithm whose users take their time, for tests of patience: `algo=slow`."""

from __future__ import annotations

from pathlib import Path

from support.processes import Fleet

YAML = """
defaults:
  - fedrep
  - _self_
client: {_target_: slow_client.slow_client}
"""
CODE = """
import functools, os, time
from clients.fedrep import fedrep_client

@functools.wraps(fedrep_client)
def slow_client(**settings):
    client = fedrep_client(**settings)
    fit = client.fit

    def slowly(*arguments):
        time.sleep(float(os.environ.get("TEST_SECONDS", "0")))
        return fit(*arguments)

    client.fit = slowly
    return client
"""


def slow_users(fleet: Fleet) -> tuple[str, ...]:
    """Write the algorithm; return the options that choose it."""
    folder = fleet.folder / "own"
    (folder / "algo").mkdir(parents=True)
    (folder / "algo/slow.yaml").write_text(YAML)
    (folder / "slow_client.py").write_text(CODE)
    return ("--config-dir", str(Path("own")))
