"""Configuration of a run, read back from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from privfed.foundation.errors import ConfigError


def recall(folder: Path, overrides: Sequence[str]) -> DictConfig:
    """Return the configuration of an interrupted run, exactly as it was.

    Raises:
        ConfigError: if overrides are given, or there is no interrupted run in the folder.
    """
    if overrides:
        words = "a resumed run keeps its settings; give none beside --resume"
        raise ConfigError(f"{overrides[0]}: {words}")
    if not (folder / "config.yaml").exists():
        raise ConfigError(f"--resume {folder}: there is no run in that folder")
    if (folder / "result.json").exists():
        raise ConfigError(f"--resume {folder}: that run is complete; there is nothing to resume")
    return load_config(folder)


def finished(folder: Path, overrides: Sequence[str]) -> DictConfig:
    """Return the configuration of a complete run.

    Raises:
        ConfigError: if overrides are given, or there is no complete run in the folder.
    """
    if overrides:
        words = "a published run keeps its settings; give none beside --publish"
        raise ConfigError(f"{overrides[0]}: {words}")
    if not (folder / "result.json").exists():
        raise ConfigError(f"--publish {folder}: there is no complete run in that folder")
    return load_config(folder)


def load_config(folder: Path) -> DictConfig:
    """Return the configuration of the run in a folder.

    Raises:
        ConfigError: if it cannot be read.
    """
    path = folder / "config.yaml"
    try:
        cfg = OmegaConf.load(path)
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(cfg, DictConfig):
        raise ConfigError(f"{path}: is not a configuration")
    return cfg
