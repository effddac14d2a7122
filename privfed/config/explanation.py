"""One-line explanations of a wrong setting: the key, what was given, and the nearest names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException

from privfed.config.option_groups import CONF, GROUPS, options
from privfed.foundation.errors import ConfigError, nearest


def check_spelling(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Raise a ConfigError for an override that is not key=value, or an option that is unknown."""
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key[:1].isalpha() or key.startswith("hydra"):
            hint = "settings are written key=value, for example eps=1; see --help"
            raise ConfigError(f"{override}: {hint}")
        if key in GROUPS and value not in options(key, folders):
            raise ConfigError.of(key, value, nearest(value, options(key, folders)))


def explain(
    error: Exception,
    overrides: Sequence[str],
    extra: Sequence[str],
    check: Callable[[DictConfig], None] = lambda cfg: None,
) -> ConfigError:
    """Return the error of a composition as one line: an unknown key, or the parser's own words.

    Args:
        error: what the composition raised.
        overrides: settings that were given.
        extra: overrides that are not the user's.
        check: raises a ConfigError if the chosen groups do not fit together, which explains more
            than a key that is unknown for that reason.
    """
    chosen = [o for o in overrides if o.partition("=")[0] in GROUPS]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = hydra_compose("config", [*chosen, *extra])
        check(cfg)
    except ConfigError as mismatch:
        return mismatch
    except (HydraException, OmegaConfBaseException):
        cfg = OmegaConf.create({})
    known = list(flat_keys(OmegaConf.to_container(cfg)))
    for override in overrides:
        key = override.partition("=")[0]
        if known and key not in GROUPS and key not in known:
            return no_such_setting(override, key, cfg)
    if isinstance(error, InterpolationKeyError):
        missing = str(error).partition("'")[2].partition("'")[0]
        return ConfigError(
            f"{missing}: there is no such setting, but the chosen groups need it; they do not fit "
            "together"
        )
    for override in overrides:
        try:
            OverridesParser.create().parse_override(override)
        except HydraException:
            return ConfigError(
                f"{override}: cannot be read; values with special characters need quotes, as in "
                "'key=\"a, b\"'"
            )
    return ConfigError("configuration: " + " ".join(str(error).split()))


def no_such_setting(override: str, key: str, cfg: DictConfig) -> ConfigError:
    """Return the error for an unknown key, with the nearest names."""
    known = list(flat_keys(OmegaConf.to_container(cfg)))
    close = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
    hint = f"did you mean {close[0]!r}?" if close else nearest(key, known).split(" known:")[0]
    hint = "see --help for the keys" if hint.startswith("known:") else hint
    group, _, name = key.partition(".")
    if not close and (owners := _owners(group, name, override.partition("=")[2])):
        hint = f"it is a setting of {' and '.join(owners)}: add {owners[0]}"
    return ConfigError(f"{override}: there is no setting {key!r}; {hint}")


def _owners(group: str, name: str, value: str) -> list[str]:
    """Return the options of a group that have a setting, such as data=table for `user`.

    Several have a path: that of a table is a file, and that of images a folder. Options for
    registered users are named only where no other has the setting: servers choose them.
    """
    if group not in GROUPS or not name:
        return []
    read = {
        f"{group}={option}": OmegaConf.to_container(
            OmegaConf.load(CONF / group / f"{option}.yaml"), resolve=False
        )
        for option in options(group)
    }
    found = {
        key: cfg for key, cfg in read.items() if isinstance(cfg, dict) and name.split(".")[0] in cfg
    }
    if name == "path":
        is_file = bool(Path(value).suffix) and not Path(value).is_dir()
        found = {key: cfg for key, cfg in found.items() if (cfg.get("kind") == "table") == is_file}
    return [key for key in found if not key.startswith("data=remote")] or list(found)


def flat_keys(settings: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted key of every setting."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from flat_keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
