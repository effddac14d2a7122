"""Shared helpers: run an experiment in this process, or the command line in another."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.processes import Fleet

from privfed.config.composition import compose
from privfed.experiment.result import Outcome
from privfed.experiment.wiring import Experiment

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts background commands so; tests of Ctrl-C need the default.
    signal.signal(signal.SIGINT, signal.default_int_handler)

STATE = Path(tempfile.mkdtemp(prefix="privfed-state-"))
"""No test may write into the home of whoever runs it: accounts are kept here."""
atexit.register(shutil.rmtree, STATE, ignore_errors=True)
os.environ["PRIVFED_STATE"] = str(STATE / "shared")
FOLDERS = itertools.count()

ROOT = Path(__file__).resolve().parent.parent
SMALL = ("data.n=300", "data.d=8", "data.m=6", "rounds=3")
CHOICES = ("algo=", "init=", "preset=", "data=")


def small(*overrides: str) -> list[str]:
    """Return overrides of a small problem: gradient steps, unless they choose something else."""
    steps = () if any(each.startswith(CHOICES) for each in overrides) else ("init=spectral",)
    return [*SMALL, *steps, *overrides]


def pytest_collection_modifyitems(items):
    """Start with the files that take longest, so that no process works alone at the end."""
    folders = ["tests/integration", "tests/privacy", "tests/secure", "tests/scripts"]

    def place(item):
        found = [i for i, folder in enumerate(folders) if item.nodeid.startswith(folder)]
        return found[0] if found else len(folders)

    items.sort(key=place)


@pytest.fixture(autouse=True)
def own_state(monkeypatch):
    """Every test has accounts of its own; fixtures of modules share theirs."""
    folder = STATE / str(next(FOLDERS))
    monkeypatch.setenv("PRIVFED_STATE", str(folder))
    return folder


@pytest.fixture
def experiment():
    """Experiment from overrides; small unless they say otherwise."""
    return lambda *overrides: Experiment(compose(small(*overrides)))


@pytest.fixture
def run(experiment):
    def run(*overrides: str) -> Outcome:
        return experiment(*overrides).run()

    return run


@pytest.fixture
def command(tmp_path):
    """`python -m privfed.run ...` in a folder of its own."""

    def command(*arguments: str, cwd: Path = tmp_path) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "privfed.run", *arguments]
        return subprocess.run(line, cwd=cwd, capture_output=True, text=True, timeout=300)

    return command


@pytest.fixture
def fleet(tmp_path):
    """Servers and clients as processes in a folder of their own; none outlives its test."""
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.close()
