"""The same rounds in one process and in several processes: two sections of `make bench`."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any, ClassVar
from unittest.mock import patch

from bench_table import Column, Row, Section

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.runtimes import ray_cluster
from privfed.runtimes.ray import RayProxy

RUNTIMES = {
    "one process, 2 threads": ("runtime.nodes=2", "runtime.threads=2"),
    "Ray, 1 node": ("runtime=ray", "runtime.nodes=1", "runtime.cpus=0.5"),
    "Ray, 2 nodes": ("runtime=ray", "runtime.nodes=2", "runtime.cpus=0.5"),
}
"""Half a core is reserved per node, so that two nodes fit on one core; a node has one thread."""
BASE, ALONE, _ = RUNTIMES


class CountedProxy(RayProxy):
    """Counts the messages to a node."""

    sent: ClassVar[Counter[tuple[str, str]]] = Counter()

    def ask(self, question: str, ins: Any, timeout: float | None) -> Any:
        """Count the message, then ask."""
        self.sent[self.cid, question] += 1
        return super().ask(question, ins, timeout)


def processes(users: int, rounds: int, repetitions: int) -> list[Row]:
    """Return one row per runtime: seconds per round, and messages per node and round.

    Runtimes are timed in turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name in RUNTIMES}
    messages: dict[str, float] = {}
    # One Ray serves all runs, because its start is not measured.
    with ray_cluster.attached(None, False), patch("privfed.runtimes.ray.RayProxy", CountedProxy):
        for _ in range(repetitions):
            for name, overrides in RUNTIMES.items():
                CountedProxy.sent.clear()
                experiment = Experiment(
                    compose([f"data.n={users}", f"rounds={rounds}", *overrides])
                )
                outcome = experiment.run()
                seconds[name] += [
                    row["seconds"] for row in outcome.rows if row["task"] == "gradient"
                ]
                asked = [
                    count for (_, question), count in CountedProxy.sent.items() if question == "fit"
                ]
                # In one process no message is sent.
                messages[name] = max(asked, default=0) / len(outcome.rows)
    cost = {name: statistics.median(each) for name, each in seconds.items()}
    return [
        {
            "n": users,
            "runtime": name,
            "seconds": each,
            "of_one_process": each / cost[BASE],
            "of_one_node": each / cost[ALONE],
            "messages": messages[name],
        }
        for name, each in cost.items()
    ]


def over_the_network(repetitions: int, rounds: int = 200) -> list[Row]:
    """Return one row per runtime: rounds of a federation whose users compute almost nothing."""
    settings = ["data.n=3", "data.d=5", "data.m=6", f"rounds={rounds}"]
    rows: list[Row] = []
    for name, runtime in (
        ("one process", "runtime=inprocess"),
        ("gRPC on loopback, TLS, a process a client", "runtime=grpc"),
    ):
        each = []
        for _ in range(repetitions):
            outcome = Experiment(compose([*settings, runtime, "runtime.nodes=3"])).run()
            each += [row["seconds"] for row in outcome.rows]
        seconds = statistics.median(each)
        rows.append({"runtime": name, "rounds_per_s": 1 / seconds, "seconds": seconds})
    return rows


RAY = Section(
    "ray",
    "Processes of their own, on Ray",
    "processes of their own, one thread each, at n={n:,} (medians)",
    "The same rounds in one process with two threads and on Ray with one and two nodes, each a "
    "process of one thread.",
    lambda effort: processes(20_000 if effort.quick else 200_000, 20, effort.few),
    [
        Column("runtime", "runtime"),
        Column("ms a round", "seconds", ".1f", 1e3, "s", "lower"),
        Column("against one process", "of_one_process", ".2f", better="lower", relative=True),
        Column("against Ray, 1 node", "of_one_node", ".2f"),
        Column("messages a node and round", "messages", "g"),
    ],
    ["runtime"],
)
GRPC = Section(
    "grpc",
    "Messages over gRPC",
    "three idle clients, one user each (medians)",
    "What messages cost: clients with next to nothing to compute, in one process, and as "
    "processes over gRPC with TLS.",
    lambda effort: over_the_network(effort.few),
    [
        Column("runtime", "runtime"),
        Column("rounds a second", "rounds_per_s", ",.0f", unit="rounds/s", better="higher"),
        Column("ms a round", "seconds", ".2f", 1e3),
    ],
    ["runtime"],
)
SECTIONS = (RAY, GRPC)
