"""SuperLink and SuperNodes on loopback: the same numbers as in one process, faults, real users, and mistakes in one line.

Everything over a SuperLink waits most of the time (nodes look for messages every three seconds), so that the required run goes
on in the background while one other federation is shared by the rest.
"""

from __future__ import annotations

import csv
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from omegaconf import OmegaConf

from privfed.certificates import make_certificates, make_node_key
from privfed.config import compose
from privfed.errors import ConfigError, PrivfedError
from privfed.experiment import Experiment
from privfed.roster import Member, Roster, new_token
from privfed.runtimes.loopback import Loopback, free_port
from privfed.runtimes.superlink import follow

pytestmark = pytest.mark.slow
PROBLEM = ("data.n=200", "data.m=10")
REAL = ("data=remote", "data.d=3", "data.k=1", "data.n=2", "init=random", "rounds=1", "eps=5")


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """The command in the background; whoever needs its end waits for it."""
    folder = tmp_path_factory.mktemp("whole")
    line = [sys.executable, "-m", "privfed.run", "runtime=superlink", "runtime.nodes=2", *PROBLEM, "rounds=6", "out=run"]
    process = subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield process, folder / "run"
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(30)


class Shared:
    """A SuperLink with the nodes of a simulation (0 and 1) and of two real users (alice and bob)."""

    def __init__(self, home):
        self.home, self.federation = home, Loopback(home)
        self.simulated = Roster.of_simulated(200, 2)
        self.real = Roster(Member(name, 1, new_token()) for name in ("alice", "bob"))
        for roster in (self.simulated, self.real):
            roster.write_tokens(home / "tokens")

    def start(self):
        self.federation.start()
        for member in self.simulated:
            self.add(member.name)
        for number, member in enumerate(self.real):
            X = np.random.default_rng(number).normal(size=(20, 3))
            rows = np.column_stack([X, X @ [1.0, -1.0, number]])
            file = self.home / f"{member.name}.csv"
            np.savetxt(file, rows, delimiter=",", header="a,b,c,target", comments="")
            self.add(member.name, data=str(file), state=str(self.home / f"heads-{member.name}"))

    def add(self, name, **more):
        token = str(self.home / "tokens" / f"{name}.token")
        self.federation.add_node(name, {"node": name, "token-file": token, **more})

    def run(self, folder, roster, *overrides, resume=False, on_step=lambda row: None):
        """One run of the app, as `flwr run` starts it; returns its folder."""
        path = folder.with_suffix(".json")
        roster.save(path)
        text = " ".join(overrides)
        config = {"overrides": text, "out": str(folder), "roster": str(path), "resume": resume}
        number = self.federation.run(config)
        follow(self.federation, number, folder, on_step)
        return folder


@pytest.fixture(scope="module")
def shared(whole_run, tmp_path_factory):
    shared = Shared(tmp_path_factory.mktemp("shared"))
    try:
        shared.start()
        yield shared
    finally:
        shared.federation.stop()


def model_of(folder):
    with np.load(folder / "model.npz") as model:
        return dict(model)


def agrees(folder, *overrides):
    expected = Experiment(compose([*PROBLEM, *overrides])).run().model
    found = model_of(folder)
    assert list(found) == list(expected)
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-8, atol=1e-12)


def test_real_users_keep_their_heads(shared, tmp_path):
    folder = shared.run(tmp_path / "real", shared.real, *REAL)
    result = json.loads((folder / "result.json").read_text())
    assert result["runtime"] == "superlink" and result["n_users"] == 2 and result["metrics"] == {}
    assert result["privacy"]["noise"] == "secure"
    for name in ("alice", "bob"):
        heads = list((shared.home / f"heads-{name}").iterdir())
        assert [path.name for path in heads] == [f"{name}.npz"] and heads[0].stat().st_mode & 0o077 == 0
    assert not list(folder.rglob("alice*"))


def test_a_killed_node_below_the_quorum_stops_the_run_which_resumes_and_a_ghost_is_not_waited_for(shared, tmp_path):
    overrides = (*PROBLEM, "rounds=1", "runtime.quorum=0.9", "runtime.round_timeout=12", "runtime.rejoin_timeout=1")
    node = shared.federation.processes["node 1"]

    def kill(row):
        if row["step"] == 1:
            node.kill()

    def too_few():
        ghost = Roster([*shared.simulated, Member("ghost", 10, new_token(), simulated=True)])
        with pytest.raises(PrivfedError, match=r"only \d of 3 nodes joined within 8 s; nothing was released"):
            shared.run(tmp_path / "few", ghost, "data.n=210", "data.m=10", "rounds=1", "runtime.join_timeout=8")

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(too_few)
        with pytest.raises(PrivfedError, match="100 of 200 users.*resume"):
            shared.run(tmp_path / "run", shared.simulated, *overrides, on_step=kill)
        waiting.result()
    assert not (tmp_path / "run" / "result.json").exists()
    assert len((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()) == 1
    shared.add("1")
    with pytest.raises(ConfigError, match="not those of the run"):
        shared.run(tmp_path / "run", shared.simulated, *overrides, "seed=7", resume=True)
    agrees(shared.run(tmp_path / "run", shared.simulated, *overrides, resume=True), "rounds=1")


def test_a_killed_node_counts_as_missing_while_the_rest_is_enough(shared, tmp_path):
    overrides = (*PROBLEM, "rounds=1", "runtime.quorum=0.4", "runtime.round_timeout=12")

    def kill(row):
        if row["step"] == 1:
            shared.federation.processes["node 1"].kill()

    folder = shared.run(tmp_path / "run", shared.simulated, *overrides, on_step=kill)
    with (folder / "rounds.csv").open() as file:
        assert [row["missing_users"] for row in csv.DictReader(file)] == ["0", "100"]
    assert "missing in 1 of 2 steps" in json.loads((folder / "result.json").read_text())["notes"][0]


def test_an_untrusted_server_and_an_unknown_key_are_one_line(shared, tmp_path):
    make_certificates(tmp_path / "other")
    make_node_key(tmp_path / "stranger.key")

    def node(authority, address=shared.federation.address):
        line = [sys.executable, "-m", "privfed.supernode", "--superlink", address, "--root-certificates", str(authority)]
        line += ["--key", str(tmp_path / "stranger.key"), "--user", "0", "--simulate", "--patience", "1"]
        line += ["--token-file", str(shared.home / "tokens" / "0.token")]
        return subprocess.run(line, capture_output=True, text=True, timeout=60)

    with ThreadPoolExecutor(3) as pool:
        untrusted = pool.submit(node, tmp_path / "other" / "ca.crt")
        unknown = pool.submit(node, shared.home / "tls" / "ca.crt")
        nowhere = pool.submit(node, shared.home / "tls" / "ca.crt", f"127.0.0.1:{free_port()}")
    for done, words in ((untrusted, "not trusted"), (unknown, "does not know this node's key"), (nowhere, "cannot be reached")):
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
    settings = OmegaConf.load(folder / "config.yaml")
    assert settings.runtime.name == "superlink"
    names = {"result.json", "ledger.jsonl", "rounds.csv", "config.yaml", "model.npz", "report.html"}
    assert {path.name for path in folder.iterdir()} == names


def test_ctrl_c_ends_every_process(tmp_path):
    line = [sys.executable, "-m", "privfed.run", "runtime=superlink", *PROBLEM, "out=run"]
    process = subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    port, deadline = None, time.monotonic() + 60
    while port is None and time.monotonic() < deadline:
        time.sleep(0.5)
        children = subprocess.run(["ps", "-o", "args=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
        port = next((line.split("--port ")[1].split()[0] for line in children.splitlines() if "superlink --host" in line), None)
    assert port is not None
    time.sleep(2.0)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "interrupted" in errors and errors.count("\n") == 1
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))) != 0
    assert threading.active_count() < 50
