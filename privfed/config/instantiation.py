"""Make the objects of a configuration: the constructor in `_target_`, with checked settings."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from privfed.foundation.constraints import check_settings, parameters_of
from privfed.foundation.errors import ConfigError

Settings = Mapping[str, Any]


def build(node: Settings | DictConfig, group: str = "") -> Callable[..., Any]:
    """Return a function that makes what a section of the configuration describes.

    Args:
        node: settings with a `_target_`; their keys in `ABOUT` describe the section and are no
            arguments.
        group: group of the configuration that the settings belong to, for messages.

    Returns:
        A function of further keyword arguments that makes the object. It raises a ConfigError if
            settings are not allowed.

    Raises:
        ConfigError: if the target cannot be found, or settings do not fit.
    """
    target = node.get("_target_")
    plain = OmegaConf.to_container(node) if isinstance(node, DictConfig) else dict(node)
    try:
        factory = instantiate(without_about(plain), _partial_=True)
    except InstantiationException as error:
        # A nested object has reported what is wrong.
        if isinstance(error.__cause__, ConfigError):
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


def filled(node: Settings | DictConfig, available: Settings) -> dict[str, Any]:
    """Return the settings of a target, with further ones that its constructor names.

    Args:
        node: settings with a `_target_`; they take precedence.
        available: further settings, such as all of `algo`; the target's constructor takes those
            that its parameters name.
    """
    plain = OmegaConf.to_container(node) if isinstance(node, DictConfig) else dict(node)
    given = {str(key): value for key, value in plain.items()}  # type: ignore[union-attr]
    try:
        made = pkgutil.resolve_name(str(given.get("_target_")))
    except Exception:
        # To import somebody's own module may raise anything; `build` reports it, in one line.
        return given
    wanted = [name for name in parameters_of(made) if name in available]
    return {**given, **{name: available[name] for name in wanted if name not in given}}


def algorithm_settings(cfg: DictConfig) -> dict[str, Any]:
    """Return the settings that an algorithm's strategy and client may name."""
    algo = OmegaConf.to_container(cfg.algo)
    model = without_about(OmegaConf.to_container(cfg.model))
    assert isinstance(algo, dict)
    settings = {str(key): value for key, value in algo.items()}
    top = {"rounds": cfg.rounds, "seed": cfg.seed, "force": cfg.get("force", False)}
    return {**settings, **top, "model": model}


ABOUT = ("kind", "open", "algo")
"""Keys that describe a section."""


def without_about(node: Any) -> Any:
    """Return the same settings without keys that describe sections, at any depth."""
    if isinstance(node, dict):
        inner = {key: without_about(value) for key, value in node.items()}
        return {k: v for k, v in inner.items() if k not in ABOUT or "_target_" not in inner}
    return [without_about(value) for value in node] if isinstance(node, list) else node
