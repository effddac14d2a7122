"""Results of a run: result.json, and everything that is drawn or published besides it."""

from __future__ import annotations

import math
import resource
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privfed import __version__
from privfed.data.evaluation_bins import Scale
from privfed.foundation.linalg import Array

if TYPE_CHECKING:
    from privfed.experiment.wiring import Experiment


@dataclass(frozen=True)
class PrivacyResult:
    """What was guaranteed and spent.

    Attributes:
        epsilon, delta: what everything released together costs, under `neighbouring`.
        target_epsilon: the budget.
        neighbouring: neighbouring relation.
        guarantee: `worst-case`, `under <assumption>` or `none`.
        noise: where noise comes from.
        releases: number of releases.
        epsilon_by_neighbouring: cost under each relation for which sensitivities are known.
    """

    epsilon: float
    delta: float
    target_epsilon: float
    neighbouring: str
    guarantee: str
    noise: str
    releases: int
    epsilon_by_neighbouring: dict[str, float]


@dataclass(frozen=True)
class Result:
    """What result.json says.

    Attributes:
        algo, runtime, seed: names and seed of the run.
        n_users, n_nodes: public numbers of users and nodes.
        rounds: rounds of the last phase that were done.
        metrics: errors of a simulation by name; empty where users are real.
        judged: rows and users that metrics are means over, where held-out rows judge.
        notes: what a reader should know besides the numbers.
        heads: whether every user has a predictor of its own.
        privacy: what was guaranteed and spent.
        time: seconds of the run and of its parts.
        peak_rss_mb: most memory that the process has held.
        versions: of Python and of the packages that decide what a run computes.
    """

    algo: str
    runtime: str
    seed: int
    n_users: int
    n_nodes: int
    rounds: int
    metrics: dict[str, float]
    judged: dict[str, int] | None
    notes: list[str]
    heads: bool
    privacy: PrivacyResult
    time: dict[str, float]
    peak_rss_mb: float
    versions: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return the content of result.json; what does not apply is absent."""
        content = asdict(self)
        absent = {"judged": self.judged is None, "notes": not self.notes, "heads": self.heads}
        return {key: value for key, value in content.items() if not absent.get(key)}


@dataclass
class Outcome:
    """Results of a run, before they are written."""

    result: dict[str, Any]
    model: dict[str, Array]
    rows: list[dict[str, Any]] = field(default_factory=list)
    histograms: dict[str, Array] = field(default_factory=dict)
    scale: Scale | None = None
    split: NDArray[np.int64] | None = None
    """Examples per user and class (n, classes), in simulations with classes."""
    by_size: Array | None = None
    """Gains by number of rows (see `privfed.report.gain_chart`), in simulations on tables."""
    schema: Any = None
    """Columns of a table; None without a table."""


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that determine the numbers of a run."""
    packages = (
        "flwr",
        "numpy",
        "scipy",
        "hydra-core",
        *(("torch",) if "torch" in sys.modules else ()),
    )
    return {
        "python": python_version(),
        "privfed": __version__,
        **{name: version(name) for name in packages},
    }


def peak_rss_mb() -> float:
    """Return the peak memory of this process: on Linux since the last exec, else since the fork."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def result_of(experiment: Experiment, metrics: dict[str, float]) -> Result:
    """Return what result.json says of the steps taken so far.

    Args:
        experiment: the experiment.
        metrics: errors of the simulation; empty for real users.
    """
    cfg, data, strategy = experiment.cfg, experiment.data, experiment.strategy
    ledger, budget = experiment.ledger, experiment.budget
    task = strategy.rounds_task
    rounds = [row for row in experiment.rows if row["task"] == task and row["round"] > 0]
    rounds_s = sum(row["seconds"] for row in rounds)
    guarantee = strategy.guarantee or cfg.algo.guarantee
    if math.isinf(ledger.epsilon):
        guarantee = "none"
    init_notes = list(experiment.federation.init.notes)
    notes = [*strategy.notes(), *init_notes, *data.notes, *absences(experiment)]
    # Without a guarantee no number may look like one, whatever the ledger holds.
    general = guarantee in ("none", "worst-case")
    relations = strategy.relations if general else (budget.neighbouring,)
    cost = {
        name: math.inf if guarantee == "none" else ledger.epsilon_under(name) for name in relations
    }
    speed = {}
    if rounds and experiment.simulated:
        speed = {"user_rounds_per_s": sum(row["users"] for row in rounds) / rounds_s}
    return Result(
        algo=cfg.algo.name,
        runtime=experiment.runtime.name,
        seed=cfg.seed,
        n_users=data.n,
        n_nodes=len(experiment.nodes),
        rounds=len(rounds),
        metrics=metrics,
        judged=judged(strategy.sums),
        notes=notes,
        heads=data.personal,
        privacy=PrivacyResult(
            epsilon=cost[budget.neighbouring],
            delta=ledger.delta,
            target_epsilon=budget.epsilon,
            neighbouring=budget.neighbouring,
            guarantee=guarantee,
            noise=experiment.federation.gate.source.name,
            releases=len(ledger.releases),
            epsilon_by_neighbouring=cost,
        ),
        time={
            "total_s": experiment.told_seconds(time.perf_counter() - experiment.started),
            "setup_s": experiment.told_seconds(experiment.federation.ready - experiment.started),
            "rounds_s": rounds_s,
            **speed,
        },
        peak_rss_mb=told_memory(peak_rss_mb(), experiment.simulated),
        versions=versions(),
    )


def judged(sums: dict[str, Any]) -> dict[str, int] | None:
    """Return how many held-out rows of how many users metrics are means over, where rows judge."""
    if not sums.get("judged"):
        return None
    return {"rows": int(sums["judged"]), "users": int(sums["judged_users"])}


def told_memory(megabytes: float, simulated: bool) -> float:
    """Return memory as it may be published: for real users, rounded up to a power of two.

    The exact number would reveal how many rows real users have.
    """
    return megabytes if simulated else 2.0 ** math.ceil(math.log2(megabytes))


def absences(experiment: Experiment) -> list[str]:
    """Return a note on the number of missing users, if any."""
    rows = experiment.rows
    missing = [row["missing_users"] for row in rows if row["missing_users"]]
    if not missing:
        return []
    return [
        f"Users were missing in {len(missing)} of {len(rows)} steps, at most {max(missing)} of "
        f"{experiment.data.n} at a time: they contributed nothing, and noise and divisor stayed "
        "as planned."
    ]
