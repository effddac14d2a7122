"""From overrides on the command line to one resolved configuration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from privfed.config.explanation import check_spelling, explain, no_such_setting
from privfed.config.option_groups import CONF, GROUPS, options
from privfed.foundation.errors import ConfigError, check_whole

REQUIRED = ("name", "guarantee", "rounds", "strategy", "client")
"""Keys that the config of every algorithm has."""
LINEAR, NETWORK, FEATURES, TABLE = "linear", "network", "features", "table"
"""Kinds of models; a table has linear models in its own units."""
OPEN_SECTIONS = ("model.module.", "data.bounds")
"""Sections with keys that no config file lists, if the chosen config has `open: true`.

They are arguments of a person's own module, and bounds of a person's columns.
"""


def compose(overrides: Sequence[str], config_dir: str | None = None) -> DictConfig:
    """Return the resolved configuration.

    Args:
        overrides: settings such as "algo=fedrep" and "eps=1"; later ones win.
        config_dir: folder with further configs, besides those of the package.

    Raises:
        ConfigError: one line that names the key, what was given and what is allowed.
    """
    folders = [CONF]
    if config_dir is not None:
        folders.append(Path(config_dir).resolve())
        if not folders[-1].is_dir():
            raise ConfigError(f"--config-dir {config_dir}: no such folder")
    check_spelling(overrides, folders)
    extra = [f'hydra.searchpath=["file://{folders[1]}"]'] if folders[1:] else []
    overrides = [*_default_algorithm(overrides, folders), *overrides]
    later = [override for override in overrides if override.startswith(OPEN_SECTIONS)]
    known = [override for override in overrides if override not in later]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = hydra_compose("config", [*known, *extra])
        for override in later:
            _set_open(cfg, override)
        _check_algorithm(cfg, folders)
        OmegaConf.resolve(cfg)
    except YAMLError as error:
        words = " ".join(str(error).split())
        raise ConfigError(f"--config-dir {config_dir}: not valid YAML: {words}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(
            error, overrides, extra, partial(_check_algorithm, folders=folders)
        ) from error
    check_whole("seed", cfg.seed, least=0)
    return cfg


def model_kind(cfg: DictConfig) -> str:
    """Return the kind of model: LINEAR, NETWORK, FEATURES (heads on public features) or TABLE."""
    return TABLE if cfg.data.get("kind") == TABLE else str(cfg.model.get("kind", LINEAR))


def _default_algorithm(overrides: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """Return the choice of algorithm that the config of the chosen data asks for, if any.

    If neither algorithm nor preset is chosen, the key `algo` in the file of the chosen data names
    the algorithm: a table has another default algorithm than the default problem.
    """
    chosen = dict(override.split("=", 1) for override in overrides)
    if "data" not in chosen or "algo" in chosen or "preset" in chosen:
        return []
    paths = [folder / "data" / f"{chosen['data']}.yaml" for folder in folders]
    path = next(path for path in paths if path.exists())
    named = OmegaConf.select(OmegaConf.load(path), "algo")
    return [] if named is None else [f"algo={named}"]


def _set_open(cfg: DictConfig, override: str) -> None:
    """Set a key of a section in which a person may add keys."""
    parsed = OverridesParser.create().parse_override(override)
    key = str(parsed.key_or_group)
    section = cfg[key.partition(".")[0]]
    if OmegaConf.select(cfg, key, throw_on_missing=False) is None and not section.get("open"):
        raise no_such_setting(override, key, cfg)
    OmegaConf.update(cfg, key, parsed.value(), force_add=True)


def _check_algorithm(cfg: DictConfig, folders: Sequence[Path]) -> None:
    """Check that the algorithm's config is complete, and that model and data are of its kind."""
    for key in REQUIRED:
        if key not in cfg.algo:
            needed = ", ".join(REQUIRED)
            raise ConfigError(
                f"algo.{key}: missing in the algorithm's config, which needs {needed}"
            )
    guarantee = str(cfg.algo.guarantee)
    if guarantee not in ("worst-case", "none") and not guarantee.startswith("under "):
        allowed = "must be worst-case, none, or 'under' and an assumption"
        raise ConfigError.of("algo.guarantee", guarantee, allowed)
    kind, needed, name = model_kind(cfg), cfg.algo.get("kind", LINEAR), cfg.algo.name
    if kind != needed:
        other = f"{kind}/{name}" if f"{kind}/{name}" in options("algo", folders) else ""
        hint = f"; choose algo={other}" if other else ""
        models = {
            LINEAR: "a linear map",
            NETWORK: "a network (model=mlp, lenet or module)",
            FEATURES: "model=features",
            TABLE: "a table (data=table)",
        }
        if kind == TABLE and not other:
            known = [f"algo={each}" for each in options("algo", folders) if each[:6] == "table/"]
            hint = f"; choose {' or '.join(known)}"
        words = f"works with {models.get(needed, needed)}, not with {models.get(kind, kind)}"
        raise ConfigError.of("algo", name, words + hint)
    if kind in (NETWORK, FEATURES) and cfg.data.get("kind") != "images":
        files = (path for folder in folders for path in sorted((folder / "data").glob("*.yaml")))
        images = [p.stem for p in files if "kind: images" in p.read_text(encoding="utf-8")]
        names = ", ".join(images)
        raise ConfigError(f"data: this model classifies pictures; choose data= one of {names}")
    missing = [key for key in sorted(OmegaConf.missing_keys(cfg)) if key.startswith("model.")]
    if missing:
        raise ConfigError(f"{missing[0]}: has no value; the chosen model needs one")


__all__ = ["CONF", "FEATURES", "GROUPS", "LINEAR", "NETWORK", "TABLE", "compose", "model_kind"]
