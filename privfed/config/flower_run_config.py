"""Run-config of the Flower app, as `flwr run --run-config` takes it.

Its keys (defaults in pyproject.toml, under [tool.flwr.app.config]):

    overrides   settings as on privfed's command line: "algo=fedrep eps=1"
    out         folder of the run on the server; relative to where flower-superlink was started
    roster      file with the registered nodes, on the server; without it all users are simulated
    resume      true: continue the interrupted run in `out`, with the same settings
    settings    a whole configuration as YAML, instead of overrides
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from privfed.config.composition import compose
from privfed.foundation.errors import ConfigError, nearest

RUN_KEYS = ("overrides", "settings", "out", "roster", "resume")


def configuration(run: Mapping[str, Any]) -> DictConfig:
    """Return the configuration that a run-config describes.

    Raises:
        ConfigError: if a key is unknown, or the settings are not allowed.
    """
    if unknown := [key for key in run if key not in RUN_KEYS]:
        raise ConfigError(
            f"run-config {unknown[0]}: there is no such setting; {nearest(unknown[0], RUN_KEYS)}"
        )
    if run.get("settings"):
        if run.get("overrides"):
            raise ConfigError("run-config: give overrides or settings, not both")
        return OmegaConf.create(str(run["settings"]))  # type: ignore[return-value]
    try:
        overrides = shlex.split(str(run.get("overrides") or ""))
    except ValueError as error:
        raise ConfigError(f"run-config overrides={run['overrides']}: {error}") from error
    chosen = [text for text in overrides if text.startswith("runtime=")]
    if chosen and chosen[-1] != "runtime=superlink":
        raise ConfigError(
            f"{chosen[-1]}: what flwr run starts has runtime=superlink; "
            "start others with python -m privfed.run"
        )
    return compose([*([] if chosen else ["runtime=superlink"]), *overrides])
