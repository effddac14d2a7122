"""runtime=ray: the same numbers from other processes, lost processes, mistakes, absent clusters."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment

SIZE = ("data.n=200", "data.m=10", "rounds=6", "seed=3")
TROUBLE = """
import os, signal, time
from pathlib import Path

from threadpoolctl import threadpool_info

from clients.fedrep import FedRepClient
from privfed.foundation.errors import ConfigError


class TroubleClient(FedRepClient):
    def __init__(self, cohort, trouble, folder, **settings):
        super().__init__(cohort, **settings)
        self.trouble, self.folder = trouble, Path(folder)
        self.first = len(cohort) > 0 and cohort.ids[0] == 0
        if len(cohort):
            threads = max(pool["num_threads"] for pool in threadpool_info())
            with (self.folder / f"{trouble}-made").open("a") as file:
                file.write(f"{os.getpid()} {threads} {int(self.first)}\\n")

    def fit(self, parameters, config):
        told = self.folder / f"{self.trouble}-told"
        if config["step"] == 3 and self.first and not told.exists():
            told.touch()
            if self.trouble == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.trouble == "hang":
                time.sleep(1000)
            if self.trouble == "setting":
                raise ConfigError("data.path=x: row 7 is broken")
            if self.trouble == "bug":
                raise ZeroDivisionError("a bug of mine")
        if config["step"] > 3 and not self.first and self.trouble in ("kill", "hang"):
            made = self.folder / f"{self.trouble}-made"
            # Give the lost node time: the command, both nodes, and one again make four.
            deadline = time.monotonic() + 3
            while made.read_text().count("\\n") < 4 and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.2)
        return super().fit(parameters, config)
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def folder():
    """A short path, as Ray's sockets live below it."""
    path = Path(tempfile.mkdtemp(prefix="pf"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def ray(folder):
    """`python -m privfed.run runtime=ray ...`, with Ray's own files in the folder."""
    (folder / "mine/algo").mkdir(parents=True)
    (folder / "mine/trouble.py").write_text(TROUBLE)
    ours = OmegaConf.to_container(compose(["algo=fedrep"]).algo)
    client = {
        "_target_": "trouble.TroubleClient",
        "trouble": "none",
        "folder": str(folder),
    }
    facts = {
        **ours,
        "name": "trouble",
        "guarantee": "worst-case",
        "rounds": 6,
        "client": client,
    }
    (folder / "mine/algo/trouble.yaml").write_text(json.dumps(facts))

    def run(*arguments, code="import sys; from privfed.commands.run import main; sys.exit(main())"):
        line = [sys.executable, "-c", code, "runtime=ray", *arguments]
        environment = {**os.environ, "RAY_TMPDIR": str(folder)}
        return subprocess.run(
            line, cwd=folder, capture_output=True, text=True, timeout=180, env=environment
        )

    return run


@pytest.fixture(scope="module")
def address(folder):
    """A cluster that somebody else has started: four logical cores, on loopback."""
    port = free_port()
    line = [
        str(Path(sys.executable).parent / "ray"),
        "start",
        "--head",
        "--block",
        "--disable-usage-stats",
        "--num-cpus=4",
    ]
    line += [
        f"--port={port}",
        f"--ray-client-server-port={free_port()}",
        "--node-ip-address=127.0.0.1",
    ]
    line += [
        "--include-dashboard=false",
        f"--temp-dir={folder / 'c'}",
        f"--object-store-memory={80 * 2**20}",
    ]
    with (
        (folder / "cluster.log").open("w") as log,
        subprocess.Popen(line, stdout=log, stderr=log) as cluster,
    ):
        while "Ray runtime started" not in (folder / "cluster.log").read_text():
            assert cluster.poll() is None, (folder / "cluster.log").read_text()
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
        assert cluster.poll() is None, "a run must not end a cluster it has not started"
        cluster.send_signal(signal.SIGTERM)
        cluster.wait(timeout=30)


def in_one_process(nodes, *overrides):
    return Experiment(compose([*SIZE, f"runtime.nodes={nodes}", *overrides])).run().model


def missing(path):
    with (path / "rounds.csv").open() as file:
        return [int(row["missing_users"]) for row in csv.DictReader(file)]


@pytest.mark.slow
@pytest.mark.parametrize(("algo", "nodes"), [("fedrep", 2), ("altmin", None)])
def test_the_same_model_as_in_one_process_and_nothing_else_on_the_console(
    ray, folder, address, algo, nodes
):
    given = () if nodes is None else (f"runtime.nodes={nodes}",)
    done = ray(*SIZE, f"algo={algo}", f"runtime.address={address}", *given, f"out={algo}")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "ray" not in done.stdout.lower().replace("array", "")
    result = json.loads((folder / algo / "result.json").read_text())
    assert (result["runtime"], result["n_nodes"]) == ("ray", nodes or 4)
    with np.load(folder / algo / "model.npz") as file:
        model = dict(file)
    for others in (1, 7, 200):
        for name, array in in_one_process(others, f"algo={algo}").items():
            np.testing.assert_allclose(model[name], array, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_a_ray_of_our_own_an_algorithm_of_one_s_own_and_data_made_once_in_each_process(ray, folder):
    line = (
        "--config-dir",
        "mine",
        "algo=trouble",
        *SIZE,
        "runtime.cpus=0.5",
        "runtime.nodes=2",
        "out=own",
    )
    large = (
        "import sys; from privfed.runtimes import ray; ray.INLINE_BYTES = 0; "
        "from privfed.commands.run import main; sys.exit(main())"
    )
    done = ray(*line, code=large)  # as with large models: parameters through the object store
    assert done.returncode == 0 and done.stderr == "", done.stderr
    made = [line.split() for line in (folder / "none-made").read_text().splitlines()]
    # The command itself serves fresh public users, to show its progress.
    nodes = {pid for pid, threads, _ in made if threads == "1"}
    assert len(nodes) >= 2 and len(made) == 3
    assert missing(folder / "own") == [0] * 7
    with np.load(folder / "own/model.npz") as model:
        np.testing.assert_allclose(model["U"], in_one_process(7)["U"], rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["kill", "hang"])
def test_a_lost_process_counts_as_zero_and_comes_back(ray, folder, address, trouble):
    patience = "runtime.round_timeout=60" if trouble == "kill" else "runtime.round_timeout=8"
    line = [
        "--config-dir",
        "mine",
        "algo=trouble",
        f"algo.client.trouble={trouble}",
        *SIZE,
        f"runtime.address={address}",
    ]
    done = ray(*line, "rounds=60", "runtime.nodes=2", patience, f"out={trouble}")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lost = missing(folder / trouble)
    assert lost[:3] == [0, 0, 100] and lost[-1] == 0, lost


@pytest.mark.slow
@pytest.mark.parametrize(("trouble", "code"), [("setting", 2), ("bug", 1)])
def test_a_mistake_in_a_client_stops_the_run_which_can_be_resumed(
    ray, folder, address, trouble, code
):
    line = [
        "--config-dir",
        "mine",
        "algo=trouble",
        f"algo.client.trouble={trouble}",
        *SIZE,
        f"runtime.address={address}",
    ]
    done = ray(*line, "runtime.nodes=2", f"out={trouble}", "--quiet")
    assert done.returncode == code
    if trouble == "bug":
        assert "node 0 failed" in done.stderr and "ZeroDivisionError: a bug of mine" in done.stderr
        assert 'trouble.py", line' in done.stderr and "privfed/commands/run.py" not in done.stderr
        return
    assert done.stderr == "privfed: data.path=x: row 7 is broken\n"
    resume = "import sys; from privfed.commands.run import main; sys.exit(main(sys.argv[2:]))"
    done = ray("--config-dir", "mine", "--resume", trouble, "--quiet", code=resume)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    with np.load(folder / trouble / "model.npz") as model:
        np.testing.assert_allclose(model["U"], in_one_process(3)["U"], rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_what_the_cluster_cannot_hold_is_said_at_once(ray, address):
    for given, words in (
        ("runtime.nodes=5", "runtime.nodes=5"),
        ("runtime.gpus=0.5", "runtime.gpus=0.5"),
    ):
        done = ray(*SIZE, f"runtime.address={address}", given)
        assert done.returncode == 2 and "has room for" in done.stderr and words in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_cluster_of_another_version_is_one_clear_line(ray, address):
    code = (
        "import sys, ray; ray.__version__ = '0.1'; "
        "from privfed.commands.run import main; sys.exit(main())"
    )
    done = ray(*SIZE, f"runtime.address={address}", "runtime.nodes=2", code=code)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "ersion mismatch" in done.stderr and "0.1" in done.stderr


@pytest.mark.slow
def test_an_address_where_nobody_answers_is_one_clear_line(ray):
    done = ray(*SIZE, f"runtime.address=127.0.0.1:{free_port()}", "runtime.nodes=2")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "runtime.address=127.0.0.1" in done.stderr and "no Ray cluster answered" in done.stderr


def test_without_ray_one_is_told_how_to_install_it_and_plans_do_not_load_it(ray):
    code = (
        "import sys; sys.modules['ray'] = None; "
        "from privfed.commands.run import main; sys.exit(main())"
    )
    done = ray(code=code)
    assert (
        done.returncode == 2
        and done.stderr.count("\n") == 1
        and "pip install 'privfed[ray]'" in done.stderr
    )
    done = ray(
        "--plan",
        code="import sys; from privfed.commands.run import main; main(); "
        "sys.exit('ray' in sys.modules)",
    )
    assert done.returncode == 0 and "nothing was released" in done.stdout, done.stderr


def test_a_ray_of_our_own_listens_on_loopback_only(ray):
    told = "print(settings['address'], ray._private.services.get_node_ip_address()); sys.exit(0)"
    code = (
        f"import ray, sys\ndef init(**settings): {told}\nray.init = init\n"
        "from privfed.commands.run import main; main()"
    )
    done = ray(*SIZE, "runtime.nodes=1", code=code)
    assert done.stdout.splitlines()[-1] == "local 127.0.0.1", done.stderr


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("runtime.address=somewhere", "host:port"),
        ("runtime.nodes=9999", "room for"),
        ("runtime.cpus=0", "positive"),
        ("runtime.gpus=-1", "at least 0"),
        ("runtime.quorum=2", "between 0 and 1"),
        ("runtime.round_timeout=0", "positive"),
        ("runtime.verbose=perhaps", "true or false"),
    ],
)
def test_bad_settings_are_refused_before_ray_is_loaded(
    override, words, tmp_path, monkeypatch, capfd
):
    from privfed.commands.run import main

    monkeypatch.chdir(tmp_path)
    assert main(["runtime=ray", override]) == 2
    line = capfd.readouterr().err
    assert line.startswith(f"privfed: {override}") and words in line and line.count("\n") == 1
    assert not any(tmp_path.iterdir()) and "ray" not in sys.modules
