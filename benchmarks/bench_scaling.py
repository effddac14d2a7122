"""Predict the cost of a round up to 10^9 users on 1,000 machines.

    python benchmarks/bench_scaling.py [--write] [--cores 16]

It measures the constants of the model in `scaling.py` on this machine, in about two minutes. It
compares predictions with rounds measured here, and prints predictions for more users and machines
than there are here. --write puts the numbers and the picture into docs/scaling.md and leaves the
prose around them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, serde
from flwr.proto.transport_pb2 import ClientMessage, ServerMessage
from rich.console import Console
from rich.markdown import Markdown
from scaling import Costs, Line
from scaling_page import CORES, PAGE, PICTURE, D, K, P, Row, blocks, drawn, replaced
from threadpoolctl import threadpool_limits

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.models.architectures import lenet, mlp
from privfed.runtimes.inprocess import LocalProxy

RUNTIMES = {"in process": "runtime=inprocess", "Ray": "runtime=ray", "gRPC": "runtime=grpc"}


def experiment(*overrides: str) -> Experiment:
    return Experiment(compose(["init=random", f"data.k={K}", f"model.k={K}", *overrides]))


def first_message(strategy: Any) -> FitIns:
    """Return what a node is told in the first step."""
    told = strategy.announcement(strategy.plan[0])
    return FitIns(ndarrays_to_parameters(strategy.shared), told.to_config())


def shape_of_answers(strategy: Any) -> tuple[int, ...]:
    """Return the shape of the sum that a node sends in each step."""
    (shape,) = strategy.shapes(strategy.plan[0]).values()
    return tuple(shape)


def client_seconds(d: int, users: Sequence[int], tries: int = 9) -> tuple[float, float, float]:
    """Return what FedRep's client costs one core.

    All cores compute at the same time, each for a separate cohort, because in a run, too, they
    share the memory bandwidth.

    Args:
        d: number of features.
        users: numbers of users per cohort.
        tries: number of timed calls.

    Returns:
        Seconds per call of a node, seconds per user, and bytes of a user's data.
    """
    cores = len(os.sched_getaffinity(0))
    made = experiment(f"data.n={cores * max(users)}", f"data.d={d}", "runtime.nodes=1")
    ins = first_message(made.strategy)

    def taken(first: int, count: int) -> list[float]:
        client = made.factory(range(first, first + count)).to_client()
        together.wait()
        seconds = []
        for _ in range(1 + tries):  # the first warms up
            start = time.thread_time()
            client.fit(ins)
            seconds.append(time.thread_time() - start)
        return seconds[1:]

    found = []
    with threadpool_limits(1), ThreadPoolExecutor(cores) as pool:
        for count in users:
            together = threading.Barrier(cores)
            each = pool.map(taken, (core * count for core in range(cores)), [count] * cores)
            found.append(statistics.median(second for seconds in each for second in seconds))
    line, stored = Line.through(users, found), made.factory(range(1)).seen
    return line.base, line.each, stored.X.nbytes + stored.y.nbytes


def message_bytes(sizes: Sequence[int]) -> dict[str, Line]:
    """Return the bytes of a message to a node and of its answer, as lines in P.

    Bytes are those that Flower sends; P is the number of numbers in a message.
    """
    down, up = [], []
    for size in sizes:
        strategy = experiment("data.n=10", f"data.d={size // K}").strategy
        ins = first_message(strategy)
        down.append(ServerMessage(fit_ins=serde.fit_ins_to_proto(ins)).ByteSize())
        up.append(len(answer(shape_of_answers(strategy), 1)))
    return {"down": Line.through(sizes, down), "up": Line.through(sizes, up)}


def answer(shape: tuple[int, ...], step: int, seed: int = 0) -> bytes:
    """Return the whole answer of a node as bytes."""
    sums = 1e-6 * np.random.default_rng(seed).standard_normal(shape)
    res = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([sums]), 1, {"step": step})
    return ClientMessage(fit_res=serde.fit_res_to_proto(res)).SerializeToString()


def reply_seconds(sizes: Sequence[int], nodes: Sequence[int], rounds: int = 7) -> Line:
    """Return the server's seconds per answer: decoding, and the strategy's `aggregate_fit`."""
    each = []
    for size in sizes:
        seconds = []
        for count in nodes:
            strategy = experiment(
                f"data.n={count}",
                f"data.d={size // K}",
                f"runtime.nodes={count}",
                f"rounds={rounds}",
            ).strategy
            proxies = [LocalProxy(cid, None) for cid in strategy.federation.nodes]  # type: ignore[arg-type]
            taken, shape = [], shape_of_answers(strategy)
            with threadpool_limits(1):
                for step in range(1, rounds + 1):
                    wire = [answer(shape, step, seed) for seed in range(count)]
                    start = time.thread_time()
                    replies = [
                        serde.fit_res_from_proto(ClientMessage.FromString(message).fit_res)
                        for message in wire
                    ]
                    strategy.aggregate_fit(step, list(zip(proxies, replies, strict=True)), [])
                    taken.append(time.thread_time() - start)
            seconds.append(statistics.median(taken))
        each.append(max(1e-9, (seconds[-1] - seconds[0]) / (nodes[-1] - nodes[0])))
    return Line.through(sizes, each)


def round_costs(runtime: str, nodes: Sequence[int], rounds: int = 40) -> tuple[float, float]:
    """Measure whole rounds of a runtime whose nodes have one user each.

    Returns:
        The server's own processor seconds per additional node, and the rest of the seconds of a
        round with the fewest nodes.
    """
    share = ["runtime.cpus=0.1"] if runtime == "Ray" else []
    clock: list[float] = []
    busy, passed = [], []
    for count in nodes:
        made = experiment(
            RUNTIMES[runtime],
            f"runtime.nodes={count}",
            f"data.n={count}",
            f"rounds={rounds}",
            *share,
        )
        clock.clear()
        rows = made.run(on_step=lambda row: clock.append(time.process_time())).rows
        busy.append(statistics.median(after - before for before, after in pairwise(clock)))
        passed.append(statistics.median(row["seconds"] for row in rows))
    each = max(1e-9, (busy[-1] - busy[0]) / (nodes[-1] - nodes[0]))
    return each, max(0.0, passed[0] - nodes[0] * each)


def measured() -> tuple[Costs, Row]:
    """Return all constants, and the machine on which they were measured.

    Seconds are processor seconds, so that other programs disturb them little.
    """
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    experiment("data.n=1000", "rounds=2").run()  # compile and load before anything is timed
    by_size = {d: client_seconds(d, (1, 400_000 // d, 2_000_000 // d)) for d in (D, 200, 800)}
    sizes = message_bytes((100, 1000, 10_000, 100_000))
    reply = reply_seconds((P, 10_000, 100_000), (4, 40))
    found = {
        name: round_costs(name, (4, 400) if name == "in process" else (1, 6)) for name in RUNTIMES
    }
    node, _, memory = by_size[D]
    # In one process the seconds of the server include those of the nodes.
    nodes_own = {"in process": node / cores}
    costs = Costs(
        user=Line.through([K * d for d in by_size], [each for _, each, _ in by_size.values()]),
        node=node,
        reply=reply,
        fixed={name: fixed for name, (_, fixed) in found.items()},
        overhead={
            name: max(0.0, each - nodes_own.get(name, 0.0) - reply(P))
            for name, (each, _) in found.items()
        },
        down=sizes["down"],
        up=sizes["up"],
        memory=memory,
    )
    return costs, {"cores": cores, "load": load, "networks": network_sizes()}


def network_sizes() -> dict[str, int]:
    """Return the number of shared parameters of the papers' networks."""
    nets = {
        "MLP for 28 x 28 images": mlp((1, 28, 28), 10, (256, 128, 16)),
        "LeNet for 32 x 32 x 3 images": lenet((3, 32, 32), 10, (64, 64), (384, 192)),
    }
    return {
        name: sum(
            part.numel() for title, part in net.named_parameters() if not title.startswith("head")
        )
        for name, net in nets.items()
    }


def validated(costs: Costs, rounds: int = 12) -> list[Row]:
    """Return rounds measured here beside their predictions; none was used for the constants."""
    cores = len(os.sched_getaffinity(0))
    cases = [("in process", n, nodes) for n in (2000, 20_000, 100_000) for nodes in (2, 16, 200)]
    cases += [
        ("in process", 2000, 2000),
        ("Ray", 20_000, 2),
        ("Ray", 100_000, 2),
        ("gRPC", 20_000, 2),
        ("gRPC", 2000, 4),
    ]
    rows = []
    for runtime, n, nodes in cases:
        share = ["runtime.cpus=0.5"] if runtime == "Ray" else []
        made = experiment(
            RUNTIMES[runtime], f"data.n={n}", f"runtime.nodes={nodes}", f"rounds={rounds}", *share
        )
        clock: list[float] = []

        def noted(_row: Row, clock: list[float] = clock) -> None:
            clock.append(time.process_time())

        rounds_of = made.run(on_step=noted).rows
        row: Row = {"runtime": runtime, "n": n, "nodes": nodes}
        row["predicted"] = costs.flat(n, nodes, 1, cores, runtime, P, None).total
        row["measured"] = statistics.median(each["seconds"] for each in rounds_of)
        if runtime == "in process":  # only here does this process use all processor seconds
            row["busy_predicted"] = row["predicted"] + costs.user(P) * n * (
                1 - 1 / min(cores, nodes)
            )
            row["busy"] = statistics.median(after - before for before, after in pairwise(clock))
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", action="store_true", help="put numbers and picture into docs/scaling.md"
    )
    parser.add_argument(
        "--cores", type=int, default=CORES, help="cores a machine is assumed to have"
    )
    chosen = parser.parse_args()
    costs, facts = measured()
    numbers = blocks(costs, validated(costs), facts, chosen.cores)
    console = Console(highlight=False, width=120)
    for name, block in numbers.items():
        console.print(Markdown(f"# {name}\n\n{block}"))
    if chosen.write:
        PAGE.write_text(replaced(PAGE.read_text(), numbers))
        drawn(costs).savefig(PICTURE, dpi=110)
        print("written: docs/scaling.md, docs/figures/scaling.png")


if __name__ == "__main__":
    os.environ.setdefault("PRIVFED_COMPILE", "always")
    main()
