"""What docs/algorithms.md shows, runs; what it asks one to read is as short as it says."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

PAGE = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
FILES = {
    match.group(1): text
    for text in re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE, re.S)
    if (match := re.match(r"# (mine/\S+)\n", text))
}
OWN = ["--config-dir", "mine", "algo=scaled"]


@pytest.fixture
def own_algorithm(tmp_path):
    """The files that the page tells one to write."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_files_were_found():
    names = ["mine/algo/scaled.yaml", "mine/scaled_client.py", "mine/scaled_strategy.py"]
    assert sorted(FILES) == names


def test_two_phases_are_charged_one_by_one_and_groups_in_parallel(command, own_algorithm):
    small = [*OWN, "eps=1", "data.n=200", "data.d=6", "--quiet"]
    for nodes in (1, 20):
        done = command(*small, f"runtime.nodes={nodes}", f"out={nodes}")
        assert done.returncode == 0, done.stderr
    lines = (own_algorithm / "1/ledger.jsonl").read_text().splitlines()
    releases = [entry for line in lines if "release" in (entry := json.loads(line))]
    assert [entry["name"] for entry in releases] == ["scale"] + 4 * ["gradient"]
    assert [entry["group"] for entry in releases] == [None, 0, 1, 2, 3]
    assert releases[0]["mu"] ** 2 / releases[1]["mu"] ** 2 == pytest.approx(0.2 / 0.8, rel=1e-6)
    results = [json.loads((own_algorithm / f"{n}/result.json").read_text()) for n in (1, 20)]
    assert results[0]["privacy"]["releases"] == 5
    assert 0.99 <= results[0]["privacy"]["epsilon"] <= 1
    assert results[0]["metrics"] == pytest.approx(results[1]["metrics"], rel=1e-8)
    model = np.load(own_algorithm / "1/model.npz")
    assert model["w"].shape == model["scale"].shape == (6,)


def test_scales_are_those_of_the_data_without_noise(command, own_algorithm):
    done = command(*OWN, "eps=inf", "data.n=500", "data.d=6", "out=run", "--quiet")
    assert done.returncode == 0, done.stderr
    assert np.load(own_algorithm / "run/model.npz")["scale"] == pytest.approx(1.0, rel=0.1)


def test_a_setting_out_of_range_is_refused_with_the_line_on_the_page(command, own_algorithm):
    done = command(*OWN, "algo.eta=-1")
    assert done.returncode == 2 and done.stderr.strip() in PAGE


def test_the_replay_finds_nothing_and_reaches_the_bounds(own_algorithm):
    line = [*OWN, "data.d=5", "data.m=6", "--tries", "60"]
    done = subprocess.run(
        [sys.executable, "-m", "privfed", "replay", *line],
        cwd=own_algorithm,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "Nothing was found" in done.stdout, done.stderr
    reached = {name: float(part) for name, part in re.findall(r"  (\w+) +(\d\.\d+) ", done.stdout)}
    assert reached["scale"] > 0.9 and reached["gradient"] > 0.9


def lines_between(path: str, *ends: tuple[str, str]) -> int:
    """Number of lines of a file from each first marker to before the second one."""
    text = (ROOT / path).read_text(encoding="utf-8")
    parts = [text[text.index(first) : text.index(last)] for first, last in ends]
    return sum(part.count("\n") for part in parts)


def test_what_one_has_to_read_is_less_than_500_lines():
    top, algorithm = '"""', "privfed/algorithm"
    counted = [
        lines_between(f"{algorithm}/phases.py", (top, "@dataclass(frozen=True)\nclass Step")),
        lines_between(
            f"{algorithm}/strategy.py",
            (top, "from __future__"),
            ("class PrivateStrategy", "    # The plan."),
        ),
        lines_between(
            f"{algorithm}/client.py",
            (top, "from __future__"),
            ("def task(", "def _marked"),
            ("class CohortClient", "    # What all clients share."),
        ),
        lines_between(
            "privfed/privacy/bounds.py", (top, "@dataclass(frozen=True)\nclass NonNegativeBound")
        ),
    ]
    rows = PAGE[PAGE.index("## What to read") : PAGE.index("## What to write")]
    told = [int(number) for number in re.findall(r"\| (\d+) \|$", rows, re.M)]
    assert sum(counted) < 500
    assert told == pytest.approx([*counted, sum(counted)], abs=15), counted
