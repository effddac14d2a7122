"""Optional logbooks of a run: TensorBoard and MLflow.

They get the content of rounds.csv and result.json, and nothing else. Times are whole seconds. Where
users are real, all times are the day on which the run began: how long steps take would tell how
many rows users have.
"""

from __future__ import annotations

import fcntl
import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from privfed.foundation.errors import ConfigError, nearest
from privfed.privacy.statement import label
from privfed.report.past_runs import flat
from privfed.report.wording import Row


class Logger:
    """Base class of logbooks.

    The constructor imports the package, so that a missing package is noticed before anything is
    done.

    Raises:
        ConfigError: the package is missing.
    """

    package = ""
    now: Callable[[], int]
    """Returns the time of what is recorded, in seconds since 1970."""

    def __init__(self) -> None:
        try:
            self.module = importlib.import_module(self.package)
        except ImportError as error:
            name = type(self).__name__.lower()
            allowed = (
                f"needs the package {self.package}; install it with pip install 'privfed[loggers]'"
            )
            raise ConfigError.of("logger", name, allowed) from error
        self.now = now
        self.dated = True
        """Whether times are told, rather than the day only."""

    def start(self, cfg: DictConfig, folder: Path) -> None:
        """Record that a run begins, or continues, in this folder."""

    def step(self, row: Row) -> None:
        """Record a step; `row` is its line of rounds.csv."""

    def end(self, result: Row) -> None:
        """Record the end of the run; `result` is its result.json."""


class TensorBoard(Logger):
    """Writes event files to tensorboard/ in the run's folder: tensorboard --logdir runs."""

    package = "tensorboardX"

    def start(self, cfg: DictConfig, folder: Path) -> None:
        """Open an event file; a resumed run has several."""
        from privfed.report.run_files import config_text

        self.folder = folder / "tensorboard"
        self.writer = self.module.SummaryWriter(str(self.folder), write_to_disk=True)
        self.writer.add_text("config", f"```yaml\n{config_text(cfg)}```", walltime=self.now())

    def step(self, row: Row) -> None:
        """Add a point to every curve."""
        for name, value in numbers(row).items():
            self.writer.add_scalar(f"rounds/{name}", value, row["step"], walltime=self.now())

    def end(self, result: Row) -> None:
        """Add the final numbers."""
        for name, value in final(result).items():
            self.writer.add_scalar(f"result/{name}", value, result["rounds"], walltime=self.now())
        for name, text in label(result).items():
            self.writer.add_text(name, text, walltime=self.now())
        self.writer.close()
        if not self.dated:  # when the last event was written tells how long the run took
            for path in (*self.folder.iterdir(), self.folder):
                os.utime(path, (self.now(), self.now()))


class MLflow(Logger):
    """Writes a run to the store of MLFLOW_TRACKING_URI.

    Without that variable, the store is mlruns beside the run's folder, shared by the runs there.
    """

    package = "mlflow"
    EXPERIMENT = "privfed"

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # New versions of MLflow require consent to a file store.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        super().__init__()

    def start(self, cfg: DictConfig, folder: Path) -> None:
        """Begin a run with all settings as its parameters, or continue a resumed one."""
        entities = importlib.import_module("mlflow.entities")
        self.metric = entities.Metric
        uri, store = os.environ.get("MLFLOW_TRACKING_URI"), folder.resolve().parent / "mlruns"
        self.client = importlib.import_module("mlflow.tracking").MlflowClient(
            tracking_uri=uri or store.as_uri()
        )
        kept = folder / "mlflow.txt"
        if kept.exists():
            self.run = kept.read_text(encoding="utf-8")
            return
        with only_one(None if uri else store):
            known = self.client.get_experiment_by_name(self.EXPERIMENT)
            experiment = (
                self.client.create_experiment(self.EXPERIMENT)
                if known is None
                else known.experiment_id
            )
        self.run = self.client.create_run(
            experiment, start_time=1000 * self.now(), run_name=folder.name
        ).info.run_id
        kept.write_text(self.run, encoding="utf-8")
        settings = OmegaConf.to_container(cfg)
        assert isinstance(settings, dict)
        parameters = [entities.Param(key, str(value)[:500]) for key, value in flat(settings)]
        # Servers accept at most 100 parameters at a time.
        for i in range(0, len(parameters), 100):
            self.client.log_batch(self.run, params=parameters[i : i + 100])

    def step(self, row: Row) -> None:
        """Add a point to every curve."""
        self._log(numbers(row), row["step"])

    def end(self, result: Row) -> None:
        """Add the final numbers."""
        self._log(
            {f"final_{name}": value for name, value in final(result).items()}, result["rounds"]
        )
        for name, text in label(result).items():
            self.client.set_tag(self.run, name, text)
        self.client.set_terminated(self.run, end_time=1000 * self.now())

    def _log(self, values: dict[str, float], step: int) -> None:
        metrics = [
            self.metric(name, value, 1000 * self.now(), step) for name, value in values.items()
        ]
        self.client.log_batch(self.run, metrics=metrics)


KINDS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


class Loggers:
    """All chosen logbooks.

    A logbook that fails is dropped with a one-line message: a run that has spent budget goes on.
    """

    def __init__(self, loggers: list[Logger]) -> None:
        self.loggers = loggers

    def start(self, cfg: DictConfig, folder: Path, dated: bool = True) -> None:
        """See :class:`Logger`.

        Args:
            cfg: configuration of the run.
            folder: folder of the run.
            dated: whether times are told, rather than the day only.
        """
        if not dated:
            day = now() // 86400 * 86400
            for logger in self.loggers:
                logger.now, logger.dated = lambda: day, False
        self._each(lambda logger: logger.start(cfg, folder))

    def step(self, row: Row) -> None:
        """See :class:`Logger`."""
        self._each(lambda logger: logger.step(row))

    def end(self, result: Row) -> None:
        """See :class:`Logger`."""
        self._each(lambda logger: logger.end(result))

    def _each(self, call: Callable[[Logger], None]) -> None:
        for logger in list(self.loggers):
            try:
                call(logger)
            except Exception as error:
                self.loggers.remove(logger)
                why = " ".join(f"{type(error).__name__}: {error}".split())
                print(
                    f"privfed: logger={type(logger).__name__.lower()} stopped ({why}); the run "
                    "goes on",
                    file=sys.stderr,
                )


def chosen(cfg: DictConfig) -> Loggers:
    """Return the logbooks that the key `logger` names: none, one, or a list.

    Raises:
        ConfigError: a name is unknown, or a package is missing.
    """
    given = cfg.get("logger")
    names = [] if given is None else list(given) if isinstance(given, ListConfig) else [given]
    for name in names:
        if name not in KINDS:
            raise ConfigError.of("logger", name, nearest(str(name), KINDS))
    return Loggers([KINDS[name]() for name in dict.fromkeys(names)])


def numbers(row: Row) -> dict[str, float]:
    """Return the finite numbers of a step that are also in rounds.csv."""
    from privfed.report.run_files import COLUMNS

    return {key: float(row[key]) for key in COLUMNS if key != "step" and is_finite(row.get(key))}


def final(result: Row) -> dict[str, float]:
    """Return the finite numbers of a result."""
    parts = {**result["metrics"], "epsilon": result["privacy"]["epsilon"], **result.get("time", {})}
    return {key: float(value) for key, value in parts.items() if is_finite(value)}


def is_finite(value: Any) -> bool:
    """Return whether a value is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def now() -> int:
    """Return whole seconds since 1970."""
    return int(time.time())


@contextmanager
def only_one(store: Path | None) -> Iterator[None]:
    """Let only one process at a time use a store of files; None means no limit."""
    if store is None:
        yield
        return
    store.mkdir(parents=True, exist_ok=True)
    with (store / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
