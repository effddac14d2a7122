"""Long runs, each kept in a file as soon as it is over, by its overrides, and never repeated."""

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
    """Errors of the users and of fresh users (None: nobody was judged on the way), and what it took."""
    outcome = Experiment(compose(overrides)).run()
    fresh = outcome.rows[-1]["risk"] if outcome.rows else None
    metrics, spent = outcome.result["metrics"], outcome.result["time"]
    risk, alone = metrics["risk"], metrics.get("risk_standalone")
    return {
        "accuracy": 1 - risk, "risk": risk, "validation_accuracy": None if fresh is None else 1 - fresh,
        **({} if alone is None else {"alone": 1 - alone}),
        "epsilon": outcome.result["privacy"]["epsilon"], "seconds": round(spent["total_s"], 1),
    }  # fmt: skip


def kept() -> dict[tuple[str, ...], dict[str, Any]]:
    """All runs that are over, by their overrides."""
    path = common.FOLDER / FILE
    lines = path.read_text().splitlines() if path.exists() else []
    return {tuple(run.pop("run")): run for run in map(json.loads, lines)}


def keep(overrides: Sequence[str], found: Mapping[str, Any]) -> None:
    """A line more; several processes may do so at once."""
    common.FOLDER.mkdir(parents=True, exist_ok=True)
    with (common.FOLDER / FILE).open("a") as file:
        file.write(json.dumps({"run": list(overrides), **found}) + "\n")


def results(todo: Sequence[list[str]], jobs: int) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Runs as they end: one at a time on all cores, or several with a core each."""
    if jobs == 1:
        for overrides in todo:
            if tuple(overrides) not in kept():  # another process may have been here
                yield overrides, one(overrides)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        alone = ("runtime.threads=1", "runtime.nodes=2")
        futures = {pool.submit(one, [*overrides, *alone]): overrides for overrides in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()
