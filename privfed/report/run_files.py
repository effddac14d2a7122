"""Files of a run: result.json, rounds.csv, config.yaml, model.npz and report.html.

The ledger is not among them: it is written while releases happen.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from privfed.config.saved_config import load_config
from privfed.data.evaluation_bins import Scale
from privfed.federation.user_state import PRIVATE
from privfed.foundation.atomic_files import write_atomically
from privfed.foundation.errors import PrivfedError
from privfed.foundation.linalg import Array
from privfed.privacy.ledger import Budget, Ledger, locked, plain
from privfed.privacy.noise import SeededNoise
from privfed.privacy.statement import label_comment
from privfed.report.past_runs import Run
from privfed.report.run_page import report_page

COLUMNS = (
    "step", "task", "round", "clip", "noise_std", "epsilon", "mse", "risk", "frobenius", "dist",
    "missing_users", "seconds",
)  # fmt: skip
"""Columns of rounds.csv."""
DAY = 86400.0
"""Seconds."""
OPERATOR = "operator.json"
"""Times and memory of a run with real users: for its operator, not to be handed out."""
CHECKPOINT = "checkpoint.npz"
"""File with the state of an unfinished run; useless once there is a result."""
FILES = (
    "ledger.jsonl", CHECKPOINT, "config.yaml", "schema.yaml", "rounds.csv",
    "model.npz", "report.html", "audit.html", "details.json", "error.txt",
    "mlflow.txt", "tensorboard", "held_out.csv", "heads.npz", OPERATOR, PRIVATE, "result.json",
)  # fmt: skip
"""All files of a run, result.json last."""


class Finished(Protocol):
    """Results of a run, before they are written; see `privfed.experiment.result.Outcome`."""

    result: dict[str, Any]
    model: dict[str, Array]
    rows: list[dict[str, Any]]
    histograms: dict[str, Array]
    scale: Scale | None
    split: NDArray[np.int64] | None
    by_size: Array | None
    schema: Any
    operator: dict[str, Any] | None
    saved: dict[str, bytes]


def keep_previous(folder: Path) -> None:
    """Move an earlier run in the same folder to previous-1, previous-2, ..., so that none is lost.

    Args:
        folder: Folder of the next run.

    Raises:
        ConfigError: The earlier run is still going on.
    """
    ledger, result = folder / "ledger.jsonl", folder / "result.json"
    if ledger.exists():
        # Fails if the run is still going on, which must be left alone.
        locked(ledger).close()
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
    """Write config.yaml, before anything is computed."""
    write_atomically(folder / "config.yaml", config_text(cfg).encode())


def config_text(cfg: DictConfig) -> str:
    """Return the configuration as YAML, with a line on what it does not claim."""
    return (
        "# algo.guarantee is what secret noise would give; result.json has what this run gives.\n"
        + OmegaConf.to_yaml(cfg)
    )


def write_details(folder: Path, outcome: Finished) -> None:
    """Write details.json: the numbers behind the charts of a simulation, to make its page again."""
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


def write_run(folder: Path, cfg: DictConfig, outcome: Finished) -> None:
    """Write all other files, result.json last: a run is complete if and only if it exists.

    Args:
        folder: Folder of the run.
        cfg: Its configuration.
        outcome: Its results.

    Raises:
        PrivfedError: A number is not finite.
    """
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
    with zipfile.ZipFile(model, "a") as archive:
        # So that the file says what it is even without the others; `np.load` ignores it.
        archive.comment = label_comment(result)
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
    for name, held in outcome.saved.items():
        write_atomically(folder / name, held, mode=0o600)
    if outcome.operator is not None:
        content = json.dumps(outcome.operator, indent=2) + "\n"
        write_atomically(folder / OPERATOR, content.encode(), mode=0o600)
    write_result(folder, result)
    (folder / CHECKPOINT).unlink(missing_ok=True)
    shutil.rmtree(folder / PRIVATE, ignore_errors=True)
    if outcome.operator is not None:
        level_times(folder)


def level_times(folder: Path, names: Sequence[str] = FILES, first: str = "config.yaml") -> None:
    """Date all files of a run, or of a sweep, by the day on which it began.

    How long a run took tells how many rows real users have, and files keep their times when they
    are copied or packed.

    Args:
        folder: folder of the run.
        names: files to date.
        first: file that was written when the run began.
    """
    day = (folder / first).stat().st_mtime // DAY * DAY
    for name in names:
        if (folder / name).is_file():
            os.utime(folder / name, (day, day))
    os.utime(folder, (day, day))


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Write result.json; `result` has passed `finite`."""
    write_atomically(
        folder / "result.json", (json.dumps(result, indent=2, allow_nan=False) + "\n").encode()
    )


def _flagged(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Return a note if earlier runs wrote into this folder: their users may be the same."""
    spent = [
        str(cost)
        for kept in sorted(folder.glob("previous-*"))
        if (cost := spent_in(kept)) is not None
    ]
    if not spent or result["privacy"]["noise"] == SeededNoise.name:
        return {}
    note = (
        f"Earlier runs into this folder spent epsilon {', '.join(spent)}. For users who took part "
        "in several runs budgets add up, and choosing settings or results by comparing these runs "
        "is not covered by the guarantee of this one."
    )
    return {"notes": [*result.get("notes", []), note]}


def spent_in(folder: Path) -> float | None:
    """Return what the ledger in a folder spent, to four digits; None if it cannot be read."""
    try:
        cfg = load_config(folder)
        ledger = Ledger(Budget(cfg.eps, cfg.delta, cfg.neighbouring))
        ledger.verify(folder / "ledger.jsonl")
    except (PrivfedError, OmegaConfBaseException):
        return None
    return float(f"{ledger.epsilon:.4g}")


def finite(value: Any, path: str = "result") -> Any:
    """Check that all numbers are finite, except for an epsilon that is infinite on purpose.

    Args:
        value: A result, or a part of it.
        path: Place of that part in the result.

    Returns:
        The same as plain JSON values, with "inf" for an infinite epsilon.

    Raises:
        PrivfedError: Another number is not finite.
    """
    if isinstance(value, dict):
        return {key: finite(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value) and "epsilon" not in path:
        raise PrivfedError(f"{path} is {value}: the run did not produce a finite number")
    return [finite(inner, path) for inner in value] if isinstance(value, list) else plain(value)


def page_again(run: Run) -> str:
    """Return the page of a finished run from its files, without charts whose numbers are lost."""
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
    config = OmegaConf.to_yaml(load_config(run.folder))
    return report_page(
        run.result, run.rows, histograms if scale else {}, scale, config, split, by_size
    )
