"""Exported models: other programs read them, and compute what we compute."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from support.finished import finished, table_run

import privfed
from privfed.commands.export import main
from privfed.data.tables.schema import Schema
from privfed.models.table_model import NAMES, TableModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def table(folder):
    return table_run(folder, "three", "data.missing=indicator", "eps=8")[0]


@pytest.fixture(scope="module")
def linear(folder):
    return finished(folder / "linear", "data.n=200", "data.d=6", "rounds=2", "init=spectral")


def rows(d):
    return np.random.default_rng(0).normal(size=(5, d))


def test_safetensors(table, linear, tmp_path):
    numpy, safe_open = (
        pytest.importorskip("safetensors.numpy"),
        pytest.importorskip("safetensors").safe_open,
    )
    for run in (table, linear):
        model = privfed.load(run, simulation=True)
        path = tmp_path / "model.safetensors"
        model.export(path, simulation=True)
        read = numpy.load_file(path)
        assert set(read) == set(model.published.arrays)
        for name, array in model.published.arrays.items():
            np.testing.assert_array_equal(read[name], array)
        with safe_open(path, "np") as file:
            about = file.metadata()
        privacy = json.loads((run / "result.json").read_text())["privacy"]
        assert {key: about[key] for key in ("epsilon", "delta", "neighbouring", "guarantee")} == {
            key: str(privacy[key]) for key in ("epsilon", "delta", "neighbouring", "guarantee")
        }
        assert "differentially private for each of the" in about["privacy"]
        length = int.from_bytes(path.read_bytes()[:8], "little")
        assert length % 8 == 0 and "__metadata__" in json.loads(path.read_bytes()[8 : 8 + length])
    privfed.load(table, simulation=True).export(path, simulation=True)
    with safe_open(path, "np") as file:
        about = file.metadata()
    schema = privfed.load(table, simulation=True).published.schema
    assert Schema.from_yaml(about["schema"], "here") == schema and json.loads(
        about["columns"]
    ) == list(schema.names)


def test_safetensors_of_a_network(linear, tmp_path):
    """Arrays can be taken along whatever the run was; the other formats are of linear heads."""
    arrays = {
        "body.weight": np.ones((3, 2), np.float32),
        "body.bias": np.arange(3),
        "scale": np.array(2.0),
    }
    np.savez(linear.parent / "model.npz", **arrays)
    (linear.parent / "result.json").write_text(
        (linear / "result.json").read_text().replace('"fedrep"', '"centaur"')
    )
    assert main([str(linear.parent), "--to", str(tmp_path / "net.safetensors")]) == 0
    read = pytest.importorskip("safetensors.numpy").load_file(tmp_path / "net.safetensors")
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype
    assert main([str(linear.parent), "--to", str(tmp_path / "net.onnx")]) == 2


def shared_part(model, x):
    """Features and, of a table, base of encoded rows x (N, d)."""
    return [x @ model.U, *([model.w[0] + x @ model.w[1:]] if isinstance(model, TableModel) else [])]


def test_onnx(table, linear, tmp_path):
    onnx, reference = pytest.importorskip("onnx"), pytest.importorskip("onnx.reference")
    for run in (table, linear):
        personal = privfed.load(run, simulation=True)
        personal.export(tmp_path / "model.onnx", simulation=True)
        graph = onnx.load(tmp_path / "model.onnx")
        onnx.checker.check_model(graph, full_check=True)
        x = rows(len(personal.model.U))
        made = reference.ReferenceEvaluator(graph).run(None, {"x": x.astype(np.float32)})
        expected = shared_part(personal.model, x)[: len(made)]
        assert [output.name for output in graph.graph.output] == ["features", "base"][
            : 2 if run is table else 1
        ]
        for ours, theirs in zip(expected, made, strict=True):
            np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)
        about = {entry.key: entry.value for entry in graph.metadata_props}
        assert about["neighbouring"] == "replace-one"
        if run is table:
            np.testing.assert_array_equal(json.loads(about["centre"]), personal.model.centre)
            np.testing.assert_array_equal(json.loads(about["scale"]), personal.model.scale)


def test_torch_reads_it_without_us(table, linear, tmp_path):
    pytest.importorskip("torch")
    for run, name in ((table, "table.pt2"), (linear, "linear.pt2")):
        privfed.load(run, simulation=True).export(tmp_path / name, simulation=True)
    script = """
import json, sys
import torch
for name, d in (("table.pt2", int(sys.argv[1])), ("linear.pt2", 6)):
    about = {"privfed.json": ""}
    module = torch.export.load(name, extra_files=about).module()
    made = module(torch.tensor(json.loads(sys.argv[2]))[:, :d])
    made = made if isinstance(made, tuple) else (made,)
    print(json.dumps([
        [part.tolist() for part in made],
        sorted(module.state_dict()),
        json.loads(about["privfed.json"])
    ]))
assert "privfed" not in sys.modules
"""
    d = len(privfed.load(table, simulation=True).model.U)
    x = rows(max(d, 6)).astype(np.float32)
    line = [sys.executable, "-c", script, str(d), json.dumps(x.tolist())]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for run, told in zip((table, linear), map(json.loads, done.stdout.splitlines()), strict=True):
        made, buffers, about = told
        model = privfed.load(run, simulation=True).model
        X = x[:, : len(model.U)].astype(np.float64)
        for ours, theirs in zip(shared_part(model, X), made, strict=False):
            np.testing.assert_allclose(theirs, ours, rtol=1e-9)
        assert buffers == (sorted(NAMES) if run is table else ["U"])
        assert len(made) == (2 if run is table else 1) and about["neighbouring"] == "replace-one"


def test_mistakes(table, tmp_path, monkeypatch, capsys):
    def refused(words, *arguments):
        assert main([*map(str, arguments), "--simulation"]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1

    refused(
        "its name must end in .safetensors, .onnx, .pt2, .pt", table, "--to", tmp_path / "model.h5"
    )
    refused("there is no such folder", tmp_path / "nowhere", "--to", "model.onnx")
    refused("cannot write there", table, "--to", tmp_path / "no" / "model.safetensors")
    for name, suffix, extra in (("onnx", "onnx", "export"), ("torch", "pt2", "networks")):
        monkeypatch.setitem(sys.modules, name, None)
        refused(
            f"needs {name}: pip install 'privfed[{extra}]'",
            table,
            "--to",
            tmp_path / f"model.{suffix}",
        )
    assert not list(tmp_path.iterdir())
    assert main([str(table), "--to", str(tmp_path / "model.safetensors"), "--simulation"]) == 0
    assert "w (" in capsys.readouterr().out
