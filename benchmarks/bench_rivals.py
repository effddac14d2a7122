"""The same private FedRep round by others.

    python benchmarks/bench_rivals.py [--n 1000000] [--only NAME ...]

Measured are users per second of whole rounds (d=50, k=2, m=10, leave-one-out; every user clipped to
norm 0.05, summed, Gaussian noise on the sum, QR step): in vectorised NumPy, in a loop over users,
on Apple's pfl and on stock Flower with Ray. Every rival first shows, on the problem on which it is
timed, that its clipped sum without noise equals ours. A rival with another sum is not compared.

pfl has a separate environment: python benchmarks/bench_rivals.py --install-pfl makes .venv-pfl
beside .venv.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_numpy import plain_leave_one_out
from bench_table import Column, Row, Section
from bench_user import CLIP, NOISE, Array, clipped, gradient, stepped
from rich.console import Console

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.foundation.linalg import retraction
from privfed.privacy.clipping import SLACK

FOLDER = Path(__file__).resolve().parent
PFL = FOLDER.parent / ".venv-pfl"
PFL_VERSION = "0.6.0"
BOUND = CLIP * SLACK
"""Norm to which privfed clips, a millionth below the announced norm."""
AGREEMENT = 1e-6
"""Allowed distance of a rival's clipped sum from ours, relative to its norm."""
BASE, LARGE = 20_000, 1_000_000
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
FAIR = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
"""Settings that help rivals.

They have one BLAS thread per process, because a user's matrices are tiny. Ray's processes have
normal priority; by default Ray gives them a low one.
"""

Answer = tuple[Array, list[float]]
"""Clipped sum (k, d) of the first round, without noise, and seconds of timed rounds with noise."""


class RivalError(RuntimeError):
    """The process of a rival failed. It has no speed, and the other rivals go on."""


class Problem:
    """n users, an embedding near the true one, and privfed's own clipped sum at it."""

    def __init__(self, n: int) -> None:
        experiment = Experiment(
            compose([f"data.n={n}", "init=random", "rounds=1", "eps=inf", f"algo.clip={CLIP}"])
        )
        data: Any = experiment.data
        users = data.cohort(0, n)
        self.n, self.X, self.y = (
            n,
            np.asarray(users.X, dtype=np.float64),
            np.asarray(users.y, dtype=np.float64),
        )
        self.U = retraction(data.U_star + 0.05)
        told = experiment.strategy.announcement(experiment.strategy.plan[-1])
        sums, _, _ = experiment.factory(range(n)).fit([self.U], told.to_config())
        self.total = np.reshape(sums[0], self.U.T.shape)

    def difference(self, total: Array) -> float:
        """Return the distance of a clipped sum from ours, relative to the norm of ours."""
        return float(np.linalg.norm(total - self.total) / np.linalg.norm(self.total))


def vectorised(problem: Problem) -> Callable[[Array], Array]:
    """Return U -> clipped sum, for all users at once, with all of BLAS's threads."""

    def total(U: Array) -> Array:
        G = plain_leave_one_out(problem.X, problem.y, U, np.random.default_rng(0))
        return np.tensordot(np.minimum(1, BOUND / np.sqrt(np.sum(G * G, axis=(1, 2)))), G, 1)

    return total


def looped(problem: Problem) -> Callable[[Array], Array]:
    """Return U -> clipped sum, for one user after the other."""

    def total(U: Array) -> Array:
        result = np.zeros(U.T.shape)
        for X, y in zip(problem.X, problem.y, strict=True):
            result += clipped(gradient(X, y, U), BOUND)
        return result

    return total


def rounds_here(
    make: Callable[[Problem], Callable[[Array], Array]], problem: Problem, rounds: int
) -> Answer:
    """Run whole rounds in this process."""
    sum_of, U, rng, seconds = make(problem), problem.U, np.random.default_rng(0), []
    first = sum_of(U)
    for t in range(rounds):
        start = time.perf_counter()
        noised = sum_of(U) + NOISE * rng.standard_normal(first.shape)
        U = stepped(U, noised, problem.n, t)
        seconds.append(time.perf_counter() - start)
    return first, seconds


def rounds_apart(command: Sequence[str], problem: Problem, rounds: int) -> Answer:
    """Run whole rounds in a separate process.

    Args:
        command: command line, in which {problem}, {answer} and {rounds} are filled in.
        problem: the problem.
        rounds: number of timed rounds.

    Raises:
        RivalError: if the process fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = {
            "problem": f"{folder}/problem.npz",
            "answer": f"{folder}/answer.npz",
            "rounds": str(rounds),
        }
        np.savez(names["problem"], X=problem.X, y=problem.y, U=problem.U, bound=BOUND)
        line = [word.format(**names) for word in command]
        done = subprocess.run(
            line,
            cwd=FOLDER,
            env=os.environ | QUIET | FAIR,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode:
            raise RivalError(" ".join(done.stderr.split())[:500] or f"exit code {done.returncode}")
        with np.load(names["answer"]) as file:
            return file["total"], [float(each) for each in file["seconds"]]


def on_pfl(processes: int, problem: Problem, rounds: int) -> Answer:
    """Run whole rounds on pfl, in its environment."""
    python = str(PFL / "bin/python")
    start = (
        ["-m", "torch.distributed.run", f"--nproc_per_node={processes}"] if processes > 1 else []
    )
    return rounds_apart(
        [python, *start, "bench_pfl.py", "{problem}", "{answer}", "{rounds}"], problem, rounds
    )


def on_flower(problem: Problem, rounds: int) -> Answer:
    """Run whole rounds on stock Flower, with a separate Ray."""
    code = "import bench_flower; bench_flower.main('{problem}', '{answer}', {rounds})"
    return rounds_apart([sys.executable, "-c", code], problem, rounds)


RIVALS: dict[str, tuple[Callable[[Problem, int], Answer], int]] = {
    "vectorised NumPy": (partial(rounds_here, vectorised), BASE),
    "loop over users": (partial(rounds_here, looped), 5000),
    "pfl, 1 process": (partial(on_pfl, 1), 2000),
    "pfl, 2 processes": (partial(on_pfl, 2), 2000),
    "Flower and Ray": (on_flower, 100),
}
"""How each rival is run, and its number of users; with more users, cost per user stays or grows."""


def our_rounds(n: int, rounds: int, *overrides: str) -> list[float]:
    """Return the seconds of each training round of a run, noise gate and ledger included."""
    settings = [f"data.n={n}", f"rounds={rounds}", "init=random", f"algo.clip={CLIP}", *overrides]
    outcome = Experiment(compose(settings)).run()
    return [row["seconds"] for row in outcome.rows if row["task"] == "gradient"]


def measured(name: str, rounds: int, users: int | None = None) -> Row:
    """Return the row of one rival: its speed if its sum equals ours, otherwise the reason."""
    work, most = RIVALS[name]
    problem = Problem(users or most)
    row: Row = {
        "rival": name,
        "users": problem.n,
        "users_per_s": None,
        "difference": None,
        "note": "",
    }
    if name.startswith("pfl") and not PFL.exists():
        return row | {"note": "not installed: python benchmarks/bench_rivals.py --install-pfl"}
    try:
        total, seconds = work(problem, rounds)
    except (RivalError, subprocess.TimeoutExpired) as error:
        return row | {"note": f"failed: {error}"}
    row["difference"] = problem.difference(total)
    if not row["difference"] <= AGREEMENT:
        return row | {"note": f"void: its clipped sum differs from ours by {row['difference']:.1e}"}
    return row | {"users_per_s": problem.n / statistics.median(seconds)}


def rivals(
    n: int,
    rounds: int,
    names: Sequence[str] = tuple(RIVALS),
    users: int | None = None,
    base: int = BASE,
) -> list[Row]:
    """Return one row per rival, with privfed's speeds beside it.

    privfed is measured with n users once, and with `base` users right before and after each rival.

    Args:
        n: users of privfed's large run.
        rounds: timed rounds per rival.
        names: rivals.
        users: users per rival; None takes the rival's own number.
        base: users of privfed's small runs.
    """
    our_rounds(1000, 2)  # compile and load before anything is timed
    large = n / statistics.median(our_rounds(n, 2 * rounds))
    before, rows = our_rounds(base, 2 * rounds), []
    for name in names:
        row = measured(name, rounds, users)
        after = our_rounds(base, 2 * rounds)
        row |= {
            "base": base,
            "n": n,
            "ours_base": base / statistics.median(before + after),
            "ours_n": large,
        }
        if row["users_per_s"] is not None:
            row |= {
                f"ratio_{size}": row[f"ours_{size}"] / row["users_per_s"] for size in ("base", "n")
            }
        rows.append(row)
        before = after
    return rows


SECTION = Section(
    "rivals",
    "The same round by others",
    "the same private FedRep round, users a second (medians; d=50, k=2, m=10, leave-one-out)",
    "Whole rounds in vectorised NumPy, in a Python loop over users, on Apple's pfl, and on stock "
    "Flower with Ray and one user a node, each with as many users as it can bear; a user costs "
    "the same with more of them, or more. Every rival first shows on the very problem it is timed "
    "on that its clipped sum is ours. pfl has an environment of its own, which `python "
    "benchmarks/bench_rivals.py --install-pfl` makes.",
    lambda effort: rivals(100_000 if effort.quick else LARGE, 2 if effort.quick else 5),
    [
        Column("rival", "rival"),
        Column("its users", "users", ",d"),
        Column("users/s", "users_per_s", ",.0f"),
        Column("privfed at n={base:,}", "ours_base", ",.0f"),
        Column("ratio", "ratio_base", ",.1f", better="higher", relative=True),
        Column("privfed at n={n:,}", "ours_n", ",.0f"),
        Column("ratio", "ratio_n", ",.1f", better="higher", relative=True),
        Column("note", "note"),
    ],
    ["rival"],
)


def install_pfl() -> None:
    """Make .venv-pfl with our versions of NumPy, SciPy and PyTorch.

    Our other pins are too new for pfl.
    """
    pins = (FOLDER.parent / "constraints.txt").read_text().splitlines()
    packages = [
        f"pfl=={PFL_VERSION}",
        *(pin for pin in pins if pin.startswith(("torch==", "numpy==", "scipy=="))),
    ]
    subprocess.run([sys.executable, "-m", "venv", str(PFL)], check=True)
    subprocess.run(
        [str(PFL / "bin/python"), "-m", "pip", "install", "--quiet", *packages], check=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--n",
        type=int,
        default=LARGE,
        help="users of privfed's large run, which needs 5 GB a million",
    )
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each rival")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=RIVALS,
        default=tuple(RIVALS),
        metavar="NAME",
        help=", ".join(RIVALS),
    )
    parser.add_argument(
        "--install-pfl", action="store_true", help="make pfl's environment, and nothing else"
    )
    chosen = parser.parse_args()
    if chosen.install_pfl:
        install_pfl()
        return
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    Console(highlight=False, width=160).print(
        SECTION.table(rivals(chosen.n, chosen.rounds, chosen.only))
    )


if __name__ == "__main__":
    os.environ.setdefault("PRIVFED_COMPILE", "always")
    main()
