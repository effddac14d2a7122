"""A ledger that was cut, edited or exchanged is noticed, and two processes never write one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

from privfed.commands import ledger, run
from privfed.foundation.errors import ConfigError
from privfed.privacy.bounds import NormBound
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Budget, Ledger, linked
from privfed.privacy.neighbouring import ZERO_OUT
from privfed.privacy.noise import SeededNoise

BUDGET = Budget(1.0, 1e-6)


@pytest.fixture(params=[True, False], ids=["dated", "without times"])
def written(tmp_path, request):
    """A ledger of four releases, closed; its path and its last link."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(BUDGET, dated=request.param)
    ledger.open(path)
    for t in range(4):
        NoiseGate(ledger, SeededNoise(0)).release(
            "x", np.zeros(3), bound=NormBound(1.0), mu=0.05, round=t
        )
    ledger.close()
    return path, ledger.chain


def test_a_whole_ledger_is_taken_as_it_is(written):
    path, chain = written
    again = Ledger(BUDGET)
    assert again.reopen(path, 4, chain) == [] and len(again.releases) == 4 and again.chain == chain
    again.close()
    with pytest.raises(ConfigError, match="another run"):
        Ledger(BUDGET).open(path)


def changed(lines, how):
    entry = json.loads(lines[1])
    return {
        "std": [lines[0], json.dumps(entry | {"std": 2 * entry["std"]}), *lines[2:]],
        "time": [lines[0], json.dumps(entry | {"time": "2001-01-01T00:00:00Z"}), *lines[2:]],
        "line left out": [lines[0], *lines[2:]],
        "lines swapped": [lines[1], lines[0], *lines[2:]],
        "line twice": [lines[0], lines[0], *lines[1:]],
        "no link": [
            lines[0],
            json.dumps({k: v for k, v in entry.items() if k != "chain"}),
            *lines[2:],
        ],
        "not JSON": [lines[0], "{", *lines[2:]],
        "a list": [lines[0], "[1, 2]", *lines[2:]],
    }[how]


@pytest.mark.parametrize(
    "how",
    [
        "std",
        "time",
        "line left out",
        "lines swapped",
        "line twice",
        "no link",
        "not JSON",
        "a list",
    ],
)
def test_a_changed_ledger_is_refused(written, how):
    path, chain = written
    path.write_text("\n".join(changed(path.read_text().splitlines(), how)) + "\n")
    ledger = Ledger(BUDGET)
    with pytest.raises(ConfigError, match=r"line \d"):
        ledger.reopen(path, 4, chain)
    ledger.close()


def test_a_ledger_cut_at_the_end_or_exchanged_is_refused(written, tmp_path):
    path, chain = written
    whole = path.read_text().splitlines(keepends=True)
    for content in ("".join(whole[:3]), "".join(whole)[:-10]):
        path.write_text(content)
        ledger = Ledger(BUDGET)
        with pytest.raises(ConfigError, match="cut or exchanged"):
            ledger.reopen(path, 4, chain)
        ledger.close()
    other = Ledger(BUDGET)
    other.open(tmp_path / "other.jsonl")
    for t in range(4):
        NoiseGate(other, SeededNoise(0)).release(
            "x", np.zeros(3), bound=NormBound(2.0), mu=0.05, round=t
        )
    other.close()
    with pytest.raises(ConfigError, match="cut or exchanged"):
        Ledger(BUDGET).reopen(tmp_path / "other.jsonl", 4, chain)


def test_another_budget_is_another_ledger(written):
    path, chain = written
    with pytest.raises(ConfigError, match="line 1 was changed"):
        Ledger(Budget(2.0, 1e-6)).reopen(path, 4, chain)


def rechained(path, budget, edit):
    """Rewrite every line with `edit`, and compute the chain anew, as a forger would."""
    link, lines = linked("", asdict(budget)), []
    for text in path.read_text().splitlines():
        entry = edit({key: value for key, value in json.loads(text).items() if key != "chain"})
        link = linked(link, entry)
        lines.append(json.dumps(entry | {"chain": link}) + "\n")
    path.write_text("".join(lines))


def without(entry, *names):
    return {key: value for key, value in entry.items() if key not in names}


def forged(entry, **changes):
    entry = entry | changes
    return entry | {"mu": entry["sensitivity"] / entry["std"]}


@pytest.mark.parametrize(
    "edit",
    [
        lambda entry: forged(entry, sensitivity=1.0),
        lambda entry: forged(entry, sensitivity=2.0),  # without what rounding moves
        lambda entry: forged(without(entry, "bound", "grid"), sensitivity=1.0),
        lambda entry: forged(entry, clip=1.01),
        lambda entry: forged(entry, sensitivity=-3.0),
        lambda entry: forged(entry, sensitivity=float("nan")),
        lambda entry: forged(entry, bound="none"),
        lambda entry: forged(entry, bound=[]),
        lambda entry: forged(entry, clip="1"),
        lambda entry: forged(entry, bound="assumed", sampling=0.5),
    ],
    ids=range(10),
)
def test_a_chained_line_whose_sensitivity_is_too_small_is_refused(written, edit):
    path, _ = written
    rechained(path, BUDGET, edit)
    with pytest.raises(ConfigError, match="line 1"):
        Ledger(BUDGET).verify(path)


def test_a_ledger_of_an_earlier_version_has_norm_bounds(written):
    path, _ = written
    rechained(path, BUDGET, lambda entry: without(entry, "bound", "grid"))
    ledger = Ledger(BUDGET)
    ledger.verify(path)
    assert {release.bound for release in ledger.releases} == {"norm"}
    assert ledger.epsilon_under(ZERO_OUT) == pytest.approx(ledger.epsilon / 2, rel=0.1)


def test_two_processes_do_not_write_one_ledger(written):
    path, chain = written
    ledger = Ledger(BUDGET)
    ledger.reopen(path, 4, chain)
    code = (
        "from privfed.privacy.ledger import *; Ledger(Budget(1.0, 1e-6))"
        f".reopen(__import__('pathlib').Path({str(path)!r}), 0)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert other.returncode != 0 and "another process" in other.stderr
    ledger.close()


def test_the_command_verifies_and_tells(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert run.main(["data.n=200", "data.d=6", "rounds=3", "out=run", "--quiet"]) == 0
    good = subprocess.run(
        [sys.executable, "-m", "privfed", "ledger", "run"], capture_output=True, text=True
    )
    assert (
        good.returncode == 0
        and "no line was changed" in good.stdout
        and "epsilon 1 at delta 1e-06" in good.stdout
    )
    result = tmp_path / "run/result.json"
    result.write_text(result.read_text().replace('"epsilon": 0.99', '"epsilon": 0.49', 1))
    capfd.readouterr()
    assert ledger.main(["run"]) == 2 and "but the ledger says" in capfd.readouterr().err
    lines = tmp_path / "run/ledger.jsonl"
    lines.write_text(lines.read_text().replace('"round": 2', '"round": 7'))
    assert ledger.main(["run"]) == 2
    bad = capfd.readouterr().err
    assert "line 3 was changed" in bad and "Traceback" not in bad


def test_the_command_notices_a_cut_even_where_the_total_stays(tmp_path, monkeypatch, capfd):
    """Rounds on disjoint groups of users cost what one of them costs."""
    monkeypatch.chdir(tmp_path)
    small = ["algo=altmin", "data.n=200", "data.d=6", "rounds=3", "out=run", "--quiet"]
    assert run.main(small) == 0
    lines = tmp_path / "run/ledger.jsonl"
    lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:3]))
    assert ledger.main(["run"]) == 2 and "it was cut" in capfd.readouterr().err
