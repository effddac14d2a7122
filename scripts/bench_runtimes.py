"""The same rounds in one process and in processes of their own: part of make bench."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any, ClassVar
from unittest.mock import patch

from rich.table import Table

from privfed.config import compose
from privfed.experiment import Experiment
from privfed.runtimes import cluster
from privfed.runtimes.ray import RayProxy

RUNTIMES = {
    "one process, 2 threads": ("runtime.nodes=2", "runtime.threads=2"),
    "Ray, 1 node": ("runtime=ray", "runtime.nodes=1", "runtime.cpus=0.5"),
    "Ray, 2 nodes": ("runtime=ray", "runtime.nodes=2", "runtime.cpus=0.5"),
}
"""Half a core each is reserved, so that a machine with one has room, too; either way a node has one thread."""
BASE, ALONE, TOGETHER = RUNTIMES


class CountedProxy(RayProxy):
    """Counts what is sent to a node."""

    sent: ClassVar[Counter[tuple[str, str]]] = Counter()

    def ask(self, question: str, ins: Any, timeout: float | None) -> Any:
        """Count, then ask."""
        self.sent[self.cid, question] += 1
        return super().ask(question, ins, timeout)


def processes(users: int, rounds: int, repetitions: int) -> Table:
    """Milliseconds a round by runtime, taken in turn, and the messages each node is sent in a round."""
    title = f"processes of their own, one thread each, at n={users:,} (medians)"
    table = Table(title=title, title_justify="left")
    for column in ("runtime", "ms a round", "messages a node"):
        table.add_column(column, justify="left" if column == "runtime" else "right")
    seconds: dict[str, list[float]] = {name: [] for name in RUNTIMES}
    messages: dict[str, float] = {}
    # One Ray serves all runs: its start is not what is measured.
    with cluster.attached(None, False), patch("privfed.runtimes.ray.RayProxy", CountedProxy):
        for _ in range(repetitions):
            for name, overrides in RUNTIMES.items():
                CountedProxy.sent.clear()
                experiment = Experiment(compose([f"data.n={users}", f"rounds={rounds}", *overrides]))
                outcome = experiment.run()
                seconds[name] += [row["seconds"] for row in outcome.rows if row["task"] == "gradient"]
                asked = [count for (_, question), count in CountedProxy.sent.items() if question == "fit"]
                messages[name] = max(asked, default=0) / len(outcome.rows)  # in one process none is sent
    cost = {name: statistics.median(each) for name, each in seconds.items()}
    for name, each in cost.items():
        table.add_row(name, f"{1e3 * each:.1f}", f"{messages[name]:g}", end_section=name == TOGETHER)
    for slow, fast in ((ALONE, TOGETHER), (TOGETHER, BASE)):
        table.add_row(f"{slow} / {fast}", f"{cost[slow] / cost[fast]:.2f}", "")
    return table


def over_the_network(repetitions: int) -> Table:
    """Rounds a second of a federation whose users have next to nothing to compute: what messages over gRPC with TLS cost."""
    rounds = 200
    settings = ["data.n=3", "data.d=5", "data.m=6", f"rounds={rounds}"]
    table = Table(title="three idle clients, one user each (medians)", title_justify="left")
    for column in ("runtime", "rounds a second", "ms a round"):
        table.add_column(column, justify="left" if column == "runtime" else "right")
    for name, runtime in (("one process", "runtime=inprocess"), ("gRPC on loopback, TLS, a process a client", "runtime=grpc")):
        each = []
        for _ in range(repetitions):
            outcome = Experiment(compose([*settings, runtime, "runtime.nodes=3"])).run()
            each += [row["seconds"] for row in outcome.rows]
        seconds = statistics.median(each)
        table.add_row(name, f"{1 / seconds:,.0f}", f"{1e3 * seconds:.2f}")
    return table
