"""What holds for every algorithm there is a config for."""

from __future__ import annotations

import json

import numpy as np
import pytest

from privfed.commands.run import main
from privfed.config.composition import compose
from privfed.config.option_groups import options
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import ConfigError

SMALL = {
    "expmech": ("data.n=200", "data.d=6", "rounds=3", "algo.candidates=20"),
    "jlmargin": (
        "data.n=200",
        "data.d=12",
        "data.m=8",
        "rounds=3",
        "algo.candidates=20",
        "algo.sketch=6",
    ),
    "rgrad": ("data.n=200", "data.d1=5", "data.d2=4", "rounds=3"),
    "oracle": ("data.n=200", "data.d=6"),
    "standalone": ("data.n=200", "data.d=6"),
    "headboost": ("data.n=60", "data.m=6", "model.pictures=300", "model.k=20"),
    "headmean": ("data.n=60", "data.m=6", "model.pictures=300", "model.k=20"),
    "features/standalone": ("data.n=60", "data.m=6", "model.pictures=300", "model.k=20"),
}
LINEAR = ("data.n=200", "data.d=6", "rounds=3")
IMAGES = ("data.n=60", "data.m=6", "data.size=6", "model.module.hidden=[8,5]")
NETWORKS = {
    name: (f"algo={name}", *IMAGES, "rounds=3") for name in ("fedavg_ft", "ppsgd", "pmtl_ft")
} | {
    "centaur, network": ("algo=network/centaur", "model=mlp", *IMAGES, "rounds=3"),
    "standalone, network": ("algo=network/standalone", "model=mlp", *IMAGES, "algo.epochs=3"),
    "centaur, LeNet": (
        "algo=network/centaur",
        "model=lenet",
        "data.n=20",
        "data.m=6",
        "data.size=16",
        "model.module.channels=[2,3]",
        "model.module.hidden=[5]",
        "rounds=3",
    ),
}
OTHERS = {name for name in options("algo") if not name.startswith(("network/", "table/"))}
"""Networks have settings of their own below; tables have tests of their own."""
ALGORITHMS = sorted({*OTHERS, *NETWORKS})


def settings(algo):
    return NETWORKS.get(algo) or (f"algo={algo}", *SMALL.get(algo, LINEAR))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_files_ledger_and_words_agree(algo, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["eps=3", "out=o", *settings(algo)]) == 0
    result = json.loads((tmp_path / "o/result.json").read_text())
    ledger = [json.loads(line) for line in (tmp_path / "o/ledger.jsonl").read_text().splitlines()]
    privacy = result["privacy"]
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
        "versions",
    } <= set(result)
    assert (
        len(ledger) == privacy["releases"]
        and result["algo"] == algo.partition(",")[0].rpartition("/")[2]
    )
    assert (
        all(isinstance(value, float) for value in result["metrics"].values()) and result["metrics"]
    )
    if ledger:
        assert (
            ledger[-1]["epsilon_spent"] == privacy["epsilon"]
            and 0.99 * 3 <= privacy["epsilon"] <= 3
        )
        assert privacy["guarantee"] == "simulation" and privacy["would_be"] == "worst-case"
        pure = {line["mechanism"] for line in ledger} == {"exponential"}
        assert pure == (algo in ("expmech", "jlmargin")) == (privacy["delta"] == 0)
    page = (tmp_path / "o/report.html").read_text()
    assert "nan" not in page.lower() and page.count("<svg") == page.count("</svg>")
    said = capfd.readouterr().out
    words = (
        "differentially private"
        if ledger
        else "No privacy"
        if algo == "oracle"
        else "Nothing was released"
    )
    assert words in page and words.split()[0] in said


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_same_numbers_for_one_and_seven_nodes(algo):
    models = [
        Experiment(compose([f"runtime.nodes={nodes}", *settings(algo)])).run().model
        for nodes in (1, 7)
    ]
    assert models[0].keys() == models[1].keys()
    rtol, atol = (
        (1e-4, 1e-5) if algo in NETWORKS else (1e-8, 1e-9)
    )  # networks are computed in single precision
    for name, array in models[0].items():
        np.testing.assert_allclose(models[1][name], array, rtol=rtol, atol=atol)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_cost_is_never_below_what_the_ledger_says_under_either_relation(algo):
    spent = [
        Experiment(compose([f"neighbouring={relation}", *settings(algo)])).run().result["privacy"]
        for relation in ("replace-one", "zero-out")
    ]
    strict, loose = (privacy["epsilon_by_neighbouring"] for privacy in spent)
    if spent[0].get("would_be") == "worst-case" and spent[0]["releases"]:
        assert strict["replace-one"] == pytest.approx(1, rel=0.01) and loose[
            "zero-out"
        ] == pytest.approx(1, rel=0.01)
        assert strict["zero-out"] <= 0.51 and loose["replace-one"] >= 1.98


@pytest.mark.parametrize("preset", options("preset"))
def test_presets_can_be_planned(preset):
    """Those with downloaded images on patterns of the same size."""
    known = {
        "centaur-cifar10": (3, 32, 10),
        "centaur-cifar100": (3, 32, 100),
        "centaur-emnist": (1, 28, 47),
        "centaur-fashion": (1, 28, 10),
    }
    keys = ("data.channels", "data.size", "data.classes")
    images = (
        [f"{key}={value}" for key, value in zip(keys, known[preset], strict=True)]
        if preset in known
        else []
    )
    assert Experiment(
        compose([f"preset={preset}", *(["data=patterns"] if images else []), *images])
    ).strategy.plan


def test_a_run_that_users_alone_solve_without_any_error_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    easy = (
        "data.d=4",
        "data.n=60",
        "data.strength=1",
        "data.margin=0.9",
        "algo.sketch=4",
        "rounds=2",
        "algo.candidates=20",
    )
    assert main(["algo=jlmargin", "eps=100", "out=o", "--quiet", *easy]) == 0
    result = json.loads((tmp_path / "o/result.json").read_text())
    assert result["metrics"]["risk_standalone"] == 0 and (tmp_path / "o/report.html").exists()


RELEASING = [algo for algo in ALGORITHMS if "standalone" not in algo and "LeNet" not in algo]


@pytest.mark.parametrize("algo", RELEASING)
def test_every_gaussian_algorithm_runs_with_nobody_trusted(algo):
    """No strategy and no client knows of masks; selections are refused before anything is sent."""
    masked = ["eps=3", *settings(algo), "privacy.trust=nobody", "runtime.nodes=4"]
    if algo in ("expmech", "jlmargin"):
        with pytest.raises(ConfigError, match="a selection needs a server"):
            Experiment(compose(masked))
        return
    made = Experiment(compose(masked))
    made.run()
    assert all(release.noise == "sum-of-rounded-gaussians" for release in made.ledger.releases)
    assert made.strategy.done == len(made.strategy.plan) and made.ledger.epsilon <= 3
