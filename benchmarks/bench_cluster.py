"""Measure a run over three raylets, optionally with the loss of one of them.

    python benchmarks/bench_cluster.py [--n 1000000] [--rounds 10] [--lose]

The raylets are separate processes on this machine. So this shows that a cluster works and what the
loss of a machine costs; it does not show what several machines gain. The same run in one process is
the reference. With --lose, one raylet that is not the head is killed in the middle of a round.
`--lose freeze` stops all its processes instead, as if the machine had lost its network. While users
are missing, the benchmark waits between two rounds (not counted), so that few rounds are enough to
see the users come back.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from raylets import Raylets
from rich.console import Console
from rich.table import Table

from privfed.config.composition import compose
from privfed.experiment.result import Outcome
from privfed.experiment.wiring import Experiment
from privfed.runtimes import ray_cluster

NODES = 6
LOST = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
BEFORE, NOTICED, MISSING, BACK = (
    "before the loss",
    "the step that notices",
    "users missing",
    "all are back",
)
Row = dict[str, Any]


class Watch:
    """Called after every step: notes where the cohorts are, loses a raylet, waits for its users.

    Args:
        raylets: the cluster.
        ray: Ray's module, connected to the cluster.
        lose: `kill` or `freeze`; None loses no raylet.
        after: step after which the raylet is lost, in the middle of the next one.
        pause: seconds between two steps while users are missing.
    """

    def __init__(
        self, raylets: Raylets, ray: Any, lose: str | None, after: int, pause: float
    ) -> None:
        if lose is not None and lose not in LOST:
            raise ValueError(f"lose={lose}: must be one of {', '.join(LOST)}")
        self.raylets, self.ray, self.lose, self.after, self.pause = raylets, ray, lose, after, pause
        self.number = raylets.of_node(ray.nodes())
        here = self.number[ray.get_runtime_context().get_node_id()]
        self.victim = max(set(range(1, raylets.count)) - {here}, default=0)
        self.lost_at = 0.0
        self.back_after: float | None = None
        """Seconds from the loss to the end of the first step in which all users took part again."""
        self.noticed = False

    def __call__(self, row: Row) -> None:
        """Complete the row of a step."""
        row["cohorts"] = self.where()
        row["phase"] = self._phase(row["missing_users"])
        if self.lose and row["step"] == self.after:
            threading.Timer(row["seconds"] / 2, self._strike).start()
            # With few users a round would be over before the loss; wait for the loss instead.
            while not self.lost_at and row["seconds"] < 0.1:
                time.sleep(0.001)
        if self.lost_at and not self.back_after:
            time.sleep(self.pause)

    def where(self) -> list[int]:
        """Return the number of living node processes per raylet."""
        alive = [
            actor
            for actor in self.ray._private.state.actors().values()
            if actor["State"] == "ALIVE"
        ]
        count = Counter(self.number[actor["Address"]["NodeID"]] for actor in alive)
        return [count[number] for number in range(self.raylets.count)]

    def _strike(self) -> None:
        self.raylets.send(self.victim, LOST[str(self.lose)])
        self.lost_at = time.perf_counter()

    def _phase(self, missing: int) -> str:
        if missing:
            first, self.noticed = not self.noticed, True
            return NOTICED if first else MISSING
        if not self.noticed:
            return BEFORE
        self.back_after = self.back_after or time.perf_counter() - self.lost_at
        return BACK


def in_one_process(n: int, rounds: int, overrides: Sequence[str] = ()) -> Outcome:
    """Run the reference."""
    # Compile and load before anything is timed.
    Experiment(compose(["data.n=1000", "rounds=2", *overrides])).run()
    return Experiment(
        compose([f"data.n={n}", f"rounds={rounds}", f"runtime.nodes={NODES}", *overrides])
    ).run()


def over_raylets(
    raylets: Raylets,
    n: int,
    rounds: int,
    lose: str | None = None,
    after: int = 4,
    pause: float = 3.0,
    overrides: Sequence[str] = (),
) -> tuple[Outcome, Watch]:
    """Run once over a cluster.

    Args:
        raylets: the cluster.
        n: number of users.
        rounds: number of rounds.
        lose: `kill` or `freeze` a raylet; None loses none.
        after: step after which the raylet is lost.
        pause: seconds between two steps while users are missing.
        overrides: further settings.

    Returns:
        The outcome, whose rows also hold the number of `cohorts` per raylet and the `phase`, and
        the watch.
    """
    settings = [
        f"data.n={n}",
        f"rounds={rounds}",
        "runtime=ray",
        f"runtime.address={raylets.address}",
        f"runtime.nodes={NODES}",
    ]
    with ray_cluster.attached(raylets.address, verbose=False) as ray:
        watch = Watch(raylets, ray, lose, after, pause)
        return Experiment(compose([f"data.n={n}", f"rounds={rounds}", *settings, *overrides])).run(
            on_step=watch
        ), watch


def phases(
    name: str, outcome: Outcome, reference: Outcome, watch: Watch | None = None
) -> list[Row]:
    """Return one row per phase of a run.

    A row holds the median ms per round, the number of missing users, where cohorts were, and the
    final error of the whole run.
    """
    rounds = [row for row in outcome.rows if row["task"] == "gradient"]
    mse, expected = outcome.result["metrics"]["mse"], reference.result["metrics"]["mse"]
    rows = []
    for phase in dict.fromkeys(row.get("phase", BEFORE) for row in rounds):
        those = [row for row in rounds if row.get("phase", BEFORE) == phase]
        rows.append(
            {
                "run": name,
                "phase": phase if watch is not None and watch.lose else "all rounds",
                "n": outcome.result["n_users"],
                "rounds": len(those),
                "ms": 1e3 * statistics.median(row["seconds"] for row in those),
                "missing_users": max(row["missing_users"] for row in those),
                "cohorts": those[-1].get("cohorts", [NODES]),
                "back_after_s": watch.back_after if watch is not None and phase == BACK else None,
                "setup_s": outcome.result["time"]["setup_s"],
                "mse": mse,
                "mse_ratio": mse / expected,
            }
        )
    return rows


def measured(
    n: int, rounds: int, lose: str | None = None, pause: float = 3.0, overrides: Sequence[str] = ()
) -> list[Row]:
    """Run in one process, over three raylets and, with `lose`, with one raylet lost.

    Returns:
        One row per run and phase.
    """
    reference = in_one_process(n, rounds, overrides)
    rows = phases("one process", reference, reference)
    gc.collect()  # frees the data of the reference before other processes make theirs
    with Raylets() as raylets:
        outcome, watch = over_raylets(raylets, n, rounds, overrides=overrides)
        rows += phases("three raylets", outcome, reference, watch)
        if lose:
            outcome, watch = over_raylets(
                raylets, n, rounds, lose, pause=pause, overrides=overrides
            )
            rows += phases(f"three raylets, one lost ({lose})", outcome, reference, watch)
    return rows


def shown(rows: Sequence[Row]) -> Table:
    """Return the rows as a table."""
    table = Table(
        title=f"FedRep, n={rows[0]['n']:,}, {NODES} cohorts, raylets on one machine (medians)",
        title_justify="left",
    )
    for column in (
        "run",
        "phase",
        "rounds",
        "ms a round",
        "users missing",
        "cohorts by raylet",
        "final mse",
        "of the reference",
    ):
        table.add_column(column, justify="left" if column in ("run", "phase") else "right")
    for i, row in enumerate(rows):
        again = i and rows[i - 1]["run"] == row["run"]
        where = " + ".join(map(str, row["cohorts"]))
        back = (
            f"{row['phase']}, {row['back_after_s']:.1f} s after the loss"
            if row["back_after_s"]
            else row["phase"]
        )
        numbers = [f"{row['rounds']}", f"{row['ms']:,.1f}", f"{row['missing_users']:,}", where]
        table.add_row(
            "" if again else row["run"],
            back,
            *numbers,
            *(("", "") if again else (f"{row['mse']:.4e}", f"{row['mse_ratio']:.6f}")),
            end_section=i + 1 == len(rows) or rows[i + 1]["run"] != row["run"],
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--lose",
        nargs="?",
        const="kill",
        choices=LOST,
        help="lose a raylet: kill (default) or freeze",
    )
    parser.add_argument("overrides", nargs="*", help="settings of the run")
    chosen = parser.parse_args()
    print(f"{ray_cluster.usable_cores()} cores, load {os.getloadavg()[0]:.1f}")
    Console(highlight=False, width=160).print(
        shown(measured(chosen.n, chosen.rounds, chosen.lose, overrides=chosen.overrides))
    )


if __name__ == "__main__":
    main()
