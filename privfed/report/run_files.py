"""The files of a run: result.json, rounds.csv, config.yaml, model.npz and report.html (the ledger is written as it happens)."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from privfed.config.run_config import load
from privfed.data.error_bins import Scale
from privfed.experiment import checkpoint
from privfed.experiment.result import Outcome
from privfed.federation.user_state import PRIVATE
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import PrivfedError
from privfed.privacy.ledger import Budget, Ledger, locked, plain
from privfed.privacy.noise import SeededNoise
from privfed.report.past_runs import Run
from privfed.report.run_page import report_page

COLUMNS = (
    "step", "task", "round", "clip", "noise_std", "epsilon", "mse", "risk", "frobenius", "dist", "missing_users", "seconds",
)  # fmt: skip


FILES = (
    "ledger.jsonl", "roster.json", checkpoint.FILE, "config.yaml", "schema.yaml", "rounds.csv", "model.npz", "report.html",
    "audit.html", "nodes.json", "details.json", "error.txt", "mlflow.txt", "tensorboard", PRIVATE, "result.json",
)  # fmt: skip


def keep_previous(folder: Path) -> None:
    """An earlier run in the same folder is moved to previous-1, previous-2, ...: nothing is lost, nothing is mixed."""
    ledger, result = folder / "ledger.jsonl", folder / "result.json"
    if ledger.exists():
        locked(ledger).close()  # a run that is still going on is left alone
    if not result.exists() and not (ledger.exists() and ledger.stat().st_size):
        return
    i = 1
    while (kept := folder / f"previous-{i}").exists():
        i += 1
    kept.mkdir()
    for name in FILES:
        if (folder / name).exists():
            (folder / name).rename(kept / name)


def write_config(folder: Path, cfg: DictConfig) -> None:
    """config.yaml, before anything is computed."""
    write_atomically(folder / "config.yaml", OmegaConf.to_yaml(cfg).encode())


def write_details(folder: Path, outcome: Outcome) -> None:
    """details.json: the numbers behind the pictures of a simulation, so that its page can be made again."""
    if outcome.scale is None:
        return
    facts: dict[str, Any] = {
        "histograms": {name: counts.tolist() for name, counts in outcome.histograms.items()},
        "scale": {"edges": outcome.scale.edges.tolist(), "log": outcome.scale.log},
    }
    if outcome.split is not None:
        facts["split"] = outcome.split.tolist()
    if outcome.by_size is not None:
        facts["by_size"] = outcome.by_size.tolist()
    write_atomically(folder / "details.json", json.dumps(facts).encode())


def write_run(folder: Path, cfg: DictConfig, outcome: Outcome) -> None:
    """Everything else, result.json last: where it exists, the run is complete."""
    result = finite(outcome.result | _flagged(folder, outcome.result))
    table = io.StringIO()
    columns = [
        name for name in COLUMNS if not outcome.rows or any(name in row for row in outcome.rows)
    ]
    writer = csv.DictWriter(table, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(outcome.rows)
    write_atomically(folder / "rounds.csv", table.getvalue().encode())
    model = io.BytesIO()
    np.savez(model, **outcome.model)  # type: ignore[arg-type]
    write_atomically(folder / "model.npz", model.getvalue())
    if outcome.schema is not None:
        write_atomically(folder / "schema.yaml", outcome.schema.to_yaml().encode())
    page = report_page(
        result,
        outcome.rows,
        outcome.histograms,
        outcome.scale,
        OmegaConf.to_yaml(cfg),
        outcome.split,
        outcome.by_size,
    )
    write_atomically(folder / "report.html", page.encode())
    write_details(folder, outcome)
    write_result(folder, result)
    (folder / checkpoint.FILE).unlink(missing_ok=True)
    shutil.rmtree(folder / PRIVATE, ignore_errors=True)


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """result.json, of numbers that were found finite."""
    write_atomically(
        folder / "result.json", (json.dumps(result, indent=2, allow_nan=False) + "\n").encode()
    )


def _flagged(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """A note where this is not the first run on users who may be the same: what one run guarantees does not cover several."""
    spent = [
        str(cost)
        for kept in sorted(folder.glob("previous-*"))
        if (cost := spent_in(kept)) is not None
    ]
    if not spent or result["privacy"]["noise"] == SeededNoise.name:
        return {}
    note = (
        f"Earlier runs into this folder spent epsilon {', '.join(spent)}. For users who took part in several runs budgets add "
        "up, and choosing settings or results by comparing these runs is not covered by the guarantee of this one."
    )
    return {"notes": [*result.get("notes", []), note]}


def spent_in(folder: Path) -> float | None:
    """What a run in this folder spent, to four digits, by its ledger; None where nothing can be read."""
    try:
        cfg = load(folder)
        ledger = Ledger(Budget(cfg.eps, cfg.delta, cfg.neighbouring))
        ledger.verify(folder / "ledger.jsonl")
    except (PrivfedError, OmegaConfBaseException):
        return None
    return float(f"{ledger.epsilon:.4g}")


def finite(value: Any, path: str = "result") -> Any:
    """The same with "inf" for an epsilon that is deliberately infinite; any other number must be finite."""
    if isinstance(value, dict):
        return {key: finite(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value) and "epsilon" not in path:
        raise PrivfedError(f"{path} is {value}: the run did not produce a finite number")
    return [finite(inner, path) for inner in value] if isinstance(value, list) else plain(value)


def page_again(run: Run) -> str:
    """The page of a finished run, from its files; pictures whose numbers were not kept are left out."""
    extra = run.details
    histograms = {
        name: np.asarray(counts, dtype=np.float64)
        for name, counts in extra.get("histograms", {}).items()
    }
    scale = (
        Scale(np.asarray(extra["scale"]["edges"], dtype=np.float64), extra["scale"]["log"])
        if "scale" in extra
        else None
    )
    split = np.asarray(extra["split"], dtype=np.int64) if extra.get("split") else None
    by_size = np.asarray(extra["by_size"], dtype=np.float64) if "by_size" in extra else None
    config = OmegaConf.to_yaml(load(run.folder))
    return report_page(
        run.result, run.rows, histograms if scale else {}, scale, config, split, by_size
    )
