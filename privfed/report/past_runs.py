"""Finished runs, read back from their folders, and what tells them apart."""

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

from privfed.config.choices import GROUPS
from privfed.config.stored import load
from privfed.foundation.errors import ConfigError
from privfed.report.wording import Row, error_of

SWEEP = "sweep.json"
"""What was asked for in a sweep, in the sweep's folder."""
BUDGETS = ("eps", "privacy.noise_multiplier")
"""What decides how much privacy is spent: runs that differ in it alone are points of one line."""
UNIMPORTANT = ("seed", "out", "logger", "runtime")
"""What leaves the expected error as it is, unless a sweep is about it."""


@dataclass(frozen=True)
class Run:
    """A finished run. config: the value of every dotted key, and the names of the chosen groups."""

    folder: Path
    result: Row
    config: dict[str, Any]

    @property
    def error(self) -> float:
        """Its error in the simulation; nan where nobody told any."""
        return float(self.result["metrics"].get(error_of(self.result["metrics"]), math.nan))

    @property
    def epsilon(self) -> float:
        """What it spent."""
        return float(self.result["privacy"]["epsilon"])

    @cached_property
    def rows(self) -> list[Row]:
        """Its steps."""
        return read_rows(self.folder)

    @cached_property
    def details(self) -> Row:
        """The numbers behind its pictures, as far as they were kept."""
        path = self.folder / "details.json"
        return read_json(path) if path.exists() else {}

    def rival(self, name: str) -> float | None:
        """The error of another predictor on the same users."""
        value = self.result["metrics"].get(f"{error_of(self.result['metrics'])}_{name}")
        return None if value is None else float(value)


@dataclass(frozen=True, eq=False)
class Setting:
    """Runs that differ in nothing but their seeds. line: what tells it from others, but for the budget."""

    line: dict[str, Any]
    budget: dict[str, Any]
    runs: list[Run]

    @property
    def name(self) -> str:
        """In words."""
        return in_words(self.line | self.budget) or self.runs[0].result["algo"]

    @property
    def error(self) -> float:
        """Mean over the seeds."""
        return fmean(run.error for run in self.runs)

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds, where there are several."""
        return spread(run.error for run in self.runs)

    @property
    def epsilon(self) -> float:
        """The most that one of its runs spent."""
        return max(run.epsilon for run in self.runs)


def spread(values: Iterable[float]) -> float | None:
    """The standard deviation of several values, estimated from them."""
    known = list(values)
    return stdev(known) if len(known) > 1 else None


def in_words(settings: dict[str, Any]) -> str:
    """`algo=fedrep, eps=1`."""
    return ", ".join(f"{key}={shown(value)}" for key, value in settings.items())


def shown(value: Any) -> str:
    """A setting's value as one would write it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def find(paths: Sequence[Path]) -> list[Run]:
    """The runs in these folders, or below them; audits and what a later run has replaced are left out."""
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
    runs = [read(folder) for folder in folders.values()]
    real = [run for run in runs if "audit" not in run.result]
    if not real:
        raise ConfigError(
            f"{paths[0]}: holds an audit, whose page is audit.html; there is no run to report"
        )
    return real


def read(folder: Path) -> Run:
    """The run in a folder."""
    result = read_json(folder / "result.json")
    missing = [
        key
        for key in ("algo", "seed", "metrics", "privacy", "time", "versions")
        if key not in result
    ]
    if missing:
        raise ConfigError(
            f"{folder / 'result.json'}: is not the result of a run, as it has no {missing[0]!r}"
        )
    cfg = OmegaConf.to_container(load(folder))
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
    """The settings by which a sweep tells its runs apart; empty for a run of its own."""
    path = folder.parent / SWEEP
    runs = read_json(path).get("runs", {}) if path.exists() else {}
    return dict(runs.get(folder.name, {}))


def read_json(path: Path) -> Row:
    """The object in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: cannot be read (it holds no JSON object)")
    return content


def read_rows(folder: Path) -> list[Row]:
    """The steps in rounds.csv; none where it is absent."""
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
    """Every setting with its dotted key."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def settings_of(runs: Sequence[Run]) -> list[Setting]:
    """The runs, those that differ in their seeds alone together; in order of what tells them apart."""
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
    """As few of the keys as tell these configurations apart, those that a person sets first."""

    def classes(chosen: Sequence[str]) -> int:
        return len({repr([config.get(key, ...) for key in chosen]) for config in configs})

    telling: list[str] = []
    for key in sorted(keys, key=lambda key: (wiring(key), key not in GROUPS, key.count("."))):
        if classes([*telling, key]) > classes(telling):
            telling.append(key)
    return telling


def differing(settings: Sequence[Setting]) -> list[str]:
    """Keys that a person sets and that are not the same in all settings."""
    configs = [setting.runs[0].config for setting in settings]
    keys = [
        key for key in dict.fromkeys(key for config in configs for key in config) if not wiring(key)
    ]
    keys.sort(key=lambda key: key not in GROUPS)
    return [key for key in keys if len({repr(config.get(key, ...)) for config in configs}) > 1]


def wiring(key: str) -> bool:
    """Whether a key follows from others, so that nobody sets it."""
    return "_target_" in key or ".strategy." in key or ".client." in key or key.endswith(".name")


def order(value: Any) -> tuple[int, float, str]:
    """Numbers by size, then words."""
    number = isinstance(value, int | float)
    return (0, float(value), "") if number else (1, 0.0, str(value))
