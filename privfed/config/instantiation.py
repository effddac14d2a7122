"""Make what a configuration names: the constructor in `_target_`, with checked settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from privfed.foundation.constraints import check_settings
from privfed.foundation.errors import ConfigError

Settings = Mapping[str, Any]


def build(node: Settings | DictConfig, group: str = "") -> Callable[..., Any]:
    """Return a maker of what a section of the configuration describes.

    Args:
        node: settings with a `_target_`; their key `kind` says what the section is and is no
            argument.
        group: group of the configuration that the settings belong to, for messages.

    Returns:
        A function of further keyword arguments that makes the object.

    Raises:
        ConfigError: if the target cannot be found, or settings do not fit; also when making it.
    """
    target = node.get("_target_")
    plain = OmegaConf.to_container(node) if isinstance(node, DictConfig) else dict(node)
    try:
        factory = instantiate(without_kinds(plain), _partial_=True)
    except InstantiationException as error:
        if isinstance(error.__cause__, ConfigError):  # a part of it has said what is wrong
            raise error.__cause__ from error
        if "No module named 'torch'" in f"{error} {error.__cause__}":
            words = "needs PyTorch; install it with pip install 'privfed[networks]'"
            raise ConfigError(f"{target}: {words}") from error
        reason = " ".join(str(error.__cause__ or error).split())
        raise ConfigError(f"{target}: cannot be made: {reason}") from error
    if not callable(factory):
        raise ConfigError(f"{plain}: has no _target_ to say what to make")

    def make(**more: Any) -> Any:
        try:
            inspect.signature(factory.func).bind(**factory.keywords, **more)
        except TypeError as error:
            raise ConfigError(f"{target}: its settings do not fit: {error}") from error
        check_settings(group, factory.func, factory.keywords)
        return factory(**more)

    return make


def without_kinds(node: Any) -> Any:
    """Return the same settings without `kind` where there is a `_target_`, at any depth."""
    if isinstance(node, dict):
        inner = {key: without_kinds(value) for key, value in node.items()}
        return {k: v for k, v in inner.items() if k != "kind" or "_target_" not in inner}
    return [without_kinds(value) for value in node] if isinstance(node, list) else node
