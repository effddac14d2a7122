"""Replace settings that are named `theory` by what the chosen theorem says."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from privfed.algorithm.theory import THEORY, Problem, Theory
from privfed.config.instantiation import build
from privfed.data.source import DataSource
from privfed.foundation.errors import ConfigError

USUAL_SHARE = 0.55
"""Share of the initialiser where `privacy.init_share` leaves it to the algorithm."""


def follow_theory(cfg: DictConfig, source: DataSource, k: int) -> list[str]:
    """Set every setting whose value is `theory`, in place.

    Args:
        cfg: resolved configuration; its section `theory` names a theorem and gives constants.
        source: data of the run; simulated data know their constants.
        k: dimension of the representation.

    Returns:
        Notes on the settings, and on assumptions that the problem violates.

    Raises:
        ConfigError: if a constant is missing, or the theorem says nothing about a setting.
    """
    known = source.constants() if source.simulated else {}
    first = cfg.privacy.init_share or USUAL_SHARE
    share = 1.0 - float(first) if cfg.init.client else 1.0
    problem = Problem(
        source.n, source.m, source.d, k, float(cfg.eps), float(cfg.delta), share, known
    )
    theory: Theory = build(cfg.theory, "theory")(problem=problem)
    for key, value in theory.settings.items():
        if OmegaConf.select(cfg, key) == THEORY:
            OmegaConf.update(cfg, key, value)
    for key in _named(OmegaConf.to_container(cfg)):
        raise ConfigError.of(key, THEORY, f"{theory.name} says nothing about it")
    return theory.notes()


def _named(node: Any, place: str = "") -> list[str]:
    """Return the full keys of settings whose value is `theory`."""
    if isinstance(node, dict):
        return [key for name, each in node.items() for key in _named(each, f"{place}.{name}")]
    return [place[1:]] if node == THEORY else []
