"""A run killed anywhere never released more than its ledger says; it resumes, or says it cannot."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from privfed.algorithm.strategy import PrivateStrategy
from privfed.config.composition import compose
from privfed.experiment import checkpoint
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import BudgetError
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Ledger
from privfed.privacy.noise import DiscreteNoise, SeededNoise

SETTINGS = ["data.n=40", "data.d=4", "data.m=6", "rounds=2", "runtime.threads=1", "runtime.nodes=2"]
POINTS = [
    (PrivateStrategy, "configure_fit"),
    (PrivateStrategy, "aggregate_fit"),
    (PrivateStrategy, "apply"),
    (PrivateStrategy, "_finish"),
    (NoiseGate, "release"),
    (Ledger, "charge"),
    (SeededNoise, "normal"),
    (DiscreteNoise, "normal"),
    (checkpoint, "save"),
]
"""Where a process may die: before and after each of these, in every step."""


@cache
def settings(more: tuple[str, ...]):
    """Composed once, for all children."""
    return compose([*SETTINGS, *more])


def in_child(work: Callable[[], None]) -> int:
    """Status of a forked child: 0, or the signal that ended it, negative."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train(folder: Path, resume: bool, more: tuple[str, ...], die_at: int = -1) -> None:
    """One run in this process; notes every release of the gate, and dies at the given moment."""
    moments = 0

    def moment() -> None:
        nonlocal moments
        if moments == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        moments += 1

    def watched(original, leaves):
        def call(*args, **kwargs):
            moment()
            result = original(*args, **kwargs)
            if leaves:
                with (folder / "left").open("a") as file:
                    file.write("x")
            moment()
            return result

        return call

    for owner, name in POINTS:
        setattr(owner, name, watched(getattr(owner, name), leaves=name == "release"))
    experiment = Experiment(settings(more))
    experiment._validation = lambda: None
    outcome = experiment.run(folder, resume=resume)
    np.savez(folder / "end.npz", **outcome.model)
    (folder / "rows.json").write_text(
        json.dumps([[row["step"], row["missing_users"]] for row in outcome.rows])
    )


def entries(folder: Path) -> list[tuple[str, int]]:
    content = (folder / "ledger.jsonl").read_bytes()
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    return [(line["name"], line["round"]) for line in map(json.loads, lines)]


def left(folder: Path) -> int:
    return len((folder / "left").read_text()) if (folder / "left").exists() else 0


@pytest.fixture(autouse=True, scope="module")
def loaded():
    """Everything compiled and loaded here, so that no child has to."""
    for more in ((), ("algo=altmin",), ("privacy.clip=auto",), ("privacy.noise=discrete",)):
        Experiment(settings(more)).run()


def killed_everywhere(tmp_path: Path, more: tuple[str, ...]):
    """Folders of runs killed at every moment there is, one after the other, until one survives."""
    for moment in range(1000):
        folder = tmp_path / str(moment)
        folder.mkdir()
        status = in_child(lambda folder=folder, moment=moment: train(folder, False, more, moment))
        if status == 0:
            return
        assert status == -signal.SIGKILL
        yield folder
    pytest.fail("there is no end to the moments of a run")


@pytest.mark.parametrize(
    "more", [(), ("algo=altmin",), ("privacy.clip=auto",)], ids=["fedrep", "altmin", "auto"]
)
def test_a_killed_simulation_goes_on_to_the_same_end(tmp_path, more):
    whole = tmp_path / "whole"
    whole.mkdir()
    assert in_child(lambda: train(whole, False, more)) == 0
    wanted = np.load(whole / "end.npz")["U"]
    planned = entries(whole)
    count = 0
    for folder in killed_everywhere(tmp_path, more):
        count += 1
        assert (
            left(folder) <= len(entries(folder))
            if (folder / "ledger.jsonl").exists()
            else left(folder) == 0
        )
        if not (folder / "ledger.jsonl").exists():
            continue
        assert in_child(lambda folder=folder: train(folder, True, more)) == 0
        np.testing.assert_array_equal(np.load(folder / "end.npz")["U"], wanted)
        assert entries(folder) == planned
    assert count > 30


def test_a_killed_run_with_real_noise_never_releases_twice(tmp_path):
    more = ("privacy.noise=discrete",)
    given_up = refused = 0
    for folder in killed_everywhere(tmp_path, more):
        if not (folder / "ledger.jsonl").exists():
            continue
        paid, out = entries(folder), left(folder)
        assert out <= len(paid)
        try_again = in_child(lambda folder=folder: resumed(folder, more))
        now = entries(folder)
        assert (
            now[: len(paid)] == paid and len(set(now)) == len(now) <= 3
        )  # nothing refunded, nothing twice
        assert left(folder) <= len(now)
        if try_again == 3:
            refused += 1
            assert paid[-1][0] == "spectral" and now == paid
            continue
        assert try_again == 0 and len(now) == 3
        given_up += any(
            missing == 40 for _, missing in json.loads((folder / "rows.json").read_text())
        )
    assert given_up > 5 and refused > 2


def resumed(folder: Path, more: tuple[str, ...]) -> None:
    try:
        train(folder, True, more)
    except BudgetError:
        os._exit(BudgetError.exit_code)
