"""Finished runs, read back from their folders, and the settings in which they differ."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from omegaconf import OmegaConf

from privfed.config.option_groups import GROUPS
from privfed.config.saved_config import load_config
from privfed.foundation.errors import ConfigError
from privfed.privacy.statement import claimed
from privfed.report.wording import Row, error_of

SWEEP = "sweep.json"
"""File with the settings of a sweep, in the sweep's folder."""
BUDGETS = ("eps", "privacy.noise_multiplier")
"""Keys that decide how much privacy is spent; runs that differ only in them form one line."""
UNIMPORTANT = ("seed", "out", "logger", "runtime")
"""Keys that do not change the expected error; ignored unless a sweep varies them."""


@dataclass(frozen=True)
class Run:
    """Finished run.

    Attributes:
        folder: Folder of the run.
        result: Content of result.json.
        config: Value of every dotted key, and names of the chosen groups.
    """

    folder: Path
    result: Row
    config: dict[str, Any]

    @property
    def error(self) -> float:
        """Return the error in the simulation; NaN if there is none."""
        return float(self.result["metrics"].get(error_of(self.result["metrics"]), math.nan))

    @property
    def epsilon(self) -> float:
        """Return the epsilon spent."""
        return float(self.result["privacy"]["epsilon"])

    @cached_property
    def rows(self) -> list[Row]:
        """Return the rows of rounds.csv."""
        return read_rows(self.folder)

    @cached_property
    def details(self) -> Row:
        """Return the numbers behind the charts; empty if they were not kept."""
        path = self.folder / "details.json"
        return read_json(path) if path.exists() else {}

    def rival(self, name: str) -> float | None:
        """Return the error of another predictor on the same users; None if there is none."""
        value = self.result["metrics"].get(f"{error_of(self.result['metrics'])}_{name}")
        return None if value is None else float(value)


@dataclass(frozen=True, eq=False)
class Setting:
    """Runs that differ only in their seeds.

    Attributes:
        line: Values in which it differs from other settings, except for the budget.
        budget: Values of the budget's keys in which it differs.
        runs: The runs, by seed.
    """

    line: dict[str, Any]
    budget: dict[str, Any]
    runs: list[Run]

    @property
    def name(self) -> str:
        """Return the name of the setting."""
        return settings_in_words(self.line | self.budget) or self.runs[0].result["algo"]

    @property
    def error(self) -> float:
        """Return the mean error over the seeds; NaN if a run has none."""
        return fmean(run.error for run in self.runs)

    @property
    def spread(self) -> float | None:
        """Return the standard deviation over the seeds; None for one seed, or without errors."""
        return spread(run.error for run in self.runs)

    @property
    def epsilon(self) -> float:
        """Return the largest epsilon that a run spent."""
        return max(run.epsilon for run in self.runs)

    @property
    def claim(self) -> str:
        """Return what its runs guarantee; see :func:`privfed.privacy.statement.claimed`."""
        return " or ".join(dict.fromkeys(claimed(run.result["privacy"]) for run in self.runs))


def spread(values: Iterable[float]) -> float | None:
    """Return the sample standard deviation; None for fewer than two values, or for a NaN."""
    known = list(values)
    return stdev(known) if len(known) > 1 and not any(map(math.isnan, known)) else None


def settings_in_words(settings: dict[str, Any]) -> str:
    """Return settings as text, such as `algo=fedrep, eps=1`."""
    return ", ".join(f"{key}={shown(value)}" for key, value in settings.items())


def shown(value: Any) -> str:
    """Return a setting's value as it is written on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def find(paths: Sequence[Path]) -> list[Run]:
    """Return the runs in these folders, or below them.

    Audits, and runs that a later run replaced, are left out.

    Args:
        paths: Folders.

    Raises:
        ConfigError: a folder does not exist, or has no finished run.
    """
    folders: dict[Path, Path] = {}
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"{path}: there is no such folder")
        below = (
            [path]
            if (path / "result.json").exists()
            else [file.parent for file in sorted(path.rglob("result.json"))]
        )
        kept = [
            folder for folder in below if folder == path or not folder.name.startswith("previous-")
        ]
        if not kept:
            raise ConfigError(
                f"{path}: there is no finished run in it, as no result.json is there or below"
            )
        folders |= {folder.resolve(): folder for folder in kept}
    runs = [read_run(folder) for folder in folders.values()]
    real = [run for run in runs if "audit" not in run.result]
    if not real:
        raise ConfigError(
            f"{paths[0]}: holds an audit, whose page is audit.html; there is no run to report"
        )
    return real


def read_run(folder: Path) -> Run:
    """Return the run in a folder.

    Raises:
        ConfigError: it cannot be read.
    """
    result = read_json(folder / "result.json")
    missing = [
        key for key in ("algo", "seed", "metrics", "privacy", "versions") if key not in result
    ]
    if missing:
        raise ConfigError(
            f"{folder / 'result.json'}: is not the result of a run, as it has no {missing[0]!r}"
        )
    cfg = OmegaConf.to_container(load_config(folder))
    assert isinstance(cfg, dict)
    config = dict(flat(cfg))
    for group, name in (
        ("algo", "name"),
        ("data", "name"),
        ("data", "_target_"),
        ("init", "strategy._target_"),
    ):
        config.setdefault(group, str(config.get(f"{group}.{name}", "")).rpartition(".")[2].lower())
    sweep = asked(folder)
    config |= {key: value for key, value in sweep.items() if key in GROUPS}
    kept = {
        key: value
        for key, value in config.items()
        if key.split(".")[0] not in UNIMPORTANT or key in sweep
    }
    return Run(
        folder, result, {key: value for key, value in kept.items() if key.split(".")[-1] != "seed"}
    )


def asked(folder: Path) -> dict[str, str]:
    """Return the swept settings of a run; empty if the run belongs to no sweep."""
    path = folder.parent / SWEEP
    runs = read_json(path).get("runs", {}) if path.exists() else {}
    return dict(runs.get(folder.name, {}))


def read_json(path: Path) -> Row:
    """Return the object in a JSON file.

    Raises:
        ConfigError: the file cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: cannot be read (it holds no JSON object)")
    return content


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of rounds.csv; empty if the file is absent.

    Raises:
        ConfigError: the file cannot be read.
    """
    path = folder / "rounds.csv"
    if not path.exists():
        return []
    whole = ("step", "round", "missing_users")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [
                {
                    key: text if key == "task" else int(text) if key in whole else float(text)
                    for key, text in line.items()
                    if text
                }
                for line in csv.DictReader(file)
            ]
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error


def flat(settings: dict[Any, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield every setting with its dotted key."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def settings_of(runs: Sequence[Run]) -> list[Setting]:
    """Return the settings of runs, ordered by the values in which they differ.

    Runs that differ only in their seeds share a setting.
    """
    keys = list(dict.fromkeys(key for run in runs for key in run.config))
    rest = [key for key in keys if key not in BUDGETS]
    telling = distinguishing([run.config for run in runs], rest)
    budgets = [key for key in BUDGETS if len({repr(run.config.get(key)) for run in runs}) > 1]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(repr([run.config.get(key, ...) for key in keys]), []).append(run)
    made = [
        Setting(
            {key: together[0].config.get(key, "-") for key in telling},
            {key: together[0].config.get(key) for key in budgets},
            sorted(together, key=lambda run: run.result["seed"]),
        )
        for together in groups.values()
    ]
    return sorted(
        made,
        key=lambda setting: [order(value) for value in (setting.line | setting.budget).values()],
    )


def distinguishing(configs: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[str]:
    """Return a minimal list of keys in which the configurations differ, the main keys first."""

    def classes(chosen: Sequence[str]) -> int:
        return len({repr([config.get(key, ...) for key in chosen]) for config in configs})

    telling: list[str] = []
    for key in sorted(keys, key=lambda key: (wiring(key), key not in GROUPS, key.count("."))):
        if classes([*telling, key]) > classes(telling):
            telling.append(key)
    return telling


def differing(settings: Sequence[Setting]) -> list[str]:
    """Return the keys that a person may set and that differ between settings."""
    configs = [setting.runs[0].config for setting in settings]
    keys = [
        key for key in dict.fromkeys(key for config in configs for key in config) if not wiring(key)
    ]
    keys.sort(key=lambda key: key not in GROUPS)
    return [key for key in keys if len({repr(config.get(key, ...)) for config in configs}) > 1]


def wiring(key: str) -> bool:
    """Return whether a key follows from others, so that nobody sets it."""
    return "_target_" in key or ".strategy." in key or ".client." in key or key.endswith(".name")


def order(value: Any) -> tuple[int, float, str]:
    """Return a sort key: numbers by size, then words."""
    number = isinstance(value, int | float)
    return (0, float(value), "") if number else (1, 0.0, str(value))
