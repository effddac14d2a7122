"""Logbooks get the public numbers of a run, and can never stop one."""

from __future__ import annotations

import csv
import json
import sys
import types

import pytest

from privfed.commands.run import main
from privfed.report import loggers
from privfed.report.run_files import COLUMNS

SMALL = ("data.n=100", "data.d=6", "data.m=6", "rounds=2", "--quiet")


class Record:
    """Keeps what a store is told."""

    def __init__(self):
        self.told, self.created, self.tags, self.fail = [], [], {}, ""

    def module(self):
        """A package that looks like MLflow."""
        record = self

        class Client:
            def __init__(self, tracking_uri):
                record.uri = tracking_uri

            def get_experiment_by_name(self, name):
                return None

            def create_experiment(self, name):
                return name

            def create_run(self, experiment, start_time, run_name):
                record.created.append((experiment, run_name, start_time))
                return types.SimpleNamespace(
                    info=types.SimpleNamespace(run_id=f"id{len(record.created)}")
                )

            def log_batch(self, run, metrics=(), params=()):
                if record.fail == "log_batch":
                    raise OSError("the store\nis gone")
                record.told.append((run, list(metrics), list(params)))

            def set_tag(self, run, key, value):
                record.tags[key] = value

            def set_terminated(self, run, end_time):
                record.ended = run

        def metric(*values):
            return values

        mlflow, entities, tracking = (
            types.ModuleType(name) for name in ("mlflow", "mlflow.entities", "mlflow.tracking")
        )
        entities.Metric = entities.Param = metric
        tracking.MlflowClient = Client
        return {"mlflow": mlflow, "mlflow.entities": entities, "mlflow.tracking": tracking}


@pytest.fixture
def store(monkeypatch):
    record = Record()
    for name, module in record.module().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return record


def test_mlflow_gets_the_settings_the_steps_and_the_result(store, tmp_path):
    assert main([*SMALL, "logger=mlflow", f"out={tmp_path / 'run'}"]) == 0
    assert store.uri == (tmp_path / "mlruns").resolve().as_uri() and store.created[0][:2] == (
        "privfed",
        "run",
    )
    parameters = dict(pair for _, _, params in store.told for pair in params)
    assert parameters["eps"] == "1.0" and parameters["algo.name"] == "fedrep"
    metrics = [metric for _, metrics, _ in store.told for metric in metrics]
    result = json.loads((tmp_path / "run/result.json").read_text())
    rows = list(csv.DictReader((tmp_path / "run/rounds.csv").open()))
    logged = [value for name, value, _, _ in metrics if name == "mse"]
    assert logged == pytest.approx([float(row["mse"]) for row in rows])
    assert ("final_mse", result["metrics"]["mse"]) in [
        metric[:2] for metric in metrics
    ] and store.ended == "id1"
    assert store.tags["guarantee"] == "simulation" and store.tags["would_be"] == "worst-case"
    public = set(COLUMNS) | {
        f"final_{name}" for name in (*result["metrics"], *result["time"], "epsilon")
    }
    assert {name for name, *_ in metrics} <= public, "nothing but what the run's files hold"
    assert all(stamp % 1000 == 0 for _, _, stamp, _ in metrics), "times to the second"


def test_mlflow_s_own_address_is_respected(store, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://example.org")
    assert main([*SMALL, "logger=mlflow", f"out={tmp_path / 'run'}"]) == 0
    assert store.uri == "http://example.org" and not (tmp_path / "mlruns").exists()


def test_a_resumed_run_goes_on_in_its_logbook(store, tmp_path):
    book = loggers.chosen(_cfg("mlflow"))
    book.start(_cfg("mlflow"), tmp_path)
    again = loggers.chosen(_cfg("mlflow"))
    again.start(_cfg("mlflow"), tmp_path)
    again.step({"step": 3, "mse": 1.0})
    assert len(store.created) == 1 and store.told[-1][0] == "id1"


def test_a_logbook_that_fails_does_not_stop_the_run(store, tmp_path, capfd):
    store.fail = "log_batch"
    assert main([*SMALL, "logger=[mlflow,tensorboard]", f"out={tmp_path / 'run'}"]) == 0
    err = capfd.readouterr().err
    assert (
        len(err.strip().splitlines()) == 1
        and "logger=mlflow stopped (OSError: the store is gone)" in err
    )
    assert any((tmp_path / "run/tensorboard").iterdir()), "the other one goes on"


def test_tensorboard_gets_the_same_curves(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter  # noqa: F401

    assert main([*SMALL, "logger=tensorboard", f"out={tmp_path}"]) == 0
    (file,) = (tmp_path / "tensorboard").iterdir()
    content, place, points, times = file.read_bytes(), 0, {}, []
    while place < len(
        content
    ):  # records: length (8 bytes), its checksum (4), content, its checksum (4)
        length = int.from_bytes(content[place : place + 8], "little")
        event = Event.FromString(content[place + 12 : place + 12 + length])
        place += length + 16
        for value in event.summary.value:
            points.setdefault(value.tag, []).append((event.step, value.simple_value))
            times.append(event.wall_time)
    rows = list(csv.DictReader((tmp_path / "rounds.csv").open()))
    assert [step for step, _ in points["rounds/mse"]] == [int(row["step"]) for row in rows]
    assert [value for _, value in points["rounds/mse"]] == pytest.approx(
        [float(row["mse"]) for row in rows], rel=1e-6
    )
    assert "result/epsilon" in points and all(time == int(time) for time in times)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("tensorbord", "did you mean 'tensorboard'"),
        ("3", "known: mlflow"),
        ("mlflow", "pip install 'privfed[loggers]'"),
    ],
)
def test_what_cannot_log_is_one_line_before_anything_is_written(
    given, words, tmp_path, monkeypatch, capfd
):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert main([*SMALL, f"logger={given}", f"out={tmp_path / 'run'}"]) == 2
    err = capfd.readouterr().err
    assert len(err.strip().splitlines()) == 1 and words in err and not (tmp_path / "run").exists()


def _cfg(name):
    from privfed.config.composition import compose

    return compose([f"logger={name}"])
