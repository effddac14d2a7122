"""From the command line to one resolved configuration, with errors a person can act on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException
from yaml import YAMLError

from privfed.foundation.errors import ConfigError, check_whole, nearest

CONF = Path(__file__).resolve().parents[2] / "conf"
HIDDEN = ("defaults", "name", "kind", "strategy", "client", "guarantee", "_target_")
"""What nobody sets, so that help does not show it."""
REQUIRED = ("name", "guarantee", "rounds", "strategy", "client")
LINEAR, NETWORK, FEATURES, TABLE = "linear", "network", "features", "table"
"""Kinds of models; a table has linear ones in units of its own."""
GROUPS = ("algo", "init", "data", "privacy", "runtime", "model", "preset")


def compose(overrides: Sequence[str], config_dir: str | None = None) -> DictConfig:
    """The resolved configuration for overrides such as ["algo=fedrep", "eps=1"]; config_dir adds a folder of one's own."""
    folders = [CONF]
    if config_dir is not None:
        folders.append(Path(config_dir).resolve())
        if not folders[-1].is_dir():
            raise ConfigError(f"--config-dir {config_dir}: no such folder")
    _check_overrides(overrides, folders)
    extra = [f'hydra.searchpath=["file://{folders[1]}"]'] if folders[1:] else []
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            chosen = _variant(overrides, extra, folders)
            # Arguments of somebody's own module, and bounds of columns, have names that no file knows.
            free = (
                ("model.module.", "data.bounds")
                if "data=table" in chosen or "model=module" in chosen
                else ()
            )
            chosen = [
                f"++{override}" if override.startswith(free) else override for override in chosen
            ]
            cfg = hydra_compose("config", [*chosen, *extra])
        for key in REQUIRED:
            if key not in cfg.algo:
                raise ConfigError(
                    f"algo.{key}: missing in the algorithm's config, which needs {', '.join(REQUIRED)}"
                )
        _check_kind(cfg, folders)
        missing = [key for key in sorted(OmegaConf.missing_keys(cfg)) if key.startswith("model.")]
        if missing:
            raise ConfigError(f"{missing[0]}: has no value; the chosen model needs one")
        OmegaConf.resolve(cfg)
    except YAMLError as error:
        raise ConfigError(
            f"--config-dir {config_dir}: not valid YAML: {' '.join(str(error).split())}"
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise _explain(error, overrides, extra) from error
    check_whole("seed", cfg.seed, least=0)
    return cfg


def kind_of(cfg: DictConfig) -> str:
    """What is learnt: a linear map (of a table's encoded rows), a network, or heads on public features."""
    model = cfg.model
    return (
        NETWORK
        if "module" in model
        else FEATURES
        if "pictures" in model
        else TABLE
        if "most_rows" in cfg.data
        else LINEAR
    )


def _variant(overrides: Sequence[str], extra: Sequence[str], folders: Sequence[Path]) -> list[str]:
    """The overrides with another config of the chosen algorithm, where it has one for the chosen kind of model."""
    groups = [override for override in overrides if override.partition("=")[0] in GROUPS]
    if not any(override.startswith(("model=", "preset=", "data=")) for override in groups):
        return list(overrides)
    cfg = hydra_compose("config", [*groups, *extra])
    kind, name = kind_of(cfg), cfg.algo.get("name")
    exists = any((folder / "algo" / kind / f"{name}.yaml").exists() for folder in folders)
    if not exists or cfg.algo.get("kind", LINEAR) == kind:
        return list(overrides)
    return [
        *(override for override in overrides if not override.startswith("algo=")),
        f"algo={kind}/{name}",
    ]


def _check_kind(cfg: DictConfig, folders: Sequence[Path]) -> None:
    """An algorithm for linear maps does not take a network, nor the other way round; a network needs classes."""
    kind, needed = kind_of(cfg), cfg.algo.get("kind", LINEAR)
    if kind == TABLE != needed:
        known = sorted(
            {path.stem for folder in folders for path in (folder / "algo" / TABLE).glob("*.yaml")}
        )
        raise ConfigError.of(
            "algo",
            cfg.algo.name,
            f"does not read tables; with data=table choose {' or '.join(known)}",
        )
    if kind != needed:
        models = {
            LINEAR: "a linear map", NETWORK: "a network (model=mlp, lenet or module)", FEATURES: "model=features",
            TABLE: "data=table",
        }  # fmt: skip
        raise ConfigError.of(
            "algo", cfg.algo.name, f"works with {models[needed]}, not with {models[kind]}"
        )
    if kind in (NETWORK, FEATURES) and "classes" not in cfg.data:
        files = (path for folder in folders for path in sorted((folder / "data").glob("*.yaml")))
        images = [path.stem for path in files if "classes:" in path.read_text(encoding="utf-8")]
        raise ConfigError(
            f"data: this model classifies pictures; choose data= one of {', '.join(images)}"
        )


def recall(folder: Path, overrides: Sequence[str]) -> DictConfig:
    """The configuration of an interrupted run, exactly as it was."""
    if overrides:
        raise ConfigError(
            f"{overrides[0]}: a resumed run keeps its settings; give none beside --resume"
        )
    if not (folder / "config.yaml").exists():
        raise ConfigError(f"--resume {folder}: there is no run in that folder")
    if (folder / "result.json").exists():
        raise ConfigError(f"--resume {folder}: that run is complete; there is nothing to resume")
    return load(folder)


def finished(folder: Path, overrides: Sequence[str]) -> DictConfig:
    """The configuration of a complete run."""
    if overrides:
        raise ConfigError(
            f"{overrides[0]}: a published run keeps its settings; give none beside --publish"
        )
    if not (folder / "result.json").exists():
        raise ConfigError(f"--publish {folder}: there is no complete run in that folder")
    return load(folder)


def load(folder: Path) -> DictConfig:
    """The configuration of the run in a folder."""
    try:
        cfg = OmegaConf.load(folder / "config.yaml")
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(
            f"{folder / 'config.yaml'}: cannot be read: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(cfg, DictConfig):
        raise ConfigError(f"{folder / 'config.yaml'}: is not a configuration")
    return cfg


def options(group: str, folders: Sequence[Path] = (CONF,)) -> list[str]:
    """The names one can choose for a group."""
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def describe(group: str) -> Iterator[tuple[str, str]]:
    """Each choice of a group with the first comment of its file."""
    for name in options(group):
        lines = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
        comments = [
            line[2:] for line in lines if line.startswith("# ") and not line.startswith("# @")
        ]
        yield name, comments[0] if comments else ""


def keys(path: Path, group: str = "") -> Iterator[str]:
    """The lines of a config file that a user may want to set, with their comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if f"{group}:" in lines:  # a file that also sets other groups has its own keys indented
        lines = [line[2:] for line in lines[lines.index(f"{group}:") + 1 :]]
    inside = ""
    for line in lines:
        key = line.strip().partition(":")[0]
        if not line.startswith((" ", "#")):
            inside = key
        if line[:1] not in ("#", "") and inside not in HIDDEN:
            yield line


def flatten(settings: Any, prefix: str = "") -> Iterator[str]:
    """The dotted key of every setting."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _check_overrides(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key[:1].isalpha() or key.startswith("hydra"):
            raise ConfigError(
                f"{override}: settings are written key=value, for example eps=1; see --help"
            )
        if key in GROUPS and value not in options(key, folders):
            raise ConfigError.of(key, value, nearest(value, options(key, folders)))


def _explain(error: Exception, overrides: Sequence[str], extra: Sequence[str]) -> ConfigError:
    """One line: the key that does not exist with its nearest names, or the parser's own words."""
    chosen = [o for o in overrides if o.partition("=")[0] in GROUPS]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            known = list(
                flatten(OmegaConf.to_container(hydra_compose("config", [*chosen, *extra])))
            )
    except HydraException:
        known = []
    for override in overrides:
        key = override.partition("=")[0]
        if known and key not in GROUPS and key not in known:
            close = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
            hint = (
                f"did you mean {close[0]!r}?" if close else nearest(key, known).split(" known:")[0]
            )
            hint = "see --help for the keys" if hint.startswith("known:") else hint
            return ConfigError(f"{override}: there is no setting {key!r}; {hint}")
    if isinstance(error, InterpolationKeyError):
        missing = str(error).partition("'")[2].partition("'")[0]
        return ConfigError(
            f"{missing}: there is no such setting, but the chosen groups need it; they do not fit together"
        )
    for override in overrides:
        try:
            OverridesParser.create().parse_override(override)
        except HydraException:
            return ConfigError(
                f"{override}: cannot be read; values with special characters need quotes, as in 'key=\"a, b\"'"
            )
    return ConfigError("configuration: " + " ".join(str(error).split()))
