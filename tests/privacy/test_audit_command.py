"""The audit as a user runs it: consistent with honest claims, not deceived by planted mistakes."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from bugs import BUGS

from privfed.audit import repetitions
from privfed.audit.canary import MINUS, PLUS, SILENT, CanaryStage, population
from privfed.commands.audit import main
from privfed.config.composition import compose
from privfed.config.option_groups import options
from privfed.experiment.wiring import Experiment
from privfed.privacy.noise import SeededNoise

FAST = ("rounds=9", "eps=4", "--quiet", "out=o")
NETWORKS = ("fedavg_ft", "ppsgd", "pmtl_ft", "network/centaur", "headmean")
SMALL = {
    "altmin": ("rounds=6",),
    "expmech": ("rounds=3", "algo.candidates=20"),
    "jlmargin": ("rounds=3", "algo.candidates=20", "algo.sketch=6"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def audited(folder):
    return json.loads((folder / "o/result.json").read_text())


def test_fedrep_is_consistent_and_the_bound_is_near_the_claim(folder, capfd):
    assert main(["algo=fedrep", "rounds=9", "eps=4", "out=o", "--repetitions", "2000"]) == 0
    result = audited(folder)
    audit, privacy = result["audit"], result["privacy"]
    assert 0.9 * 4 <= audit["epsilon_lower"] <= privacy["epsilon"] == audit["epsilon_claimed"] <= 4
    assert audit["consistent"] and audit["confidence"] == 0.999 and audit["repetitions"] == 2000
    assert {bound["method"] for bound in audit["bounds"]} == {"gaussian-fit", "clopper-pearson"}
    assert sum(bound["error_probability"] for bound in audit["bounds"]) == pytest.approx(0.001)
    assert audit["mu_lower"] < audit["mu"] < 1.1 * audit["mu_claimed"]
    assert {
        "algo",
        "runtime",
        "seed",
        "n_users",
        "rounds",
        "metrics",
        "privacy",
        "time",
        "versions",
    } <= set(result)
    assert len((folder / "o/ledger.jsonl").read_text().splitlines()) == privacy["releases"] == 10
    page = (folder / "o/audit.html").read_text()
    assert page.count("<svg") == 2 and "band" in page and not re.search(r"\bnan\b", page.lower())
    said = capfd.readouterr().out
    assert "consistent" in said and "s left" in said and "Clopper-Pearson" in said


@pytest.mark.parametrize(
    "mistake",
    [
        "halved noise",
        "no clip at the server",
        "psi instead of 2 psi",
        "uncharged initialiser",
        "noise used again in every round",
        "nodes weighted by reports",
        "divisor of replies",
    ],
)
def test_a_planted_mistake_is_found(mistake, folder, capfd):
    with BUGS[mistake].plant():
        assert main([*FAST, "--repetitions", "600", "--client-repetitions", "0"]) == 4
    assert "refuted" in capfd.readouterr().err
    audit = audited(folder)["audit"]
    assert not audit["consistent"]
    assert audit["epsilon_lower"] > audit["epsilon_claimed"] or audit["ledger"]
    assert "refuted" in (folder / "o/audit.html").read_text()


@pytest.mark.parametrize("mistake", ["halved noise", "divisor of replies"])
def test_a_planted_mistake_is_found_if_users_are_emptied(mistake):
    line = [*FAST, "neighbouring=zero-out", "--repetitions", "400", "--client-repetitions", "0"]
    with BUGS[mistake].plant():
        assert main(line) == 4


def test_a_selection_without_randomness_is_refuted(monkeypatch):
    monkeypatch.setattr(
        SeededNoise, "choice", lambda self, exponents, name, round: int(np.argmax(exponents))
    )
    line = [
        "algo=expmech",
        "rounds=2",
        "algo.candidates=10",
        "eps=0.5",
        "--quiet",
        "out=o",
        "--repetitions",
        "300",
    ]
    assert main(line) == 4


def test_one_selection_is_found_to_cost_most_of_what_it_claims(folder):
    line = [
        "algo=expmech",
        "rounds=1",
        "algo.candidates=20",
        "eps=2",
        "--quiet",
        "out=o",
        "--repetitions",
        "3000",
    ]
    assert main(line) == 0
    audit = audited(folder)["audit"]
    assert 0.6 < audit["epsilon_lower"] <= 2 and audit["delta"] == 0 and "mu" not in audit
    assert not any(
        bound["applies"] for bound in audit["bounds"] if bound["method"] == "gaussian-fit"
    )


@pytest.mark.parametrize(
    "algo",
    [
        name
        for name in options("algo")
        if name.split("/")[-1] not in ("standalone", "oracle") and "table/" not in name
    ],
)
@pytest.mark.parametrize("neighbouring", ["replace-one", "zero-out"])
def test_every_algorithm_is_consistent(algo, neighbouring, folder):
    line = [
        f"algo={algo}",
        *SMALL.get(algo, () if algo == "headmean" else ("rounds=4",)),
        "eps=4",
        f"neighbouring={neighbouring}",
        "out=o",
        "--quiet",
    ]
    # Networks are slow; one of them is enough.
    slow = algo in NETWORKS and (algo, neighbouring) != ("network/centaur", "replace-one")
    clients = "0" if slow else "24"
    assert main([*line, "--repetitions", "60", "--client-repetitions", clients]) == 0
    audit = audited(folder)["audit"]
    played = [bound for bound in audit["bounds"] if "real clients" in bound["statistic"]]
    assert len(played) == (0 if slow else 4)
    assert "mu" not in audit or 0.6 < audit["mu"] / audit["mu_claimed"] < 1.4


@pytest.mark.parametrize(
    "more",
    [
        ("privacy.clip=auto",),
        ("privacy.noise=discrete",),
        ("init=ppm",),
        ("algo=rgrad", "neighbouring=weak"),
    ],
    ids=" ".join,
)
def test_every_kind_of_release_is_consistent(more, folder):
    assert main(["rounds=3", "eps=4", "out=o", "--quiet", "--repetitions", "60", *more]) == 0
    assert 0.6 < audited(folder)["audit"]["mu"] / audited(folder)["audit"]["mu_claimed"] < 1.4


def test_processes_change_no_number(monkeypatch):
    cfg = compose(["data.n=4", "data.d=4", "rounds=2", "eps=4"])
    seen = []
    for cores in (1, 2):
        monkeypatch.setattr(repetitions, "worker_processes", lambda cores=cores: cores)
        seen.append(repetitions.observations(CanaryStage(Experiment(cfg, population(4)), 60)))
    assert {world: len(x) for world, x in seen[0].items()} == {PLUS: 60, MINUS: 60, SILENT: 60}
    for world, x in seen[0].items():
        np.testing.assert_array_equal(x, seen[1][world])
    assert len({float(x) for x in seen[0][PLUS][:, 0, 0]}) == 60, "repetitions must not share noise"


def test_one_run_is_consistent_and_refutes_a_mechanism_with_tiny_noise(folder, monkeypatch, capfd):
    line = ["--one-run", "--canaries", "200", "rounds=5", "eps=2", "out=o"]
    assert main(line) == 0
    audit = audited(folder)["audit"]
    assert (
        audit["canaries"] == 200
        and audit["repetitions"] == 1
        and audit["epsilon_lower"] <= audit["epsilon_claimed"]
    )
    assert "1 run with 200 canaries" in capfd.readouterr().out
    real = SeededNoise.normal
    monkeypatch.setattr(
        SeededNoise,
        "normal",
        lambda self, size, s, name, round: real(self, size, s // 50, name, round),
    )
    assert main([*line, "--quiet"]) == 4 and main([*line, "neighbouring=zero-out", "--quiet"]) == 4
    assert (folder / "o/previous-2/audit.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["eps=inf"], "eps=inf: nothing is claimed"),
        (["algo=standalone"], "algo=standalone: releases nothing"),
        (["algo=oracle"], "algo=oracle: claims no privacy"),
        (
            ["algo=rgrad", "algo.calibration=paper"],
            "holds under the Gaussian design assumption only",
        ),
        (["algo=nothing"], "known: "),
        (["algo.wrong=3"], "no setting"),
        (["rounds=-1"], "rounds=-1"),
        (["--repetitions", "3"], "--repetitions=3: must be"),
        (["--confidence", "2"], "--confidence=2.0: must be"),
        (["--canaries", "30"], "--canaries=30: is for --one-run"),
        (["--one-run", "data.n=30"], "set --canaries"),
        (["--one-run", "algo=expmech"], "releases choices"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_audited_is_said_in_one_line(arguments, words, capfd):
    assert main([*arguments, "--quiet"]) == 2
    error = capfd.readouterr().err
    assert words in error and error.count("\n") == 1
