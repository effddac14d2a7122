"""Folder of a run: make it, do the run in it, and read its progress."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from privfed.experiment import checkpoint
from privfed.foundation.errors import ConfigError
from privfed.report import loggers
from privfed.report.run_files import keep_previous, write_config, write_run
from privfed.runtimes.runtime import LaunchedRun, Row

if TYPE_CHECKING:
    from privfed.experiment.wiring import Experiment


def prepare_folder(out: object, name: str) -> Path:
    """Make a folder that can be written to.

    Args:
        out: path of the folder; a new one under runs/ if None.
        name: beginning of the name of a new folder, such as the algorithm.

    Raises:
        ConfigError: if the folder cannot be written to.
    """
    path = str(out) if out is not None else f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, i = Path(path), 2
    try:
        while out is None and folder.exists():
            folder, i = Path(f"{path}-{i}"), i + 1
        folder.mkdir(parents=True, exist_ok=out is not None)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError.of("out", path, f"cannot write there ({error.strerror})") from error
    return folder


def start_folder(cfg: DictConfig, out: object, name: str) -> Path:
    """Make the folder of a new run and write its configuration.

    An earlier run in the same folder is moved to a folder of its own.

    Args:
        cfg: configuration of the run.
        out: see :func:`prepare_folder`.
        name: see :func:`prepare_folder`.
    """
    folder = prepare_folder(out, name)
    keep_previous(folder)
    write_config(folder, cfg)
    return folder


def carry_out(
    experiment: Experiment,
    folder: Path,
    resume: bool,
    on_step: Callable[[Row], None] = lambda row: None,
    say: Callable[[str], None] = lambda command: None,
) -> None:
    """Do a run and write all its files.

    Args:
        experiment: the configured run.
        folder: folder of the run; it has the configuration already.
        resume: continue the interrupted run in the folder.
        on_step: called with what was recorded, once per step.
        say: called with every command line that the runtime executes.
    """
    books = loggers.chosen(experiment.cfg)
    books.start(experiment.cfg, folder, dated=experiment.simulated)

    def step(row: Row) -> None:
        on_step(row)
        books.step(row)

    if experiment.runtime.launches:
        run = LaunchedRun(
            settings=OmegaConf.to_yaml(experiment.cfg),
            roster=experiment.roster,
            simulated=experiment.simulated,
            remembers=experiment.remembers,
            folder=folder,
            resume=resume,
            rows=lambda: rows_done(folder),
            on_step=step,
            say=say,
        )
        experiment.runtime.launch(run)
    else:
        write_run(folder, experiment.cfg, experiment.run(folder, step, resume=resume))
    books.end(json.loads((folder / "result.json").read_text()))


def rows_done(folder: Path) -> list[Row]:
    """Return what was recorded of each step that a run has done, finished or not.

    Args:
        folder: folder of the run, which another process may be writing to.
    """
    if (folder / "result.json").exists():
        with (folder / "rounds.csv").open(newline="") as file:
            return [
                {key: text if key == "task" else float(text) for key, text in row.items() if text}
                for row in csv.DictReader(file)
            ]
    # The file may vanish while it is read: then the run has just ended.
    try:
        return checkpoint.rows(folder)
    except (OSError, ValueError, ConfigError):
        return []
