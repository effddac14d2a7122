"""Nothing of a real user is in what a run leaves behind: files, console, log."""

from __future__ import annotations

import json

import numpy as np
import pytest

from privfed.config.composition import compose
from privfed.data.cohort import Cohort
from privfed.data.problems.synthetic import Synthetic
from privfed.experiment.run_folder import carry_out
from privfed.experiment.wiring import Experiment
from privfed.federation.roster import Member, Roster, new_token
from privfed.report import loggers
from privfed.report.run_files import keep_previous, write_config, write_run

USERS, FEATURES = 30, 5
SETTINGS = [f"data.n={USERS}", f"data.d={FEATURES}", "data.m=6", "rounds=3", "runtime.nodes=2"]


@pytest.fixture
def real(monkeypatch):
    """An experiment whose users look real to privfed: it is given their data and no truth."""

    def make(*more):
        cohorts = []
        original = Synthetic.cohort

        def cohort(self, first, last):
            made = original(self, first, last)
            cohorts.append(Cohort(made.ids, made.X, made.y))
            return cohorts[-1]

        monkeypatch.setattr(Synthetic, "cohort", cohort)
        roster = Roster(
            [Member("a", USERS // 2, new_token()), Member("b", USERS - USERS // 2, new_token())]
        )
        return Experiment(compose([*SETTINGS, *more]), roster), cohorts

    return make


def traces(numbers):
    """How numbers might be written: their bytes, and enough leading digits to rule out chance."""
    for number in np.ravel(numbers).tolist():
        yield np.float64(number).tobytes()
        if len(digits := repr(abs(number))) > 15:
            yield digits[:15].encode()


def contents(folder, captured):
    """Everything a run leaves, with archives opened."""
    whole = [captured.out.encode(), captured.err.encode()]
    for path in folder.rglob("*"):
        if path.is_file():
            whole.append(path.read_bytes())
        if path.suffix == ".npz":
            with np.load(path) as file:
                whole += [file[name].tobytes() for name in file.files]
    return b"\n".join(whole)


@pytest.mark.parametrize(
    "more", [(), ("algo=altmin",), ("privacy.clip=auto",)], ids=["fedrep", "altmin", "auto"]
)
def test_no_value_of_a_user_is_left_behind(real, tmp_path, capsys, more):
    experiment, cohorts = real(*more)
    write_config(tmp_path, experiment.cfg)
    rows = []
    outcome = experiment.run(tmp_path, lambda row: (rows.append(row), print(row)))
    write_run(tmp_path, experiment.cfg, outcome)
    left = contents(tmp_path, capsys.readouterr())
    assert outcome.result["privacy"]["noise"] == "discrete" and outcome.result["metrics"] == {}
    shared = [outcome.model["U"]]
    seen = 0
    for cohort in cohorts:
        client = experiment.factory.serving(cohort)
        W = client.weights(cohort, shared)
        gradients = np.concatenate(
            [np.linalg.norm(cohort.X, axis=(1, 2)), np.linalg.norm(cohort.y, axis=1)]
        )
        for trace in traces(
            np.concatenate([np.ravel(part) for part in (cohort.X, cohort.y, W, gradients)])
        ):
            seen += 1
            assert trace not in left, trace
    assert seen > 2 * USERS * 6 * FEATURES
    assert not {"time", "peak_rss_mb"} & set(outcome.result)
    for name in ("rounds.csv", "report.html", "ledger.jsonl", "result.json"):
        text = (tmp_path / name).read_text()
        words = ("seconds", "rss", "total_s", '"time"', " MB", " s in all")
        assert not any(word in text for word in words), name
    effort = json.loads((tmp_path / "operator.json").read_text())
    assert len(effort["steps"]) == len(rows) and effort["peak_rss_mb"] > 1
    assert (tmp_path / "operator.json").stat().st_mode & 0o777 == 0o600
    assert {path.stat().st_mtime % 86400 for path in tmp_path.iterdir()} == {0.0}
    known = {
        "step",
        "task",
        "round",
        "users",
        "clip",
        "noise_std",
        "epsilon",
        "missing_users",
        "mse",
        "dist",
    }
    assert {key for row in rows for key in row} <= known  # mse and dist: of fresh public users


def test_the_logbooks_of_real_users_know_no_time_of_day(real, tmp_path, monkeypatch):
    experiment, _ = real("logger=tensorboard")
    seen = []

    class Book(loggers.Logger):
        package = "json"

        def step(self, row):
            seen.append((self.now(), set(row)))

        def end(self, result):
            seen.append((self.now(), set(loggers.final(result))))

    monkeypatch.setattr(loggers, "chosen", lambda cfg: loggers.Loggers([Book()]))
    write_config(tmp_path, experiment.cfg)
    carry_out(experiment, tmp_path, resume=False)
    assert len(seen) > 3 and len({stamp for stamp, _ in seen}) == 1 and seen[0][0] % 86400 == 0
    assert not any({"seconds", "total_s"} & told for _, told in seen)


def test_event_files_of_real_users_know_no_time_of_day(real, tmp_path):
    pytest.importorskip("tensorboardX")
    experiment, _ = real("logger=tensorboard")
    write_config(tmp_path, experiment.cfg)
    carry_out(experiment, tmp_path, resume=False)
    events = list((tmp_path / "tensorboard").iterdir())
    assert events and {path.stat().st_mtime % 86400 for path in (*events, *tmp_path.iterdir())} == {
        0
    }


def test_a_second_run_on_the_same_users_is_flagged(real, tmp_path, monkeypatch):
    for expected in (0, 1, 2):
        experiment, _ = real("eps=0.5")
        keep_previous(tmp_path)
        write_config(tmp_path, experiment.cfg)
        write_run(tmp_path, experiment.cfg, experiment.run(tmp_path))
        notes = json.loads((tmp_path / "result.json").read_text()).get("notes", [])
        assert [note.count("0.5") for note in notes if "Earlier runs" in note] == [expected] * bool(
            expected
        )
    monkeypatch.undo()
    simulated = Experiment(compose(SETTINGS))
    keep_previous(tmp_path)
    write_config(tmp_path, simulated.cfg)
    write_run(tmp_path, simulated.cfg, simulated.run(tmp_path))
    assert "notes" not in json.loads((tmp_path / "result.json").read_text())
