"""The comparison of two checkouts' numbers, on small folders that look like those of runs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from compare_checkouts import CASES, FILES, Run, differences, main, reworded, spellings, verdict
from conftest import ROOT

RELEASE = {
    "mechanism": "gaussian", "name": "gradient", "round": 1, "size": 12, "clip": 0.05,
    "sensitivity": 0.1, "std": 1.5, "group": None, "sampling": 1.0, "mu": 0.07, "epsilon": 0.0,
    "time": "2026-01-01T00:00:00Z",
}  # fmt: skip
RESULT = {
    "n_users": 20,
    "rounds": 2,
    "metrics": {"mse": 0.25, "excess": 1e-9},
    "notes": ["1,500 users, 3 of them without rows."],
    "privacy": {
        "epsilon": 1.0,
        "delta": 1e-6,
        "guarantee": "worst-case",
        "releases": 2,
        "epsilon_by_neighbouring": {"replace-one": 1.0, "zero-out": 0.5},
    },
    "time": {"total_s": 3.0},
}
ROUNDS = "step,task,mse,epsilon,seconds\n1,gradient,0.5,inf,0.1\n2,gradient,0.25,inf,0.2\n"


def folder(path, *, model=1.0, std=1.5, releases=2, result=None, rounds=ROUNDS):
    path.mkdir()
    np.savez(path / "model.npz", U=np.array([[model, -4.0], [0.0, 1e-9]]), empty=np.zeros((0, 2)))
    lines = [json.dumps(RELEASE | {"std": std, "round": number}) for number in range(releases)]
    (path / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    (path / "result.json").write_text(json.dumps(RESULT | (result or {})))
    (path / "rounds.csv").write_text(rounds)
    return path


def worst(before, after):
    return max(differences(before, after), key=lambda one: one.relative)


def test_equal_runs_agree_whatever_time_they_took(tmp_path):
    before = folder(tmp_path / "before")
    rounds = ROUNDS.replace("0.1\n", "9.0\n")
    after = folder(tmp_path / "after", rounds=rounds, result={"time": {"total_s": 9.0}})
    assert worst(before, after).relative == 0
    same, text = verdict("fedrep", Run(before), Run(after))
    assert same and text.endswith("same")


def test_a_model_differs_relative_to_its_largest_entry(tmp_path):
    before, after = folder(tmp_path / "before"), folder(tmp_path / "after", model=1.0 + 4e-6)
    found = worst(before, after)
    assert found.where == "model.npz U" and found.relative == pytest.approx(1e-6)
    assert not verdict("fedrep", Run(before), Run(after))[0]
    assert verdict("fedavg_ft", Run(before), Run(after))[0]


@pytest.mark.parametrize(
    "array", [np.zeros((3, 2)), np.zeros((2, 2), dtype=np.float32), np.full((2, 2), np.nan)]
)
def test_a_model_of_another_form_differs(tmp_path, array):
    before, after = folder(tmp_path / "before"), folder(tmp_path / "after")
    np.savez(after / "model.npz", U=array, empty=np.zeros((0, 2)))
    assert worst(before, after).relative == math.inf


def test_an_array_that_is_missing_differs(tmp_path):
    before, after = folder(tmp_path / "before"), folder(tmp_path / "after")
    np.savez(after / "model.npz", U=np.array([[1.0, -4.0], [0.0, 1e-9]]))
    assert worst(before, after).where == "model.npz arrays"


def test_a_ledger_differs_by_one_entry_or_by_its_length(tmp_path):
    before = folder(tmp_path / "before")
    found = worst(before, folder(tmp_path / "after", std=1.5 * (1 - 1e-8)))
    assert found.where.startswith("ledger.jsonl release") and found.relative == pytest.approx(1e-8)
    shorter = worst(before, folder(tmp_path / "shorter", releases=1))
    assert shorter.where == "ledger.jsonl releases" and shorter.relative == 0.5


@pytest.mark.parametrize(
    ("change", "where", "relative"),
    [
        ({"n_users": 10}, "n_users", 0.5),
        ({"metrics": {"mse": 0.2, "excess": 1e-9}}, "metrics mse", 0.2),
        ({"metrics": {"mse": 0.25, "excess": 2e-9}}, "metrics excess", 1e-6),
        ({"metrics": {"mse": 0.25}}, "metrics excess", math.inf),
        ({"privacy": RESULT["privacy"] | {"guarantee": "none"}}, "privacy guarantee", math.inf),
        ({"notes": []}, "number of notes", 1),
        ({"notes": ["1,500 users, 4 of them without rows."]}, "numbers in note 1", 0.25),
    ],
)
def test_a_result_differs(tmp_path, change, where, relative):
    before, after = folder(tmp_path / "before"), folder(tmp_path / "after", result=change)
    found = worst(before, after)
    assert found.where == f"result.json {where}" and found.relative == pytest.approx(relative)


def test_other_words_in_notes_are_told_but_are_no_difference(tmp_path):
    before = folder(tmp_path / "before")
    after = folder(
        tmp_path / "after", result={"notes": ["Of 1,500 users, 3, not more, have no rows."]}
    )
    assert reworded(before, after) and not reworded(before, before)
    same, text = verdict("fedrep", Run(before), Run(after))
    assert same and "other words" in text


@pytest.mark.parametrize(
    "change", [("0.25", "0.26"), ("2,gradient", "2,spectral"), ("mse", "risk")]
)
def test_rounds_differ(tmp_path, change):
    before = folder(tmp_path / "before")
    after = folder(tmp_path / "after", rounds=ROUNDS.replace(*change))
    assert worst(before, after).where.startswith("rounds.csv row")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_or_run_differs(tmp_path, name):
    before, after = folder(tmp_path / "before"), folder(tmp_path / "after")
    (after / name).unlink()
    found = worst(before, after)
    assert (found.where, found.relative, found.after) == (name, math.inf, "missing")
    same, text = verdict("fedrep", Run(before), Run(after, "exit code 2: no such key"))
    assert not same and "after failed: exit code 2: no such key" in text


def test_a_file_that_neither_run_has_differs_too(tmp_path):
    before, after = folder(tmp_path / "before"), folder(tmp_path / "after")
    for path in (before, after):
        (path / "model.npz").unlink()
    assert worst(before, after).relative == math.inf


def test_settings_can_have_two_spellings():
    assert spellings("algo=network/centaur|centaur eps=1 data.bounds={a:[0,1]}") == [
        ["algo=network/centaur", "eps=1", "data.bounds={a:[0,1]}"],
        ["algo=centaur", "eps=1", "data.bounds={a:[0,1]}"],
    ]


def test_every_algorithm_and_preset_has_a_case():
    named = {name.partition(",")[0] for name in CASES}
    algorithms = ROOT / "conf/algo"
    files = {str(p.relative_to(algorithms).with_suffix("")) for p in algorithms.rglob("*.yaml")}
    presets = {f"preset {p.stem}" for p in (ROOT / "conf/preset").glob("*.yaml")}
    assert named == files | presets - {"preset none"}


def test_cases_have_folders_of_their_own():
    folders = {"".join(c for c in name if c.isalnum()) for name in CASES}
    assert len(folders) == len(CASES)


def test_a_pattern_without_cases_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["a", "b", "--only", "no-such-case"])
    assert "no case has such a name" in capsys.readouterr().err
