"""What the README shows, runs: its commands, its Python, and its algorithm outside the tree."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].split()
    for line in re.findall(r"^    python -m privfed\.run(.*)$", README, re.M)
]
AUDITS = [
    line.split("#")[0].split()
    for line in re.findall(r"^    python -m privfed\.audit(.*)$", README, re.M)
]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


@pytest.fixture
def own_algorithm(tmp_path):
    """The files the README tells one to write, by the name in their first line."""
    for text in blocks("python") + blocks("yaml"):
        named = re.match(r"# (mine/\S+)\n", text)
        if named:
            path = tmp_path / named.group(1)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_commands_run_as_written(command, own_algorithm, arguments):
    done = command(*arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [*AUDITS, ["--config-dir", "mine", "algo=shared_model"]], ids=" ".join
)
def test_audits_run_as_written_but_shorter(own_algorithm, monkeypatch, arguments):
    monkeypatch.chdir(own_algorithm)
    line = [sys.executable, "-m", "privfed.audit", *arguments, "--repetitions", "60"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "is consistent with the audit" in done.stdout, done.stderr


def test_commands_were_found():
    assert len(AUDITS) == 2
    assert len(COMMANDS) >= 6 and ["--config-dir", "mine", "algo=shared_model", "eps=1"] in COMMANDS


def test_an_algorithm_from_outside_gets_privacy_ledger_and_report(command, own_algorithm):
    for nodes in (1, 50):
        line = [
            "--config-dir",
            "mine",
            "algo=shared_model",
            "eps=1",
            "data.n=50",
            f"runtime.nodes={nodes}",
            f"out={nodes}",
        ]
        done = command(*line, "--quiet")
        assert done.returncode == 0, done.stderr
    results = [
        json.loads((own_algorithm / f"{nodes}/result.json").read_text()) for nodes in (1, 50)
    ]
    assert results[0]["metrics"] == pytest.approx(results[1]["metrics"], rel=1e-8)
    assert results[0]["privacy"]["releases"] == 10 and 0.99 <= results[0]["privacy"]["epsilon"] <= 1
    assert "dist" not in results[0]["metrics"]


def replayed(folder):
    line = [
        "--config-dir",
        "mine",
        "algo=shared_model",
        "rounds=2",
        "data.d=5",
        "data.m=6",
        "--tries",
        "60",
    ]
    return subprocess.run(
        [sys.executable, "-m", "privfed", "replay", *line],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


LEAKS = {
    "without a release in the ledger": """
    def release(self, step, sums, users):
        return [sums[step.task] / users]
""",
    "depends on data, though all releases are the same": """
    def release(self, step, sums, users):
        self.exact = sums[step.task] / users
        return super().release(step, sums, users)

    def update(self, t, mean):
        return [self.shared[0] - self.eta * self.exact]
""",
}
"""What a replay says, and the methods of a strategy that make it say so."""


def test_an_algorithm_from_outside_is_replayed(own_algorithm):
    done = replayed(own_algorithm)
    assert done.returncode == 0 and "Nothing was found" in done.stdout, done.stderr


@pytest.mark.parametrize("words", LEAKS)
def test_a_leak_in_an_algorithm_from_outside_is_found(own_algorithm, words):
    path = own_algorithm / "mine/shared_model.py"
    strategy, client, rest = path.read_text().partition("\n\nclass SharedModelClient")
    path.write_text(strategy + LEAKS[words] + client + rest)
    done = replayed(own_algorithm)
    assert done.returncode == 4 and words in done.stdout + done.stderr, done.stderr


def test_python_example(tmp_path):
    code = next(text for text in blocks("python") if "Experiment" in text)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0 and "(50, 2)" in done.stdout, done.stderr


def test_personal_python_example(own_algorithm):
    code = next(text for text in blocks("python") if "personalize" in text)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=own_algorithm
    )
    assert done.returncode == 0, done.stderr
    own = [float(number) for number in done.stdout.split("]")[0].strip("[ ").split()]
    assert own[0] > 7 and own[1] < 5, "the newcomer likes it dark"


def test_the_shown_errors_of_the_table_are_what_the_command_prints(own_algorithm, command):
    shown = [line for line in blocks("text")[1].splitlines() if "│" in line]
    arguments = next(line for line in COMMANDS if "data=table" in line)
    assert len(shown) == 4
    printed = command(*arguments).stdout.splitlines()
    assert [line for line in printed if line in shown] == shown


def test_make_targets_and_ci_are_what_the_readme_says():
    makefile = (ROOT / "Makefile").read_text()
    assert "-m privfed.run algo=fedrep eps=1" in makefile
    for target in ("run", "test", "lint", "bench", "setup"):
        assert re.search(rf"^{target}:", makefile, re.M)
    assert shlex.split((ROOT / ".ci/run").read_text().splitlines()[-1]) == ["exec", "make", "test"]


def test_the_shown_output_is_what_the_command_prints(command):
    """Steps and errors line by line; times, speed, memory and the folder's name may differ."""
    shown = [
        line for line in blocks("text")[0].splitlines() if "epsilon spent" in line or "│" in line
    ]
    printed = command("algo=fedrep", "eps=1").stdout.splitlines()
    assert len(shown) >= 6
    assert [line for line in printed if line in shown] == shown
