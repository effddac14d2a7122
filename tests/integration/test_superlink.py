"""SuperLink and SuperNodes on loopback: the same numbers, killed nodes, refusals in one line.

Everything over a SuperLink waits most of the time (nodes look for messages every three seconds).
For this reason the required run goes on in the background while one other federation is shared
by the rest.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from privfed.config.composition import compose
from privfed.experiment.run_folder import rows_done
from privfed.experiment.wiring import Experiment
from privfed.federation.roster import Roster
from privfed.foundation.errors import PrivfedError
from privfed.runtimes.certificates import make_certificates, make_node_key
from privfed.runtimes.superlink import follow
from privfed.runtimes.superlink_processes import LocalDeployment, descendants, exists

pytestmark = pytest.mark.slow
PROBLEM = ("data.n=200", "data.m=10")


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """The command in the background; whoever needs its end waits for it."""
    folder = tmp_path_factory.mktemp("whole")
    line = [
        sys.executable,
        "-m",
        "privfed.run",
        "runtime=superlink",
        "runtime.nodes=2",
        *PROBLEM,
        "rounds=6",
        "out=run",
    ]
    process = subprocess.Popen(
        line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    yield process, folder / "run"
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(30)


class Shared:
    """A SuperLink with two SuperNodes, for several runs."""

    def __init__(self, home):
        self.home, self.federation = home, LocalDeployment(home)
        self.roster = Roster.of_simulated(200, 2)
        self.roster.save(home / "roster.json")
        self.roster.write_tokens(home / "tokens")

    def add(self, name):
        token = str(self.home / "tokens" / f"{name}.token")
        self.federation.add_node(name, {"node": name, "token-file": token})

    def run(self, folder, *overrides, resume=False, on_step=lambda row: None):
        """One run of the app, as `flwr run` starts it."""
        roster = str(self.home / "roster.json")
        config = {
            "overrides": " ".join(overrides),
            "out": str(folder),
            "roster": roster,
            "resume": resume,
        }
        number = self.federation.run(config)
        follow(self.federation, number, lambda: rows_done(folder), on_step)
        return folder


@pytest.fixture(scope="module")
def shared(whole_run, tmp_path_factory):
    shared = Shared(tmp_path_factory.mktemp("shared"))
    try:
        shared.federation.start()
        for name in shared.roster.members:
            shared.add(name)
        yield shared
    finally:
        shared.federation.stop()


def agrees(folder, *overrides):
    expected = Experiment(compose([*PROBLEM, *overrides])).run().model
    with np.load(folder / "model.npz") as found:
        assert found.files == list(expected)
        for name in found.files:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-8, atol=1e-12)


def test_a_killed_node_stops_the_run_below_the_quorum_and_it_resumes_to_the_same_numbers(
    shared, tmp_path
):
    settings = (
        *PROBLEM,
        "rounds=1",
        "runtime.quorum=0.9",
        "runtime.round_timeout=40",
        "runtime.rejoin_timeout=1",
    )

    killed = []

    def kill(row):
        shared.federation.processes["node 1"].kill()
        killed.append(time.monotonic())

    with pytest.raises(PrivfedError, match=r"only 100 of 200 users .* go on with"):
        shared.run(tmp_path / "run", *settings, on_step=kill)
    assert not (tmp_path / "run" / "result.json").exists()
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) == 1
    # A SuperLink takes a key again only when its node counts as offline: two heartbeats of 30 s
    # after the last one.
    time.sleep(max(0.0, killed[0] + 62.0 - time.monotonic()))
    shared.add("1")
    agrees(shared.run(tmp_path / "run", *settings, resume=True), "rounds=1")


def test_an_untrusted_server_and_an_unknown_key_are_one_line(shared, tmp_path):
    make_certificates(tmp_path / "other")
    make_node_key(tmp_path / "stranger.key")

    def node(authority):
        line = [
            sys.executable,
            "-m",
            "privfed",
            "supernode",
            "--superlink",
            shared.federation.address,
        ]
        line += ["--root-certificates", str(authority), "--key", str(tmp_path / "stranger.key")]
        line += ["--user", "0", "--simulate", "--patience", "5"]
        line += ["--token-file", str(shared.home / "tokens" / "0.token")]
        return subprocess.run(line, capture_output=True, text=True, timeout=60)

    with ThreadPoolExecutor(2) as pool:
        untrusted = pool.submit(node, tmp_path / "other" / "ca.crt")
        unknown = pool.submit(node, shared.home / "tls" / "ca.crt")
    for done, words in (
        (untrusted, "not trusted"),
        (unknown, "does not take this node's key: it is not registered"),
    ):
        assert done.result().returncode == 2, done.result()
        assert words in done.result().stderr and done.result().stderr.count("\n") == 1


def test_the_command_agrees_with_one_process_and_leaves_nothing_running(whole_run):
    process, folder = whole_run
    output, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert "round 6/6" in output and "differentially" in output
    agrees(folder, "rounds=6")
    result = json.loads((folder / "result.json").read_text())
    assert result["runtime"] == "superlink" and result["n_nodes"] == 2
    names = {
        "result.json",
        "ledger.jsonl",
        "rounds.csv",
        "config.yaml",
        "model.npz",
        "report.html",
        "details.json",
    }
    assert {path.name for path in folder.iterdir()} == names


def test_ctrl_c_ends_every_process(tmp_path):
    line = [sys.executable, "-m", "privfed.run", "runtime=superlink", *PROBLEM, "out=run"]
    process = subprocess.Popen(
        line, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not (started := descendants(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(3.0)
        started += descendants(process.pid)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1 and "interrupted" in errors and errors.count("\n") == 1
    assert started and not [pid for pid in started if exists(pid)]
