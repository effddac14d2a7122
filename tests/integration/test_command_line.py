"""The command line's contract: files, exit codes, one-line errors, and what it imports."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

SMALL = ("data.n=200", "data.d=8", "data.m=6", "rounds=2")


def test_a_run_writes_its_whole_folder(command, tmp_path):
    done = command(*SMALL, "algo=fedrep", "init=spectral", "eps=1", "out=here")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "here"
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
    result = json.loads((folder / "result.json").read_text())
    assert {
        "algo",
        "runtime",
        "seed",
        "n_users",
        "n_nodes",
        "rounds",
        "metrics",
        "privacy",
        "time",
        "peak_rss_mb",
    } <= set(result)
    assert {"mse", "excess", "dist"} <= set(result["metrics"])
    privacy = [
        "epsilon",
        "delta",
        "target_epsilon",
        "neighbouring",
        "guarantee",
        "noise",
        "releases",
    ]
    assert list(result["privacy"])[: len(privacy)] == privacy
    assert {"total_s", "setup_s", "rounds_s", "user_rounds_per_s"} == set(result["time"])
    ledger = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert len(ledger) == result["privacy"]["releases"] == 3
    assert ledger[-1]["epsilon_spent"] == pytest.approx(result["privacy"]["epsilon"])
    assert len((folder / "rounds.csv").read_text().splitlines()) == 4
    with np.load(folder / "model.npz") as model:
        assert model.files == ["U"], "a head must never be published"
        np.testing.assert_allclose(model["U"].T @ model["U"], np.eye(2), atol=1e-12)
    assert "replace-one" in done.stdout and "simulation" in done.stdout
    page = (folder / "report.html").read_text()
    assert "http" not in page and page.count("<svg") == 3


def test_progress_is_plain_lines_when_nobody_watches(command):
    done = command(*SMALL)
    lines = [line for line in done.stdout.splitlines() if "epsilon spent" in line]
    assert len(lines) == 3 and "round 2/2" in lines[-1] and "error" in lines[-1]
    assert "\x1b" not in done.stdout and done.stderr == ""


def test_without_privacy_the_files_are_valid_json(command, tmp_path):
    assert command(*SMALL, "eps=inf", "out=o", "--quiet").returncode == 0
    assert json.loads((tmp_path / "o/result.json").read_text())["privacy"]["epsilon"] == "inf"
    assert json.loads((tmp_path / "o/ledger.jsonl").read_text().splitlines()[0])["mu"] == "inf"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("algo=fedrap",), ("algo=fedrap", "fedrep", "standalone")),
        (("preset=nips",), ("preset=nips", "pmpr")),
        (("eps=0",), ("eps=0", "positive")),
        (("eps=-1",), ("eps=-1", "positive")),
        (("eps=many",), ("eps=many", "positive")),
        (("eps=nan",), ("eps=nan", "positive")),
        (("delta=0",), ("delta=0", "Gaussian noise needs delta above 0")),
        (("delta=1",), ("delta=1", "between 0 and 1")),
        (("data.k=51",), ("data.k=51", "data.d=50")),
        (("model.k=51",), ("model.k=51", "50")),
        (("data.m=1",), ("data.m=1", "too few")),
        (("preset=pmpr", "data.m=3"), ("data.m=3", "too few")),
        (("preset=pmpr", "algo.batches=fresh"), ("algo.batches=fresh", "a user has 5")),
        (("algo.batch=6", "algo.estimator=two-batches"), ("algo.batch=6", "half")),
        (("data.n=0",), ("data.n=0", "at least 1")),
        (("data.n=many",), ("data.n=many", "whole number")),
        (("rounds=0",), ("rounds=0", "at least 1")),
        (("rounds=2.5",), ("rounds=2.5", "whole number")),
        (("neighbouring=both",), ("neighbouring=both", "zero-out")),
        (("runtime.nodes=30000",), ("runtime.nodes=30000", "20000 users")),
        (("algo.estimator=loo",), ("algo.estimator=loo", "leave-one-out")),
        (("seed=-1",), ("seed=-1",)),
        (("algo=altmin", "rounds=20001"), ("rounds=20001", "20000")),
        (("algo=altmin", "algo.target=y"), ("algo.target=y", "residuals", "labels")),
        (("algo=altmin", "algo.estimator=two-batches"), ("algo.estimator=two-batches", "halves")),
        (("algo=altmin", "algo.clip=1"), ("algo.clip=1", "algo.clip.products")),
        (("algo=altmin", "algo.shrink=no"), ("algo.shrink=no", "true or false")),
        (("init=ppm", "init.centre=off"), ("init.centre=off", "true or false")),
        (("init=ppm", "init.batch=0"), ("init.batch=0", "at least 1")),
        (("algo=jlmargin", "data=synthetic"), ("data: ", "labels -1 and 1", "data=margin")),
        (("data.path=mine.csv", "data.user=who"), ("setting of data=table: add data=table",)),
        (("algo=expmech", "algo.gamma=20"), ("algo.gamma=20", "between 1e-12 and 1")),
        (("algo=expmech", "algo.candidates=1000000000"), ("algo.candidates=1000000000", "GB")),
        (("algo=altmin", "algo.ridge=-1"), ("algo.ridge=-1", "at least 0")),
        (("algo=altmin", "algo.share=1"), ("algo.share=1", "between 0 and 1")),
        (("init=ppm", "init.copies=0"), ("init.copies=0", "at least 1")),
        (("init=ppm", "init.agreement=1"), ("init.agreement=1", "0.707")),
        (("init=pairs", "init.zeta=0"), ("init.zeta=0", "positive")),
        (("epsilon=1",), ("epsilon", "there is no setting", "eps")),
        (("data.users=9",), ("data.users", "there is no setting")),
        (("fedrep",), ("key=value",)),
        (("+epsilon=2",), ("key=value",)),
        (("~eps",), ("key=value",)),
        (("hydra.run.dir=x",), ("key=value",)),
        (("eps=1e300",), ("eps=1e+300", "inf")),
        (("eps=inf", "privacy.noise_multiplier=20"), ("privacy.noise_multiplier=20", "eps=inf")),
        (("data.R=1e200",), ("data.R=1e+200",)),
        (("algo.strategy._target_=nowhere.Foo",), ("nowhere.Foo",)),
        (("eps=[1",), ("eps",)),
        (("out=/dev/null/run",), ("out=/dev/null/run", "cannot write")),
        (("--config-dir", "nowhere"), ("nowhere", "no such folder")),
        (("algo=expmech", "algo.candidates=0"), ("algo.candidates=0", "at least 2")),
        (
            ("algo=expmech", "algo.net=explicit"),
            ("algo.net=explicit", "candidates", "GB", "algo.net=random"),
        ),
        (("algo=expmech", "algo.net=exact"), ("algo.net=exact", "explicit")),
        (("algo=expmech", "algo.gamma=0"), ("algo.gamma=0", "between 1e-12 and 1")),
        (("algo=expmech", "algo.C=-1"), ("algo.C=-1", "positive")),
        (("algo=expmech", "algo.targets=all"), ("algo.targets=all", "relative")),
        (("algo=expmech", "privacy.clip=auto"), ("privacy.clip=auto", "fixed range")),
        (
            ("algo=expmech", "privacy.noise_multiplier=2"),
            ("privacy.noise_multiplier=2", "selections"),
        ),
        (("algo=jlmargin", "algo.sketch=0"), ("algo.sketch=0", "at least 1")),
        (("algo=jlmargin", "algo.sketch=1"), ("algo.sketch=1", "model.k=2")),
        (("algo=jlmargin", "algo.gamma=-0.5"), ("algo.gamma=-0.5", "between 1e-12 and 1")),
        (("algo=jlmargin", "data.margin=0.9"), ("data.margin=0.9", "data.strength")),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_clear_line(arguments, words, tmp_path, monkeypatch, capfd):
    from privfed.commands.run import main

    monkeypatch.chdir(tmp_path)
    assert main(list(arguments)) == 2
    out, err = capfd.readouterr()
    assert len(err.strip().splitlines()) == 1 and "Traceback" not in err + out
    assert all(word in err for word in words), err
    assert not any(tmp_path.iterdir()), "a refused run must leave no trace"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: mine\nguarantee: none\n", "algo.rounds"),
        ("name: [", "not valid YAML"),
        ("name: mine\nguarantee: none\nrounds: 1\nstrategy: {}\nclient: {}\n", "_target_"),
        (
            "name: mine\nguarantee: none\nrounds: 1\n"
            "strategy: {_target_: strategies.fedrep.FedRep, speed: 1}\nclient: {}\n",
            "do not fit",
        ),
        (
            "name: mine\nguarantee: none\nrounds: 1\n"
            "strategy: {_target_: strategies.fedrep.Missing}\nclient: {}\n",
            "strategies.fedrep.Missing",
        ),
    ],
)
def test_a_broken_algorithm_of_one_s_own_is_one_clear_line(
    tmp_path, capfd, monkeypatch, text, words
):
    from privfed.commands.run import main

    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine, too"
    (folder / "algo").mkdir(parents=True)
    (folder / "algo/mine.yaml").write_text(text)
    assert main(["--config-dir", str(folder), "algo=mine"]) == 2
    err = capfd.readouterr().err
    assert len(err.strip().splitlines()) == 1 and words in err


def test_an_unknown_option_is_one_clear_line(command):
    done = command("--eps=1")
    assert (
        done.returncode == 2
        and len(done.stderr.strip().splitlines()) == 1
        and "eps=1" in done.stderr
    )


def test_an_earlier_run_in_the_same_folder_is_kept_whole(command, tmp_path):
    for eps in (1, 2, 3):
        assert command(*SMALL, "init=spectral", f"eps={eps}", "out=o", "--quiet").returncode == 0
    for folder, eps in (("previous-1", 1), ("previous-2", 2), (".", 3)):
        result = json.loads((tmp_path / "o" / folder / "result.json").read_text())
        ledger = (tmp_path / "o" / folder / "ledger.jsonl").read_text().splitlines()
        assert result["privacy"]["target_epsilon"] == eps and len(ledger) == 3


def test_a_reader_who_leaves_does_not_stop_the_run(tmp_path):
    line = f"{sys.executable} -m privfed.run {' '.join(SMALL)} out=o | head -n 1"
    subprocess.run(line, shell=True, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "o/result.json").exists()


def test_budget_refused_is_exit_code_3_and_nothing_is_released(command, tmp_path):
    done = command(*SMALL, "privacy.noise_multiplier=0.5", "out=o")
    assert done.returncode == 3 and "nothing was released" in done.stderr
    assert not (tmp_path / "o").exists()


def test_plan_touches_no_data_and_leaves_no_trace(command, tmp_path):
    done = command("--plan", "privacy.clip=auto")
    assert done.returncode == 0 and "spectral clip norm" in done.stdout
    assert not any(tmp_path.iterdir())


def test_presets_and_explicit_settings_combine(command, tmp_path):
    done = command("preset=pmpr", "data.n=300", "rounds=2", "out=o", "--quiet")
    assert done.returncode == 0, done.stderr
    config = (tmp_path / "o/config.yaml").read_text()
    for line in ("eta: 2.5", "estimator: two-batches", "heads: s1", "'n': 300"):
        assert line in config


def test_help_is_worth_reading_and_cheap():
    code = (
        "import sys; from privfed.commands.run import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'flwr', 'numba', 'torch', 'ray', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for word in (
        "fedrep",
        "standalone",
        "neighbouring",
        "data.*",
        "pmpr",
        "exit codes",
        "examples",
    ):
        assert word in done.stdout


def test_a_run_imports_neither_torch_nor_ray(tmp_path):
    code = (
        "import sys; from privfed.commands.run import main; "
        f"assert main({[*SMALL, '--quiet', 'out=o']!r}) == 0\n"
    )
    code += "heavy = {'torch', 'ray', 'matplotlib'} & set(sys.modules)\nassert not heavy, heavy"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_a_full_disk_stops_before_the_release_and_says_so(tmp_path, capfd):
    from privfed.commands.run import main

    (tmp_path / "ledger.jsonl").symlink_to("/dev/full")
    assert main([*SMALL, f"out={tmp_path}", "--quiet"]) == 1
    assert "No space left" in capfd.readouterr().err
    assert not (tmp_path / "model.npz").exists() and not (tmp_path / "result.json").exists()


def test_ctrl_c_keeps_the_ledger(tmp_path):
    line = [sys.executable, "-m", "privfed.run", "rounds=100000", "data.n=500", f"out={tmp_path}"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for text in process.stdout:
            if "round 3/" in text:
                process.send_signal(signal.SIGINT)
                break
        try:
            errors = process.communicate(timeout=60)[1]
        finally:
            process.kill()  # leave nothing behind, whatever happened
    assert process.returncode == 1 and "interrupted" in errors and "Traceback" not in errors
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) >= 4
