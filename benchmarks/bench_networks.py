"""Networks on images against a per-user PyTorch loop: two sections of `make bench`.

    python benchmarks/bench_networks.py [--quick]

Timed is one whole private round of CENTAUR in the paper's setting: 15 head epochs and 2 local
epochs with batches of 100. The reference does the same for one user after the other, with
torch.optim.SGD on a copy of the network. It gets the better of two ways to use two threads. In a
second version it computes the representation once for all head epochs. Rounds and loops are timed
in turn, in one process and with two threads each. They are compared by medians, because machines
are noisy.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_table import Column, Effort, Row, Section
from hydra.utils import instantiate
from rich.console import Console
from torch import Tensor, nn

from privfed.config.composition import compose
from privfed.data.cohort import Cohort
from privfed.experiment.wiring import Experiment
from privfed.foundation.linalg import Array

THREADS, ROUNDS = 2, 2
CLIP, LR, MOMENTUM, DECAY, HEAD_EPOCHS, LOCAL_EPOCHS, BATCH = 0.25, 0.01, 0.9, 1e-4, 15, 2, 100
SETTING = (
    "algo=network/centaur",
    "data=patterns",
    "data.S=5",
    f"rounds={ROUNDS}",
    f"runtime.threads={THREADS}",
    f"algo.clip={CLIP}",
    f"algo.lr={LR}",
    f"algo.head_lr={LR}",
    f"algo.momentum={MOMENTUM}",
    f"algo.weight_decay={DECAY}",
    f"algo.batch={BATCH}",
    f"algo.head_epochs={HEAD_EPOCHS}",
    f"algo.local_epochs={LOCAL_EPOCHS}",
)
MLP = ("model=mlp", "data.size=28", "data.m=54")
LENET = ("model=lenet", "data.size=32", "data.channels=3", "data.m=100")
Work = Callable[[Sequence[int]], Array]


def loop(
    network: nn.Sequential, shape: Sequence[int], users: Cohort, cached: bool, some: Sequence[int]
) -> Array:
    """Return the sum of the clipped updates of the users `some`, computed one by one.

    Args:
        network: shared network.
        shape: shape of an image.
        users: images and labels.
        cached: whether features are computed once for all head epochs.
        some: positions of the users.
    """
    total = np.zeros(sum(parameter.numel() for parameter in network[:-1].parameters()))
    criterion = nn.CrossEntropyLoss()
    for i in some:
        x = torch.from_numpy(users.X[i]).float().div(127.5).sub(1).reshape(-1, *shape)
        y = torch.from_numpy(users.y[i]).long()
        own = copy.deepcopy(network)
        body, head = own[:-1], own[-1]
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        optimiser = torch.optim.SGD(head.parameters(), LR, MOMENTUM, weight_decay=DECAY)
        seen = represented(body, x) if cached else None
        for _ in range(HEAD_EPOCHS):
            for batch in torch.randperm(len(y)).split(BATCH):
                features = seen[batch] if seen is not None else represented(body, x[batch])
                optimiser.zero_grad()
                criterion(head(features), y[batch]).backward()
                optimiser.step()
        head.requires_grad_(False)
        optimiser = torch.optim.SGD(body.parameters(), LR, MOMENTUM, weight_decay=DECAY)
        for _ in range(LOCAL_EPOCHS):
            for batch in torch.randperm(len(y)).split(BATCH):
                optimiser.zero_grad()
                criterion(head(body(x[batch])), y[batch]).backward()
                optimiser.step()
        with torch.no_grad():
            pairs = zip(body.parameters(), network[:-1].parameters(), strict=True)
            change = torch.cat([(mine - shared).ravel() for mine, shared in pairs])
            total += (change * min(1.0, CLIP / float(change.norm()))).numpy()
    return total


def represented(body: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        features: Tensor = body(x)
    return features


def reference(experiment: Experiment, users: int) -> tuple[nn.Sequential, Cohort]:
    """Return the network of the first round as a separate module, and the first users' images."""
    module = instantiate(experiment.cfg.model.module)
    start = experiment.strategy.start()
    with torch.no_grad():
        for parameter, value in zip(module[:-1].parameters(), start, strict=True):
            parameter.copy_(torch.from_numpy(value))
    data: Any = experiment.data
    return module, data.cohort(0, users)


def one_after_the_other(work: Work, users: int) -> Array:
    """Return the sum over users, with all threads inside the network of one user at a time."""
    torch.set_num_threads(THREADS)
    return work(range(users))


def side_by_side(work: Work, users: int) -> Array:
    """Return the sum over users, divided among THREADS Python threads."""
    parts = [range(i, users, THREADS) for i in range(THREADS)]
    with ThreadPoolExecutor(THREADS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return np.asarray(sum(pool.map(work, parts)))


def per_second(users: int, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return users / (time.perf_counter() - start)


def our_rounds(*overrides: str) -> tuple[float, Experiment]:
    """Return users per second of whole rounds (Flower's loop, noise gate), and the experiment."""
    experiment = Experiment(compose([*SETTING, *overrides]))
    spent = experiment.run().result["time"]["rounds_s"]
    return ROUNDS * experiment.data.n / spent, experiment


def against_torch(
    repetitions: int, mlp_users: int, lenet_users: int, looped: tuple[int, int]
) -> list[Row]:
    """Return one row per network: users per second of a private round.

    Args:
        repetitions: number of timed repetitions.
        mlp_users: users of privfed's run with the MLP.
        lenet_users: users of privfed's run with LeNet.
        looped: users of the PyTorch loop, with the MLP and with LeNet.
    """
    rows = []
    problems = (
        (looped[0], mlp_users, {"MLP": MLP}),
        (
            looped[1],
            lenet_users,
            {"LeNet": LENET, "LeNet, bfloat16": (*LENET, "model.precision=bfloat16")},
        ),
    )
    for some, n, variants in problems:
        speeds: dict[str, list[float]] = {}
        for repetition in range(-1, repetitions):  # -1: to warm up
            count, users = (some, n) if repetition >= 0 else (2, 4)
            for name, overrides in variants.items():
                speed, experiment = our_rounds(*overrides, f"data.n={users}")
                speeds.setdefault(name, []).append(speed)
            network, images = reference(experiment, count)
            shape = experiment.cfg.data.shape
            for cached in (False, True):
                work = partial(loop, network, shape, images, cached)
                for way in (one_after_the_other, side_by_side):
                    speed = per_second(count, partial(way, work, count))
                    speeds.setdefault(f"{cached} {way.__name__}", []).append(speed)
        median = {key: statistics.median(values[1:]) for key, values in speeds.items()}
        plain, kept = (
            max(speed for key, speed in median.items() if key.startswith(cached))
            for cached in ("False", "True")
        )
        for name in variants:
            mine = median[name]
            ratios = {"ratio": mine / plain, "ratio_kept": mine / kept}
            rows.append(
                {
                    "network": name,
                    "n": n,
                    "users_per_s": mine,
                    "loop": plain,
                    "loop_kept": kept,
                    **ratios,
                }
            )
    return rows


def memory(mlp_users: int, lenet_users: int) -> list[Row]:
    """Return one row per network: peak memory of a run of one round, in a separate process."""
    rows = []
    for name, sizes, n in (
        ("MLP", MLP, mlp_users),
        ("LeNet", (*LENET, "algo.local_epochs=1"), lenet_users),
    ):
        with tempfile.TemporaryDirectory() as folder:
            settings = [*SETTING, *sizes, f"data.n={n}", "rounds=1", f"out={folder}/o"]
            subprocess.run([sys.executable, "-m", "privfed.run", "--quiet", *settings], check=True)
            result = json.loads((Path(folder) / "o/result.json").read_text())
        rows.append(
            {
                "network": name,
                "n": n,
                "rounds_s": result["time"]["rounds_s"],
                "peak_mb": result["peak_rss_mb"],
            }
        )
    return rows


def speeds(effort: Effort) -> list[Row]:
    """Return the speeds; a quick effort takes one repetition and fewer users."""
    return (
        against_torch(1, 200, 8, (20, 4)) if effort.quick else against_torch(3, 1000, 24, (40, 8))
    )


NETWORKS = Section(
    "networks",
    "Networks against a loop in PyTorch",
    "a private round with networks, 15 head and 2 local epochs, 2 threads (medians, users a "
    "second)",
    "CENTAUR's round in the paper's setting against a loop over users in PyTorch, which gets the "
    "better of two ways to use two threads, and in a second version keeps features. MLP "
    "256-128-16: 54 images of 28x28; LeNet: 100 images of 3x32x32; the loop is always in float32.",
    speeds,
    [
        Column("network", "network"),
        Column("users", "n", ",d"),
        Column("privfed", "users_per_s", ".1f", unit="users/s", better="higher"),
        Column("loop", "loop", ".1f"),
        Column("ratio", "ratio", ".1f", better="higher", relative=True),
        Column("loop, features kept", "loop_kept", ".1f"),
        Column("ratio", "ratio_kept", ".2f", better="higher", relative=True),
    ],
    ["network"],
)
MEMORY = Section(
    "memory",
    "Memory of networks",
    "peak memory of a run of one round with networks",
    "Whole runs in processes of their own; they are to stay below 3 GB.",
    lambda effort: memory(1000, 20 if effort.quick else 500),
    [
        Column("network", "network"),
        Column("users", "n", ",d"),
        Column("round s", "rounds_s", ".1f", unit="s", better="lower"),
        Column("peak memory MB", "peak_mb", ",.0f", unit="MB", better="lower"),
    ],
    ["network"],
)
SECTIONS = (NETWORKS, MEMORY)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one repetition, fewer users")
    effort = Effort(parser.parse_args().quick)
    for section in SECTIONS:
        Console(highlight=False).print(section.table(section.work(effort)))


if __name__ == "__main__":
    main()
