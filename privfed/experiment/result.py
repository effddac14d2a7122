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
from privfed.data.evaluation_metrics import HeldOut
from privfed.foundation.linalg import Array
from privfed.privacy.settings import NOBODY, SIMULATED
from privfed.privacy.statement import SIMULATION

if TYPE_CHECKING:
    from privfed.experiment.judgement import Judgement
    from privfed.experiment.wiring import Experiment


@dataclass(frozen=True)
class PrivacyResult:
    """What was guaranteed and spent.

    Attributes:
        epsilon, delta: what everything released together costs, under `neighbouring`.
        target_epsilon: the budget.
        neighbouring: neighbouring relation.
        guarantee: `worst-case`, `under <assumption>`, `simulation` (noise that can be repeated) or
            `none`.
        noise: where noise comes from.
        releases: number of releases.
        trust: who was trusted with the sums of nodes: server, nobody, or simulated (the noise of
            nobody, without masks).
        would_be: guarantee that the same run with secret noise would have; None unless the run is
            a simulation. `epsilon` is then what that run would guarantee.
        epsilon_by_neighbouring: cost under each relation for which sensitivities are known.
        account: what everything ever released from these data costs together; `none: ` and the
            reason for a run outside any account.
    """

    epsilon: float
    delta: float
    target_epsilon: float
    neighbouring: str
    guarantee: str
    noise: str
    releases: int
    trust: str
    would_be: str | None
    epsilon_by_neighbouring: dict[str, float]
    account: dict[str, Any] | str


@dataclass(frozen=True)
class Result:
    """What result.json says.

    Attributes:
        algo, runtime, seed: names and seed of the run.
        n_users, n_nodes: public numbers of users and nodes.
        rounds: rounds of the last phase that were done.
        metrics: errors of a simulation by name; empty where users are real.
        judged: rows and users that metrics are means over, where held-out rows judge.
        standard_errors: of metrics over users, likewise.
        differences: error of the run less that of each rival on the same rows, with its standard
            error over users, likewise.
        notes: what a reader should know besides the numbers.
        heads: whether every user has a predictor of its own.
        privacy: what was guaranteed and spent.
        time: seconds of the run and of its parts; None where users are real.
        peak_rss_mb: most memory that the process has held; None likewise.
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
    standard_errors: dict[str, float] | None
    differences: dict[str, dict[str, float]] | None
    notes: list[str]
    heads: bool
    privacy: PrivacyResult
    time: dict[str, float] | None
    peak_rss_mb: float | None
    versions: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return the content of result.json; what does not apply is absent."""
        content = asdict(self)
        if self.privacy.would_be is None:
            del content["privacy"]["would_be"]
        absent = {"notes": not self.notes, "heads": self.heads}
        optional = ("judged", "standard_errors", "differences", "time", "peak_rss_mb")
        absent |= {key: content[key] is None for key in optional}
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
    held: dict[str, HeldOut] = field(default_factory=dict)
    """Predictions for held-out rows by predictor, '' for the run itself, in simulations."""
    saved: dict[str, bytes] = field(default_factory=dict)
    """Files for the owner of a simulation's data alone, by name; not private."""
    schema: Any = None
    """Columns of a table; None without a table."""
    operator: dict[str, Any] | None = None
    """Times and memory where users are real: for the operator alone, and None in simulations."""


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


@dataclass(frozen=True)
class Effort:
    """What a run took. It tells how many rows users have, so it is published of simulations only.

    Attributes:
        time: seconds of the run and of its parts.
        peak_rss_mb: most memory that the process has held.
        steps: seconds of each step of this process; those before a run was resumed are not known.
    """

    time: dict[str, float]
    peak_rss_mb: float
    steps: list[float]

    @classmethod
    def of(cls, experiment: Experiment) -> Effort:
        """Measure what the run of an experiment took until now."""
        task, rows = experiment.strategy.rounds_task, experiment.rows
        # A resumed run has rows of an earlier process, whose times may be known.
        seconds = [row.get("seconds", 0.0) for row in rows[: len(rows) - len(experiment.seconds)]]
        timed = zip(rows, [*seconds, *experiment.seconds], strict=True)
        rounds = [(row["users"], s) for row, s in timed if row["task"] == task and row["round"] > 0]
        spent = sum(s for _, s in rounds)
        now = time.perf_counter()
        parts = {
            "total_s": now - experiment.started,
            "setup_s": experiment.federation.ready - experiment.started,
            "rounds_s": spent,
        }
        if rounds and spent:
            parts["user_rounds_per_s"] = sum(users for users, _ in rounds) / spent
        return cls(parts, peak_rss_mb(), list(experiment.seconds))


def result_of(
    experiment: Experiment, metrics: dict[str, float], judgement: Judgement | None = None
) -> Result:
    """Return what result.json says of the steps taken so far.

    Args:
        experiment: the experiment.
        metrics: errors of the simulation; empty for real users.
        judgement: what held-out rows say of all predictors; None where there are none.
    """
    cfg, data, strategy = experiment.cfg, experiment.data, experiment.strategy
    ledger, budget = experiment.ledger, experiment.budget
    task = strategy.rounds_task
    rounds = [row for row in experiment.rows if row["task"] == task and row["round"] > 0]
    basis = strategy.guarantee or cfg.algo.guarantee
    if math.isinf(ledger.epsilon):
        basis = "none"
    source = experiment.federation.gate.source
    simulation = source.repeatable and ledger.releases and basis != "none"
    init_notes = list(experiment.federation.init.notes)
    notes = [
        *experiment.notes,
        *strategy.notes(),
        *init_notes,
        *data.notes,
        *absences(experiment),
        *trust_notes(experiment),
    ]
    # Without a guarantee no number may look like one, whatever the ledger holds.
    general = basis in ("none", "worst-case")
    relations = strategy.relations if general else (budget.neighbouring,)
    cost = {name: math.inf if basis == "none" else ledger.epsilon_under(name) for name in relations}
    told = Effort.of(experiment) if experiment.simulated else None
    return Result(
        algo=cfg.algo.name,
        runtime=experiment.runtime.name,
        seed=cfg.seed,
        n_users=data.n,
        n_nodes=len(experiment.nodes),
        rounds=len(rounds),
        metrics=metrics,
        judged=judged(strategy.sums),
        standard_errors=None if judgement is None else judgement.standard_errors,
        differences=None if judgement is None else judgement.differences,
        notes=notes,
        heads=data.personal,
        privacy=PrivacyResult(
            epsilon=cost[budget.neighbouring],
            delta=ledger.delta,
            target_epsilon=budget.epsilon,
            neighbouring=budget.neighbouring,
            guarantee=SIMULATION if simulation else basis,
            would_be=basis if simulation else None,
            noise=source.name,
            releases=len(ledger.releases),
            trust=experiment.federation.privacy.trust,
            epsilon_by_neighbouring=cost,
            account=experiment.account.statement(),
        ),
        time=None if told is None else told.time,
        peak_rss_mb=None if told is None else told.peak_rss_mb,
        versions=versions(),
    )


def judged(sums: dict[str, Any]) -> dict[str, int] | None:
    """Return how many held-out rows of how many users metrics are means over, where rows judge."""
    if not sums.get("judged"):
        return None
    return {"rows": int(sums["judged"]), "users": int(sums["judged_users"])}


def trust_notes(experiment: Experiment) -> list[str]:
    """Return a note on what nobody being trusted rests on, or on masks that were left out."""
    privacy = experiment.federation.privacy
    if privacy.trust == NOBODY:
        return [
            f"No server saw the sum of a node (secure aggregation). At least {privacy.honest:g} of "
            f"the users answered in every step, and the noise holds if nodes of at most "
            f"{privacy.colluding:g} of the users help the server."
        ]
    if privacy.trust == SIMULATED:
        return [
            "Secure aggregation was simulated: the noise is that of nodes, but sums were not "
            "masked, and this process saw all of them."
        ]
    return []


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
