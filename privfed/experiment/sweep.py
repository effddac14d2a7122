"""Sweep: one run per combination of comma-separated settings, several at a time.

Each run has a process with one thread.

python -m privfed.run -m eps=1,2,4 seed=0,1,2
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from privfed.experiment.sweep_settings import Choice, combinations, names_of
from privfed.experiment.worker_pool import Lost, Pool
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import BudgetError, ConfigError, PrivfedError, check_whole
from privfed.report.past_runs import SWEEP, Setting, find, read_json, settings_of, shown
from privfed.report.run_files import OPERATOR, level_times, write_config
from privfed.report.sweep_console import PatientConsole, SweepProgress, show_sweep
from privfed.report.wording import error_of

if TYPE_CHECKING:
    from privfed.experiment.run_account import RunAccount


@dataclass(frozen=True)
class Failed:
    """Reason why a run failed, in one line."""

    message: str
    exit_code: int = 1


def work(task: tuple[str, Any, Any]) -> Any:
    """Check one configuration, or do one run, in a process of the pool.

    Errors are returned as answers.

    Args:
        task: ("check", overrides, config_dir), or ("run", folder, resume).
    """
    kind, first, second = task
    try:
        return check(first, second) if kind == "check" else perform(Path(first), second)
    except PrivfedError as error:
        return Failed(str(error), error.exit_code)
    except Exception as error:
        with suppress(OSError):
            if kind == "run":
                write_atomically(Path(first) / "error.txt", traceback.format_exc().encode())
        return Failed(f"{type(error).__name__}: {' '.join(str(error).split())}")


def check(overrides: Sequence[str], config_dir: str | None) -> tuple[str, RunAccount]:
    """Return the whole configuration of one run as YAML, and the account that it would use.

    It has one thread, and as many nodes as the run would have by itself.

    Args:
        overrides: settings of the run.
        config_dir: folder with further configs.

    Raises:
        ConfigError: the configuration is not allowed.
    """
    from privfed.config.composition import compose
    from privfed.experiment.run_account import account_of
    from privfed.experiment.wiring import Experiment
    from privfed.report import loggers

    cfg = compose(overrides, config_dir)
    if cfg.runtime.name == "ray":
        raise ConfigError.of(
            "runtime", "ray", "takes all cores for one run already; make these runs one by one"
        )
    loggers.chosen(cfg)
    experiment = Experiment(cfg)
    if "threads" in cfg.runtime:
        cfg.runtime.nodes, cfg.runtime.threads = len(experiment.nodes), cfg.runtime.threads or 1
    return OmegaConf.to_yaml(cfg), account_of(experiment, None, say=lambda words: None)


def perform(folder: Path, resume: bool) -> Any:
    """Do, or resume, the run whose configuration is in the folder; return its result."""
    from privfed.config.saved_config import load_config
    from privfed.experiment.run_folder import carry_out
    from privfed.experiment.wiring import Experiment

    with suppress(OSError):
        # Reset the peak memory, which belongs to an earlier run of this process.
        Path("/proc/self/clear_refs").write_text("5")
    cfg = load_config(folder)
    carry_out(Experiment(cfg), folder, resume)
    return read_json(folder / "result.json")


def execute(
    overrides: Sequence[str],
    config_dir: str | None,
    jobs: int | None,
    resumed: Path | None,
    quiet: bool,
) -> None:
    """Check all combinations, run those that are not done yet, and summarise.

    Args:
        overrides: settings, some with several values.
        config_dir: folder with further configs.
        jobs: number of processes; None takes one more than there are cores.
        resumed: folder of an interrupted sweep; None starts a new one.
        quiet: print nothing.
    """
    # One more process than cores: while one waits for its ledger to be on disk, another computes.
    jobs = len(os.sched_getaffinity(0)) + 1 if jobs is None else check_whole("--jobs", jobs)
    if resumed is not None:
        folder, names = resumed, runs_of(resumed)
        with Pool(min(jobs, len(names)), work) as pool:
            _run_all(pool, folder, names, quiet)
        return
    wanted = combinations(overrides)
    with Pool(min(jobs, len(wanted)), work) as pool:
        checked = _check_all(pool, [line for _, line in wanted], config_dir)
        check_together([account for _, account in checked])
        texts = [text for text, _ in checked]
        folder = _prepare(overrides, [choice for choice, _ in wanted], texts)
        _run_all(pool, folder, runs_of(folder), quiet)


def runs_of(folder: Path) -> list[str]:
    """Return the names of the runs of a sweep."""
    runs = read_json(folder / SWEEP).get("runs")
    if not isinstance(runs, dict) or not runs:
        raise ConfigError(f"{folder / SWEEP}: cannot be read (it names no runs)")
    return list(runs)


def _check_all(
    pool: Pool, lines: Sequence[list[str]], config_dir: str | None
) -> list[tuple[str, RunAccount]]:
    """Return what `check` says of every combination; raise an error if one is refused."""
    answers = {}
    try:
        for (_, line, _), answer in pool.map(deque(("check", line, config_dir) for line in lines)):
            answers[tuple(line)] = answer
            if isinstance(answer, Lost):
                raise PrivfedError(
                    f"{' '.join(line)}: {answer} while the settings were checked; nothing was "
                    "started"
                )
            if isinstance(answer, Failed):
                kinds = {error.exit_code: error for error in (ConfigError, BudgetError)}
                raise kinds.get(answer.exit_code, PrivfedError)(
                    f"{answer.message} (nothing was started)"
                )
    except KeyboardInterrupt as error:
        raise PrivfedError("interrupted; nothing was started") from error
    return [answers[tuple(line)] for line in lines]


def check_together(accounts: Sequence[RunAccount]) -> None:
    """Refuse a sweep whose runs together exceed the limit of an account.

    Args:
        accounts: account of each run.

    Raises:
        BudgetError: the limit would be exceeded.
    """
    from privfed.experiment.run_account import Accounted
    from privfed.privacy.account import Account, reserve_all

    shared: dict[Path, list[Accounted]] = {}
    for run in accounts:
        if isinstance(run, Accounted):
            for account in run.accounts:
                shared.setdefault(account.path, []).append(run)
    for path, runs in shared.items():
        reservations = [run.reservation for run in runs]
        for limit in {run.limit for run in runs}:
            reserve_all([Account(path)], reservations, limit, only_check=True)


def _prepare(overrides: Sequence[str], choices: Sequence[Choice], texts: Sequence[str]) -> Path:
    """Make the sweep's folder, with a folder and a configuration per run."""
    from privfed.experiment.run_folder import prepare_folder

    out = OmegaConf.create(texts[0]).out
    traces = (SWEEP, "result.json", "ledger.jsonl", "*/ledger.jsonl")
    if out is not None and any(any(Path(out).glob(trace)) for trace in traces):
        raise ConfigError.of(
            "out", out, "already holds runs; go on with --resume, or choose another folder"
        )
    folder = prepare_folder(out, "multi")
    runs = names_of(choices)
    for name, text in zip(runs, texts, strict=True):
        (folder / name).mkdir(exist_ok=True)
        cfg = OmegaConf.create(text)
        assert isinstance(cfg, DictConfig)
        cfg.out = str(folder / name)
        write_config(folder / name, cfg)
    content = {"overrides": list(overrides), "runs": runs}
    write_atomically(folder / SWEEP, (json.dumps(content, indent=2) + "\n").encode())
    return folder


def _run_all(pool: Pool, folder: Path, names: Sequence[str], quiet: bool) -> None:
    """Do every run that has no result yet, and summarise all."""
    done = {name for name in names if (folder / name / "result.json").exists()}
    waiting = deque(
        ("run", str(folder / name), _begun(folder / name)) for name in names if name not in done
    )
    failed: dict[str, str] = {}
    lost: set[str] = set()
    with SweepProgress(len(names), len(done), folder, quiet) as progress:
        try:
            for (_, path, _), answer in pool.map(waiting):
                name = Path(path).name
                if isinstance(answer, Lost) and name not in lost:
                    lost.add(name)
                    waiting.appendleft(("run", path, _begun(Path(path))))
                    progress.say(f"{name}: {answer}; trying again")
                elif isinstance(answer, Lost | Failed):
                    failed[name] = str(answer) if isinstance(answer, Lost) else answer.message
                    progress.done(name, None, failed[name])
                else:
                    done.add(name)
                    progress.done(name, answer)
        except KeyboardInterrupt as error:
            words = (
                f"interrupted; {len(done)} of {len(names)} runs are done, go on with --resume "
                f"{folder}"
            )
            raise PrivfedError(words) from error
        finally:
            pool.close()
    if done:
        sum_up(folder, quiet)
    if failed:
        raise PrivfedError(
            f"{len(failed)} of {len(names)} runs failed; try them again with --resume {folder}"
        )


def _begun(folder: Path) -> bool:
    """Return whether a run was interrupted; without a ledger nothing was released."""
    return (folder / "ledger.jsonl").exists()


def sum_up(folder: Path, quiet: bool) -> None:
    """Write summary.csv and report.html of the finished runs, and print a table of them."""
    # Imported here, since it takes a while.
    from privfed.report.comparison_page import comparison_page
    from privfed.report.run_totals import several_in_words

    runs = find([folder])
    settings = settings_of(runs)
    write_atomically(folder / "summary.csv", summary_csv(settings).encode())
    page = comparison_page(runs, folder, folder.name)
    write_atomically(folder / "report.html", page.encode())
    if any(folder.glob(f"*/{OPERATOR}")):  # real users
        level_times(folder, (SWEEP, "summary.csv", "report.html"), SWEEP)
    if quiet:
        return
    show_sweep(settings)
    console = PatientConsole(highlight=False)
    if words := several_in_words(runs):
        console.print(words)
    console.print(
        f"written to {folder}: summary.csv, report.html, and a folder a run", soft_wrap=True
    )


def summary_csv(settings: Sequence[Setting]) -> str:
    """Return a table with one line per setting: its error over the seeds, and its cost."""
    table = io.StringIO()
    keys = list(settings[0].line | settings[0].budget)
    head = [
        *keys,
        "runs",
        "metric",
        "error_mean",
        "error_std",
        "epsilon",
        "delta",
        "neighbouring",
        "guarantee",
        "seconds",
    ]
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(head)
    for s in settings:
        result = s.runs[0].result
        privacy, metric = result["privacy"], error_of(result["metrics"])
        error = "" if math.isnan(s.error) else s.error
        told = [metric, error, "" if s.spread is None else s.spread]
        spent = [run.result["time"]["total_s"] for run in s.runs if "time" in run.result]
        seconds = round(sum(spent), 3) if len(spent) == len(s.runs) else ""
        own = [shown(value) for value in (s.line | s.budget).values()]
        claim = [privacy["delta"], privacy["neighbouring"], s.claim]
        writer.writerow([*own, len(s.runs), *told, s.epsilon, *claim, seconds])
    return table.getvalue()
