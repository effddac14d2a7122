"""Mistakes that somebody makes who writes a first algorithm: one clear line, nothing released."""

from __future__ import annotations

import json

import pytest
from test_readme import own_algorithm  # noqa: F401

MISTAKES = {
    "a task that is not marked": ("    @task\n", "", "asks for task 'gradient'"),
    "a part of another shape": ("block.X) / block.m", "block.X)[:, :3] / block.m", "(3,)"),
    "no list of arrays": (
        "return [np.zeros(self.federation.d)]",
        "return np.zeros(self.federation.d)",
        "start() must return a list",
    ),
    "an update without a result": (
        "return [self.shared[0] - self.eta * mean]",
        "self.shared = [self.shared[0] - self.eta * mean]",
        "the update of phase 'gradient' must return a list",
    ),
    "names that are no tuple": ('publishes = ("w",)', 'publishes = ("w")', "must be a tuple"),
    "more names than arrays": ('publishes = ("w",)', 'publishes = ("w", "v")', "names 2: w, v"),
    "no phases": ("def phases(self)", "def phase(self)", "has no phases()"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_an_algorithm_is_one_line(command, own_algorithm, mistake):  # noqa: F811
    before, after, words = MISTAKES[mistake]
    path = own_algorithm / "mine/shared_model.py"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    done = command("--config-dir", "mine", "algo=shared_model", "data.n=40", "out=o", "--quiet")
    assert done.returncode in (1, 2) and words in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    ledger = own_algorithm / "o/ledger.jsonl"
    released = ledger.read_text().splitlines() if ledger.exists() else []
    assert len(released) == (1 if "update" in mistake else 0)


def test_a_guarantee_that_is_none_of_the_known_ones_is_refused(command, own_algorithm):  # noqa: F811
    path = own_algorithm / "mine/algo/shared_model.yaml"
    path.write_text(path.read_text().replace("worst-case", "worstcase"))
    done = command("--config-dir", "mine", "algo=shared_model", "data.n=40")
    assert done.returncode == 2 and "algo.guarantee=worstcase" in done.stderr


def test_the_toy_itself_runs(command, own_algorithm):  # noqa: F811
    done = command("--config-dir", "mine", "algo=shared_model", "data.n=40", "out=o", "--quiet")
    assert done.returncode == 0, done.stderr
    assert json.loads((own_algorithm / "o/result.json").read_text())["privacy"]["releases"] == 10
