"""Training on one's own table, from the command line."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
from support.tables import item_table, shared_table

from privfed.commands.run import main
from privfed.experiment import checkpoint
from privfed.models.table_model import NAMES

LINE = ("data=table", "eps=30", "rounds=2", "runtime.threads=1", "--quiet")
METRICS = {"", "_standalone", "_global", "_offset"}


@pytest.fixture
def done(tmp_path, monkeypatch, capfd):
    """The result of a run, once it is over."""
    monkeypatch.chdir(tmp_path)

    def done(path, *overrides, out="run", quiet=True):
        line = ["data=table", f"data.path={path}", f"out={out}", "runtime.threads=1", *overrides]
        code = main([*line, "--quiet"] if quiet else line)
        assert code == 0, capfd.readouterr().err
        return json.loads((tmp_path / out / "result.json").read_text())

    return done


def model_in(folder):
    with np.load(folder / "model.npz") as file:
        return dict(file)


def test_where_users_share_a_representation_personal_models_win(done, tmp_path):
    result = done(shared_table(tmp_path / "t.csv", n=800), "eps=8")
    metrics, judged = result["metrics"], result["judged"]
    assert set(metrics) == {f"{name}{end}" for end in METRICS for name in ("mse", "mae", "r2")}
    assert set(result["standard_errors"]) == set(metrics)
    assert set(result["differences"]) == {"standalone", "global", "offset"}
    gap = result["differences"]["standalone"]
    assert gap["mean"] == pytest.approx(metrics["mse"] - metrics["mse_standalone"])
    assert gap["mean"] < -2 * gap["error"] < 0
    own, alone, one, offset = (
        metrics[f"mse{end}"] for end in ("", "_standalone", "_global", "_offset")
    )
    assert own < 0.6 * alone and own < 0.3 * min(one, offset)
    assert 0 < judged["users"] < result["n_users"] == 800 and judged["rows"] > judged["users"]
    assert (
        result["privacy"]["would_be"].startswith("under the assumption")
        and result["privacy"]["noise"] == "seeded"
    )
    assert 7.99 < result["privacy"]["epsilon"] <= 8 and result["rounds"] == 1
    assert any("2 shared directions" in note for note in result["notes"])
    folder = tmp_path / "run"
    assert set(model_in(folder)) == set(NAMES)
    ledger = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert len(ledger) == result["privacy"]["releases"] and not (folder / "private").exists()
    assert len((folder / "rounds.csv").read_text().splitlines()) == 1 + len(ledger)


@pytest.mark.parametrize("kind", ["two", "three"])
def test_labels(done, tmp_path, kind):
    result = done(shared_table(tmp_path / "t.csv", n=400, kind=kind), "eps=20", "rounds=3")
    metrics = result["metrics"]
    names = ("risk", "accuracy", "log_loss", "auc")
    assert set(metrics) == {f"{name}{end}" for end in METRICS for name in names}
    assert metrics["log_loss"] < metrics["log_loss_global"] and metrics["auc"] > 0.5
    assert metrics["accuracy"] == pytest.approx(1 - metrics["risk"])
    assert metrics["risk"] < min(
        metrics["risk_standalone"], metrics["risk_global"], metrics["risk_offset"]
    )
    assert model_in(tmp_path / "run")["w"].shape == (6, 1 if kind == "two" else 3)


def test_items_rated_once_each(done, tmp_path):
    result = done(item_table(tmp_path / "t.csv", n=500), "eps=20", "rounds=3")
    metrics = result["metrics"]
    assert metrics["mse"] < 0.8 * min(
        metrics["mse_standalone"], metrics["mse_global"], metrics["mse_offset"]
    )
    assert model_in(tmp_path / "run")["U"].shape[0] == 12, "one-hot"


def test_a_declared_schema_makes_the_guarantee_hold_for_any_data(done, tmp_path, capfd):
    path = shared_table(tmp_path / "t.csv", n=60)
    assert main(["data=table", f"data.path={path}", "data.describe=true", "out=described"]) == 0
    said = capfd.readouterr().out
    assert "60 users" in said and "schema written to described/schema.yaml" in said
    assert [file.name for file in (tmp_path / "described").iterdir()] == ["schema.yaml"], (
        "nothing else, nothing released"
    )
    result = done(path, "data.schema=described/schema.yaml", "rounds=1", "eps=8")
    assert result["privacy"]["would_be"] == "worst-case"
    inferred = done(path, "rounds=1", "eps=8", out="inferred")
    assert result["metrics"] == pytest.approx(inferred["metrics"], rel=1e-12), (
        "the schema is the same"
    )


def test_the_same_numbers_however_users_are_spread(done, tmp_path):
    path = shared_table(tmp_path / "t.csv", n=60)
    results = [
        done(path, "eps=30", "rounds=2", f"runtime.nodes={nodes}", out=str(nodes))
        for nodes in (1, 3, 60)
    ]
    for nodes, result in zip((3, 60), results[1:], strict=True):
        assert result["metrics"] == pytest.approx(results[0]["metrics"], rel=1e-8)
        for name, array in model_in(tmp_path / "1").items():
            np.testing.assert_allclose(
                model_in(tmp_path / str(nodes))[name], array, rtol=1e-8, atol=1e-10
            )


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["ray", "grpc"])
def test_the_same_numbers_in_other_processes(command, tmp_path, whole, runtime):
    path, result, model = whole
    (tmp_path / "t.csv").write_bytes(path.read_bytes())
    ran = command(
        *LINE[:3],
        "data.path=t.csv",
        f"runtime={runtime}",
        "runtime.nodes=2",
        f"out={runtime}",
        "--quiet",
    )
    assert ran.returncode == 0, ran.stderr
    there = json.loads((tmp_path / runtime / "result.json").read_text())
    assert (
        there["metrics"] == pytest.approx(result["metrics"], rel=1e-8)
        and there["runtime"] == runtime
    )
    for name, array in model.items():
        np.testing.assert_allclose(model_in(tmp_path / runtime)[name], array, rtol=1e-8, atol=1e-10)


def killed(line, saves, before):
    """Run a command in a child that kills itself after `saves` saves of its checkpoint.

    before: it does so just before the next save.
    """
    pid = os.fork()
    if pid == 0:
        original, count = checkpoint.save, 0

        def save(*given):
            nonlocal count
            count += 1
            if not before or count <= saves:
                original(*given)
            if count == saves + before:
                os.kill(os.getpid(), signal.SIGKILL)

        checkpoint.save = save
        try:
            main(line)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("saves", "before"),
    [(0, True), (1, True), (2, False), (3, True), (4, False), (5, True), (6, False)],
)
def test_a_killed_run_goes_on_to_the_same_end(done, tmp_path, whole, saves, before):
    path, result, model = whole
    line = [*LINE, f"data.path={path}", f"out={tmp_path / 'killed'}"]
    assert killed(line, saves, before) == -signal.SIGKILL
    assert (tmp_path / "killed/private/data").stat().st_mode & 0o077 == 0
    assert main(["--resume", str(tmp_path / "killed"), "--quiet"]) == 0
    again = json.loads((tmp_path / "killed/result.json").read_text())
    assert (
        again["metrics"] == result["metrics"]
        and again["privacy"] == result["privacy"]
        and again["notes"] == result["notes"]
    )
    for name, array in model.items():
        np.testing.assert_array_equal(model_in(tmp_path / "killed")[name], array)
    assert not (tmp_path / "killed/private").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody interrupted; it loads and compiles everything, so that no child has to."""
    folder = tmp_path_factory.mktemp("whole")
    path = shared_table(folder / "t.csv", n=40)
    line = [*LINE, f"data.path={path}", f"out={folder / 'run'}"]
    assert main(line) == 0
    return path, json.loads((folder / "run/result.json").read_text()), model_in(folder / "run")


@pytest.mark.parametrize(("saves", "code"), [(1, 3), (5, 0)])
def test_secret_noise_is_not_drawn_twice_for_a_step_that_was_paid_for(
    whole, tmp_path, capfd, saves, code
):
    """Without the curvature there is nothing to go on from; evidence can be given up."""
    line = [*LINE, f"data.path={whole[0]}", f"out={tmp_path / 'killed'}", "data.evaluate=false"]
    assert killed(line, saves, before=True) == -signal.SIGKILL
    ledger = (tmp_path / "killed/ledger.jsonl").read_text()
    assert main(["--resume", str(tmp_path / "killed"), "--quiet"]) == code
    after = (tmp_path / "killed/ledger.jsonl").read_text()
    if code:
        assert after == ledger and "curvature step" in capfd.readouterr().err
        return
    names = [(entry["name"], entry["round"]) for entry in map(json.loads, after.splitlines())]
    assert after.startswith(ledger) and len(set(names)) == len(names) == 6
    assert "1 of 6 steps" in " ".join(
        json.loads((tmp_path / "killed/result.json").read_text())["notes"]
    )


@pytest.mark.parametrize("what", ["table", "schema"])
@pytest.mark.parametrize("saves", [0, 5])
def test_a_run_does_not_go_on_with_other_rows(whole, tmp_path, monkeypatch, capfd, saves, what):
    monkeypatch.chdir(tmp_path)
    path = shared_table(tmp_path / "t.csv", n=40)
    assert main(["data=table", f"data.path={path}", "data.describe=true", "out=."]) == 0
    settings = ["data.schema=schema.yaml"] if what == "schema" else []
    line = [*LINE, "data.path=t.csv", "out=killed", *settings]
    assert killed(line, saves, before=True) == -signal.SIGKILL
    changed = tmp_path / ("t.csv" if what == "table" else "schema.yaml")
    text = changed.read_text()
    other = text.replace("x1: {kind: numeric}", "x1: {kind: numeric, bounds: [0, 1]}")
    changed.write_text(other if what == "schema" else text + "u7,1,2,3,4,5,6\n")
    capfd.readouterr()
    assert main(["--resume", "killed", "--quiet"]) == 2
    error = capfd.readouterr().err
    assert (
        "--resume killed: the table, or its schema, is no longer what it was" in error
        and error.count("\n") == 1
    )
    ledger = (tmp_path / "killed/ledger.jsonl").read_text()
    changed.write_text(text)
    assert main(["--resume", "killed", "--quiet"]) == 0
    assert (tmp_path / "killed/ledger.jsonl").read_text().startswith(ledger)


def test_users_alone_release_nothing(done, tmp_path):
    path = shared_table(tmp_path / "t.csv", n=60)
    result = done(path, "algo=table/standalone")
    assert (
        set(result["metrics"]) == {"mse", "mae", "r2"}
        and result["privacy"]["releases"] == 0
        and model_in(tmp_path / "run") == {}
    )
    assert result["metrics"]["mse"] == pytest.approx(
        done(path, "rounds=1", out="fedrep")["metrics"]["mse_standalone"]
    )


@pytest.mark.parametrize("more", [("data.test=0",), ("data.test=0.01",)])
def test_where_nobody_can_be_judged_a_run_still_ends(done, tmp_path, more):
    result = done(
        shared_table(tmp_path / "t.csv", n=20), "data.most_rows=9", "rounds=1", *more, quiet=False
    )
    if more == ("data.test=0",):
        assert result["metrics"] == {} and "judged" not in result
        assert any("20 of 20 users have no row to hold out" in note for note in result["notes"])
    else:
        assert result["judged"]["users"] > 10, "one row of each who has two"


def test_one_column_one_user_one_row(done, tmp_path):
    path = tmp_path / "t.csv"
    schema = tmp_path / "schema.yaml"
    schema.write_text(
        "user: user\ntarget: {column: target, kind: numeric, bounds: [0, 9]}\n"
        "columns: {x: {kind: numeric}}\n"
    )
    for rows in (
        ["a,1.5,2"],
        ["a,1.5,2", "a,2.5,1"],
        ["a,1.5,2", "b,2.5,7", "c,,3"],
        ["a,x,y", "b,1,?", "b,1,2"],
    ):
        path.write_text("user,x,target\n" + "\n".join(rows) + "\n")
        result = done(path, f"data.schema={schema}", "rounds=1", "runtime.nodes=1")
        assert result["n_users"] == len({row[0] for row in rows})
        assert bool(result["metrics"]) == (len(rows) == 2), "one of two rows is held out"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("algo=centaur",),
            ("algo=centaur", "not with a table", "algo=table/fedrep or algo=table/global"),
        ),
        (("algo=rgrad",), ("algo=rgrad",)),
        (("data.k=9",), ("k=9", "5")),
        (("delta=0",), ("delta=0",)),
        (("data.evaluate=false", "eps=inf"), ("eps=inf", "simulations only")),
        (("data.path=nowhere.csv",), ("nowhere.csv", "no such file")),
        (("algo.slope_ridge=0",), ("algo.slope_ridge=0", "between 1e-6 and 1e6")),
        (("data.n=5",), ("data.n", "there is no setting")),
        (("runtime.nodes=50",), ("runtime.nodes=50", "20 users")),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_clear_line(tmp_path, monkeypatch, capfd, overrides, words):
    monkeypatch.chdir(tmp_path)
    path = shared_table(tmp_path / "t.csv", n=20)
    assert main(["data=table", f"data.path={path}", *overrides]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and all(word in error for word in words), error
    assert [file.name for file in tmp_path.iterdir()] == ["t.csv"], (
        "a refused run must leave no trace"
    )


def test_split_predictions_and_heads_are_saved_for_the_owner_alone(done, tmp_path, capfd):
    path = shared_table(tmp_path / "t.csv", n=30, kind="two")
    result = done(path, "data.save=true", "rounds=1")
    for name in ("held_out.csv", "heads.npz"):
        assert (tmp_path / "run" / name).stat().st_mode & 0o777 == 0o600
    first, head, *rows = (tmp_path / "run/held_out.csv").read_text().splitlines()
    assert "not private" in first and len(rows) == result["judged"]["rows"]
    assert head.startswith("user,row,target,personal,standalone,global,offset,P(")
    lines = path.read_text().splitlines()
    for row in rows[:5]:
        user, number, target = row.split(",")[:3]
        assert lines[int(number)].startswith(f"{user},") and target in lines[int(number)]
    with np.load(tmp_path / "run/heads.npz") as heads:
        assert len(heads["users"]) == len(heads["V"]) == 30
    line = ["data=table", f"data.path={path}", "data.evaluate=false", "data.save=true"]
    assert main(line) == 2 and "data.save" in capfd.readouterr().err
