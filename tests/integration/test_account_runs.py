"""Budgets over runs: every release of real users is counted, whatever becomes of the run."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pytest
from support.tables import write

import privfed
from privfed.commands import export, ledger, personalize, server
from privfed.commands.run import main
from privfed.config.composition import compose
from privfed.config.saved_config import recall
from privfed.experiment import run_account
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import BudgetError, ConfigError
from privfed.privacy.account import Account
from privfed.privacy.account_place import known_accounts
from privfed.privacy.accounting import gaussian_epsilon, gaussian_mu
from privfed.privacy.neighbouring import REPLACE_ONE
from privfed.report.run_files import write_config

SCHEMA = """
user: user
target: {column: y, kind: numeric, bounds: [-3, 3]}
missing: mean
columns:
  a: {kind: numeric, bounds: [-3, 3]}
  b: {kind: numeric, bounds: [-3, 3]}
"""
SECRET = ("data.n=60", "data.d=4", "data.m=5", "rounds=3", "privacy.noise=discrete")


def table(path, users=600, more=()):
    rng = np.random.default_rng(0)
    lines = [
        [f"person{i}", *(f"{x:.3f}" for x in rng.normal(size=3))]
        for i in range(users)
        for _ in range(4)
    ]
    return write(path, ["user", "a", "b", "y"], [*lines, *more])


@pytest.fixture
def line(tmp_path, monkeypatch):
    """Settings of a run on a real table."""
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "t.csv")
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    return ["data=table", "data.path=t.csv", "data.schema=schema.yaml", "rounds=2", "eps=1"]


def result(folder):
    return json.loads((folder / "result.json").read_text())


def released(line, out, *more):
    assert main([*line, "data.evaluate=false", f"out={out}", "--quiet", *more]) == 0


def account_in(path):
    account = Account(path)
    with account.locked(write=False):
        return account


def epsilons(*runs):
    """What runs of these epsilons cost together."""
    mus = [gaussian_mu(epsilon, 1e-6) for epsilon in runs]
    return pytest.approx(gaussian_epsilon(float(np.hypot.reduce(mus)), 1e-6), rel=1e-6)


# A run with repeatable noise is a simulation, wherever a claim is written.


def test_a_default_run_on_a_table_says_simulation_everywhere(line, tmp_path, capfd):
    assert main(["-m", *line, "seed=0", "out=o", "--jobs", "1"]) == 0
    said = capfd.readouterr()
    (run,) = (tmp_path / "o").glob("*/")
    privacy = result(run)["privacy"]
    assert privacy["guarantee"] == "simulation" and privacy["would_be"] == "worst-case"
    assert privacy["account"].startswith("none: a simulation")
    assert privacy["epsilon"] == pytest.approx(1, rel=1e-3)
    assert export.main([str(run), "--to", "m.safetensors", "--simulation"]) == 0
    assert main(["--plan", *line]) == 0 and ledger.main([str(run)]) == 0
    said = said.out + capfd.readouterr().out
    with zipfile.ZipFile(run / "model.npz") as model:
        label = json.loads(model.comment)
    assert label["guarantee"] == "simulation" and "would together be (1, " in label["privacy"]
    claims = 0
    for path in [*sorted((tmp_path / "o").rglob("*")), tmp_path / "m.safetensors"]:
        if path.is_file() and path.name != "config.yaml":
            text = path.read_bytes().decode(errors="ignore")
            for allowed in ('would_be": "', "guarantee: "):  # the latter in the configuration
                text = text.replace(f"{allowed}worst-case", "")
            assert "worst-case" not in text, path
            assert "verything published" not in text or "Simulation: the noise" in text, path
            claims += "imulation" in text
    assert claims >= 6, "result.json, report.html, model.npz, summary.csv, the export, ..."
    assert "worst-case" not in said and said.count("simulation") >= 3
    with (tmp_path / "o/summary.csv").open() as file:
        assert {row["guarantee"] for row in csv.DictReader(file)} == {"simulation"}


def test_a_simulation_on_a_table_is_not_handed_out(line, tmp_path, capfd):
    assert main([*line, "out=sim", "--quiet"]) == 0
    released(line, "real")
    capfd.readouterr()  # the first run on a machine says that it compiles
    for arguments in (["sim", "--to", "m.safetensors"], ["sim", "--to", "m.onnx"]):
        assert export.main(arguments) == 2
        error = capfd.readouterr().err
        assert "simulation on a real table" in error and error.count("\n") == 1
    assert not list(tmp_path.glob("m.*"))
    assert export.main(["real", "--to", "m.safetensors"]) == 0
    with pytest.warns(UserWarning, match="protects nobody"):
        model = privfed.load("sim")
    with pytest.raises(ConfigError, match="--simulation"):
        model.export("n.safetensors")
    model.export("n.safetensors", simulation=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        privfed.load("sim", simulation=True)
        privfed.load("real")
    for run, lines in (("sim", 1), ("real", 0)):
        assert personalize.main(["--model", run, "--data", "t.csv", "--out", f"{run}.csv"]) == 0
        assert capfd.readouterr().err.count("protects nobody") == lines
    assert main([*line, "eps=inf", "out=none", "--quiet"]) == 0
    assert export.main(["none", "--to", "o.safetensors"]) == 2, "no noise at all is no better"


def test_a_server_does_not_give_out_a_simulation_on_a_table(line, tmp_path, capfd):
    settings = [*line, "runtime=grpc", "runtime.nodes=1", "--insecure", "--listen", "localhost:0"]
    assert server.main([*settings, "--stay", "out=stay"]) == 2
    assert "--stay: is a simulation on a real table" in capfd.readouterr().err
    assert not (tmp_path / "stay").exists()
    assert main([*line, "runtime=grpc", "runtime.nodes=1", "out=sim", "--quiet"]) == 0
    assert server.main(["--publish", "sim", "--insecure", "--listen", "localhost:0"]) == 2
    assert "--publish sim: is a simulation on a real table" in capfd.readouterr().err


def test_results_that_were_written_before_are_read_as_what_they_are(line, tmp_path, capfd):
    assert main([*line, "out=old", "--quiet"]) == 0
    path = tmp_path / "old/result.json"
    old = json.loads(path.read_text())
    del old["privacy"]["would_be"], old["privacy"]["account"]
    old["privacy"]["guarantee"] = "worst-case"
    path.write_text(json.dumps(old))
    assert export.main(["old", "--to", "m.safetensors"]) == 2
    assert export.main(["old", "--to", "m.safetensors", "--simulation"]) == 0
    assert b'"guarantee": "simulation"' in (tmp_path / "m.safetensors").read_bytes()
    assert ledger.main(["old"]) == 0 and "This is a simulation" in capfd.readouterr().out
    assert ledger.main(["--account", "old"]) == 2
    assert "before there were accounts" in capfd.readouterr().err


def test_runs_without_noise_or_releases_are_what_they_were(run):
    assert run("algo=standalone").result["privacy"]["guarantee"] == "worst-case"
    assert run("eps=inf").result["privacy"]["guarantee"] == "none"
    secret = run("privacy.noise=discrete").result["privacy"]
    assert secret["guarantee"] == "worst-case" and "would_be" not in secret
    assert secret["account"].startswith("none: the data are generated")


# The account of real users.


def test_released_runs_on_one_table_share_an_account(line, tmp_path, own_state, capfd):
    released(line, "a")
    released(line, "b", "eps=2")
    first, second = (result(tmp_path / name)["privacy"]["account"] for name in "ab")
    assert (first["runs"], second["runs"]) == (1, 2)
    assert first["epsilon"] == epsilons(1) and second["epsilon"] == epsilons(1, 2)
    assert second["guarantee"] == "worst-case" and "limit" not in second
    (path,) = known_accounts()
    assert path.is_relative_to(own_state)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in own_state.rglob("*") if file.is_file()}
    assert modes == {0o600}
    whole = "".join(
        f"{file}{file.read_bytes()!r}" for file in own_state.rglob("*") if file.is_file()
    )
    source = Experiment(compose(line)).data
    assert "person1" not in whole and source.fingerprint not in whole
    capfd.readouterr()
    for where in ("a", str(path), None):
        assert ledger.main(["--account", *([] if where is None else [where])]) == 0
        said = " ".join(capfd.readouterr().out.split())
        assert "t.csv: 2 runs" in said and f"epsilon {second['epsilon']:.4g} (replace-one)" in said
        assert "There is no limit" in said


def test_the_same_data_are_recognised(line, tmp_path):
    def runs(*more):
        out = tmp_path / "o"
        shutil.rmtree(out, ignore_errors=True)
        released(line, out, *more)
        return result(out)["privacy"]["account"]["runs"]

    assert runs() == 1
    table(tmp_path / "t.csv", more=[["person3", "1", "1", "1"]])
    assert runs() == 2, "a row was added"
    table(tmp_path / "t.csv", users=601)
    assert runs() == 3, "a user joined"
    shutil.copy(tmp_path / "t.csv", tmp_path / "copy.csv")
    assert runs("data.path=copy.csv") == 4, "the file was copied"
    table(tmp_path / "other.csv", users=580)
    assert runs("data.path=other.csv") == 1, "other users, another file"
    shutil.copy(tmp_path / "other.csv", tmp_path / "t.csv")
    assert runs() == 5, "a file of one account with the users of another is charged in both"
    assert [len(account_in(path).runs) for path in known_accounts()] in ([5, 2], [2, 5])
    assert runs("privacy.data_name=coffee") == 1 and runs("privacy.data_name=coffee") == 2


def test_a_limit_refuses_the_run_that_would_pass_it(line, tmp_path, capfd):
    released(line, "a", "privacy.account_limit=2")
    released(line, "b")
    capfd.readouterr()
    assert main([*line, "data.evaluate=false", "eps=2", "out=c"]) == 3
    error = capfd.readouterr().err
    assert "nothing was released" in error and error.count("\n") == 1
    assert "limit is epsilon=2 at delta=1e-06" in error
    assert not (tmp_path / "c/ledger.jsonl").read_text()
    assert result(tmp_path / "b")["privacy"]["account"]["limit"]["epsilon"] == 2
    (path,) = known_accounts()
    assert ledger.main(["--account"]) == 0
    said = " ".join(capfd.readouterr().out.split())
    left = float(said.partition("may cost at most epsilon ")[2].split()[0].rstrip("."))
    assert main([*line, "data.evaluate=false", f"eps={left * 1.01}", "out=d"]) == 3
    released(line, "e", f"eps={left}")
    assert main([*line, "data.evaluate=false", "eps=0.1", "out=f"]) == 3
    assert ledger.main(["--account", str(path), "--limit", "3"]) == 0
    released(line, "f", "eps=0.1")


def test_a_sweep_is_counted_as_a_whole(line, tmp_path, capfd):
    """Four released runs cost more than any of them claims; without errors nothing crashes."""
    sweep = ["-m", *line, "data.evaluate=false", "eps=1,2", "seed=0,1", "out=o", "--jobs", "2"]
    assert main([*sweep, "privacy.account_limit=3"]) == 3
    error = capfd.readouterr().err
    assert "4 runs" in error and "nothing was released" in error and error.count("\n") == 1
    assert not (tmp_path / "o").exists() and not known_accounts()
    assert main([*sweep, "privacy.account_limit=4"]) == 0
    said = capfd.readouterr()
    words = " ".join(said.out.split())
    total = float(words.partition("All 4 together cost epsilon ")[2].split()[0])
    assert total == pytest.approx(3.36, abs=0.01)
    assert "mean error" not in words and "nan" not in (words + said.err).lower()
    assert len(account_in(known_accounts()[0]).runs) == 4
    with (tmp_path / "o/summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 and all(row["error_mean"] == row["error_std"] == "" for row in rows)
    page = (tmp_path / "o/report.html").read_text()
    assert "All 4 together cost epsilon" in page and ">error<" not in page
    # How long the sweep took would tell how many rows users have.
    assert {path.stat().st_mtime % 86400 for path in (tmp_path / "o").rglob("*")} == {0}


def test_who_has_no_account_says_so(line, tmp_path, monkeypatch, capfd):
    released(line, "none", "privacy.account=none")
    assert result(tmp_path / "none")["privacy"]["account"] == (
        "none: privacy.account=none was given"
    )
    assert not known_accounts()
    (tmp_path / "file").write_text("")
    capfd.readouterr()
    for environment in ({"PRIVFED_STATE": str(tmp_path / "file/x")}, {}):
        with monkeypatch.context() as patched:
            for name in ("PRIVFED_STATE", "XDG_STATE_HOME", "HOME"):
                patched.delenv(name, raising=False)
            for name, value in environment.items():
                patched.setenv(name, value)
            shutil.rmtree(tmp_path / "o", ignore_errors=True)
            assert main([*line, "data.evaluate=false", "out=o"]) == 0
            said = capfd.readouterr()
            assert said.err.count("\n") == 1 and "counted nowhere" in said.err
            assert "In no account of the data" in said.out
            told = result(tmp_path / "o")["privacy"]["account"]
            assert told.startswith("none: no account could be kept")
            asked = [*line, "data.evaluate=false", "out=p", "--quiet"]
            assert main([*asked, "privacy.account_limit=5"]) == 2
            assert "privacy.account_limit=5" in capfd.readouterr().err
    assert main([*asked, f"privacy.account={tmp_path / 'file/x'}"]) == 2
    assert main([*asked, "privacy.account=/dev/full"]) == 2
    assert not (tmp_path / "p/ledger.jsonl").read_text()


def test_home_is_the_default_place(monkeypatch, tmp_path):
    monkeypatch.delenv("PRIVFED_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    from privfed.privacy.account_place import accounts_folder

    assert accounts_folder() == tmp_path / "xdg/privfed/accounts"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert accounts_folder() == tmp_path / ".local/state/privfed/accounts"


def test_a_simulation_in_an_account_makes_its_total_a_simulation(tmp_path):
    own = f"privacy.account={tmp_path / 'a.jsonl'}"
    told = Experiment(compose([*SECRET, own])).run().result["privacy"]["account"]
    assert told["guarantee"] == "worst-case" and told["runs"] == 1
    seeded = Experiment(compose([*SECRET[:-1], own])).run().result["privacy"]["account"]
    assert seeded["guarantee"] == "simulation" and seeded["epsilon"] == epsilons(1, 1)


# Interrupted, copied and killed runs.


class StopError(Exception):
    """The end of a process, as far as a test can tell."""


def begun(folder, *settings, steps=2):
    """A run that was stopped after some steps."""
    experiment = Experiment(compose([*SECRET, *settings]))
    folder.mkdir()
    write_config(folder, experiment.cfg)

    def stop(row):
        if row["step"] == steps:
            raise StopError

    with pytest.raises(StopError):
        experiment.run(folder, stop)
    return folder


def resumed(folder):
    return Experiment(recall(folder, [])).run(folder, resume=True).result["privacy"]


def test_a_copied_folder_that_is_resumed_twice_spends_twice(tmp_path):
    """The copy makes the last two rounds again, with other noise."""
    path = tmp_path / "a.jsonl"
    folder = begun(tmp_path / "run", f"privacy.account={path}")
    shutil.copytree(folder, tmp_path / "copy")
    one = resumed(folder)
    assert one["account"]["epsilon"] == epsilons(1) and "releases_by_copies" not in one["account"]
    two = resumed(tmp_path / "copy")
    releases = [json.loads(text) for text in (folder / "ledger.jsonl").read_text().splitlines()]
    twice = [line["mu"] for line in releases] + [line["mu"] for line in releases[2:]]
    assert two["epsilon"] == one["epsilon"], "each claims what its own ledger has"
    assert two["account"]["releases_by_copies"] == 2 and two["account"]["runs"] == 1
    expected = gaussian_epsilon(float(np.hypot.reduce(twice)), 1e-6)
    assert two["account"]["epsilon"] == pytest.approx(expected, rel=1e-6)
    assert expected > one["account"]["epsilon"] * 1.05


def test_a_limit_stops_the_copy_before_it_releases(tmp_path):
    path = tmp_path / "a.jsonl"
    limit = ("privacy.account_limit=1.0001", f"privacy.account={path}")
    folder = begun(tmp_path / "run", *limit)
    shutil.copytree(folder, tmp_path / "copy")
    resumed(folder)
    with pytest.raises(BudgetError, match="by a copy of this run"):
        resumed(tmp_path / "copy")
    assert not (tmp_path / "copy/result.json").exists()


def test_a_moved_folder_does_not_pay_again(tmp_path):
    path = tmp_path / "a.jsonl"
    folder = begun(tmp_path / "run", f"privacy.account={path}")
    folder.rename(tmp_path / "moved")
    assert resumed(tmp_path / "moved")["account"]["epsilon"] == epsilons(1)


KILLED = """
import os, signal, sys
from privfed.experiment import run_account
reserve = run_account.Accounted.reserve
def killed(self):
    reserve(self)
    os.kill(os.getpid(), signal.SIGKILL)
run_account.Accounted.reserve = killed
from privfed.commands.run import main
sys.exit(main())
"""


def test_a_run_that_was_killed_after_its_reservation_keeps_it(tmp_path):
    path = tmp_path / "a.jsonl"
    settings = [*SECRET, f"privacy.account={path}"]
    line = [sys.executable, "-c", KILLED, *settings, f"out={tmp_path / 'run'}", "--quiet"]
    done = subprocess.run(line, capture_output=True, timeout=120, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "run/ledger.jsonl").read_text()
    account = account_in(path)
    assert account.total(1e-6, REPLACE_ONE) == epsilons(1), "reserved, and never given back"
    assert main(["--resume", str(tmp_path / "run"), "--quiet"]) == 0
    assert result(tmp_path / "run")["privacy"]["account"]["epsilon"] == epsilons(1)
    assert main([*settings, f"out={tmp_path / 'new'}", "--quiet"]) == 0
    assert result(tmp_path / "new")["privacy"]["account"]["epsilon"] == epsilons(1, 1)


def test_nothing_leaves_the_gate_if_the_account_cannot_write_it_down(tmp_path, monkeypatch):
    experiment = Experiment(compose([*SECRET, f"privacy.account={tmp_path / 'a.jsonl'}"]))
    drawn, source = [], type(experiment.federation.gate.source)
    monkeypatch.setattr(source, "normal", lambda *_: drawn.append(1))
    monkeypatch.setattr(
        Account, "record", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(ConfigError, match="No space left on device"):
        experiment.run()
    assert not drawn and len(experiment.ledger.releases) == 1


def test_checkers_and_rivals_charge_nothing(tmp_path, line, monkeypatch):
    path = tmp_path / "a.jsonl"
    experiment = Experiment(compose([*SECRET, f"privacy.account={path}"]))
    experiment.renewed().run()
    assert not path.exists()
    reserved = []
    monkeypatch.setattr(
        run_account, "reserve_all", lambda accounts, runs, limit: reserved.extend(runs)
    )
    monkeypatch.setattr(run_account.Accounted, "record", lambda self, release: None)
    monkeypatch.setattr(run_account.Accounted, "statement", lambda self: "none: tested")
    assert main([*line, f"privacy.account={path}", "data.test=0.5", "out=o", "--quiet"]) == 0
    assert len(reserved) == 1
    assert "mse_global" in result(tmp_path / "o")["metrics"], "a rival was trained, too"


# Delta.


@pytest.mark.parametrize(
    ("delta", "users", "more", "noted"),
    [("1e-6", 60, (), 0), ("0.02", 60, (), 1), ("0.3", 60, ("privacy.force_delta=true",), 1)],
)
def test_a_large_delta_is_noted(delta, users, more, noted):
    result = Experiment(compose([*SECRET, f"delta={delta}", *more])).run().result
    notes = [note for note in result.get("notes", []) if note.startswith("Delta is")]
    assert len(notes) == noted and all("above 1/n = 0.017" in note for note in notes)


def test_a_delta_without_meaning_is_refused():
    with pytest.raises(ConfigError, match=r"delta=0\.3.*privacy\.force_delta=true"):
        Experiment(compose([*SECRET, "data.n=200", "delta=0.3"]))
    Experiment(compose([*SECRET, "delta=0.3", "eps=inf"]))
    Experiment(compose(["algo=expmech", "data.n=60", "data.d=4", "delta=0.3"]))
