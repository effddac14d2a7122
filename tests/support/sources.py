"""Data sources for tests, made as by a configuration: constraints on settings are checked."""

from __future__ import annotations

from typing import Any

import yaml

from privfed.config.composition import CONF
from privfed.config.instantiation import build
from privfed.data.tables.options import Options

READING = {
    key: value
    for key, value in yaml.safe_load((CONF / "data/table.yaml").read_text()).items()
    if key in Options.__dataclass_fields__
}
"""Defaults of how a table is read."""


def source(made: type, /, seed: int = 0, **settings: Any) -> Any:
    """The source of this class with these settings."""
    target = f"{made.__module__}.{made.__qualname__}"
    return build({"_target_": target, **settings}, "data")(seed=seed)


def reading(path: object, **settings: Any) -> Options:
    """How to read a table, with the configuration's defaults."""
    return Options(**READING | {"path": None if path is None else str(path)} | settings)
