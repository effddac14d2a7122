"""Long runs, each saved in a file as soon as it is finished, by its overrides; none is repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

from figures import common
from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment

FILE = "centaur-runs.jsonl"


def one(overrides: Sequence[str]) -> dict[str, Any]:
    """Run once; return errors of the users and of fresh users, epsilon and seconds.

    The accuracy of fresh users is None if they were not judged during the run.
    """
    outcome = Experiment(compose(overrides)).run()
    fresh = outcome.rows[-1]["risk"] if outcome.rows else None
    metrics, spent = outcome.result["metrics"], outcome.result["time"]
    risk, alone = metrics["risk"], metrics.get("risk_standalone")
    return {
        "accuracy": 1 - risk,
        "risk": risk,
        "validation_accuracy": None if fresh is None else 1 - fresh,
        **({} if alone is None else {"alone": 1 - alone}),
        "epsilon": outcome.result["privacy"]["epsilon"],
        "seconds": round(spent["total_s"], 1),
    }


def kept() -> dict[tuple[str, ...], dict[str, Any]]:
    """Return all finished runs by their overrides."""
    path = common.FOLDER / FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return {tuple(run.pop("run")): run for run in map(json.loads, lines)}


def keep(overrides: Sequence[str], found: Mapping[str, Any]) -> None:
    """Append a finished run to the file; several processes may do so at once."""
    common.FOLDER.mkdir(parents=True, exist_ok=True)
    with (common.FOLDER / FILE).open("a") as file:
        file.write(json.dumps({"run": list(overrides), **found}) + "\n")


def results(todo: Sequence[list[str]], jobs: int) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield runs as they finish: one at a time on all cores, or `jobs` at a time, one per core."""
    if jobs == 1:
        for overrides in todo:
            if tuple(overrides) not in kept():  # another process may have finished it meanwhile
                yield overrides, one(overrides)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        alone = ("runtime.threads=1", "runtime.nodes=2")
        futures = {pool.submit(one, [*overrides, *alone]): overrides for overrides in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()
