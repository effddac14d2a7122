"""The time that is left, as it is told between steps."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from privfed.report.console import RunProgress


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def progress(tasks):
    experiment = SimpleNamespace(
        strategy=SimpleNamespace(
            planned_rounds=3,
            rounds_task="gradient",
            plan=[SimpleNamespace(task=task) for task in tasks],
        ),
        data=SimpleNamespace(n=2, examples="3 examples of 4 features each"),
        cfg=SimpleNamespace(algo=SimpleNamespace(name="fedrep")),
        nodes=[0],
        budget=SimpleNamespace(epsilon=1.0, delta=1e-6, neighbouring="replace-one"),
    )
    return RunProgress(experiment, quiet=True)


def told(tasks, seconds, clock):
    shown = progress(tasks)
    words = []
    for step, spent in enumerate(seconds, start=1):
        clock[0] += spent
        words.append(shown._left({"step": step, "task": tasks[step - 1]}))
    return words


def test_the_first_step_of_a_task_predicts_nothing(clock):
    tasks = ["spectral"] + ["gradient"] * 5
    said = told(tasks, [40.0, 12.0, 2.0, 2.0, 2.2, 2.0], clock)
    assert said == ["", "", "  about 6 s left", "  about 4 s left", "  about 2 s left", ""]


def test_nothing_is_said_while_a_task_is_not_known(clock):
    assert told(["power"] * 3 + ["gradient"] * 3, [9.0] * 4, clock) == [""] * 4


def test_every_task_has_a_time_of_its_own(clock):
    tasks = ["a", "a", "b", "b", "a", "b"]
    said = told(tasks, [20.0, 3.0, 20.0, 7.0, 3.0], clock)
    assert said[3:] == ["  about 10 s left", "  about 7 s left"]


def test_short_runs_are_left_in_peace(clock):
    assert told(["gradient"] * 9, [1.0] * 9, clock) == [""] * 9
