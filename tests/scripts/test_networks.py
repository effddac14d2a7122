"""CENTAUR's table, figure and benchmark: runs are kept, what is missing is shown."""

from __future__ import annotations

import csv
import json

import bench_networks as bench
import numpy as np
import pytest
import reproduce
from figures import common, kept, networks

from privfed.config.composition import compose
from privfed.config.instantiation import algorithm_settings, filled
from privfed.experiment.wiring import Experiment

PRESETS = ("emnist", "fashion", "cifar10", "cifar100")
TINY = (
    "data=patterns",
    "data.n=12",
    "data.size=4",
    "data.m=6",
    "data.t=3",
    "model=mlp",
    "model.module.hidden=[4]",
    "rounds=1",
    "runtime.threads=1",
)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The runs that were made, all of them tiny, in a folder of documents of their own."""
    monkeypatch.setattr(common, "FOLDER", tmp_path / "figures")
    monkeypatch.setattr(common, "DOCS", tmp_path)
    real, asked = kept.one, []

    def one(overrides):
        asked.append(list(overrides))
        mine = [o for o in overrides if o.partition("=")[0] not in ("rounds", "data.n")]
        more = ["algo.epochs=1"] if "algo=network/standalone" in overrides else []
        return real([*mine, *TINY, *more])

    monkeypatch.setattr(kept, "one", one)
    return asked


def cells(folder, name="centaur-table"):
    with (folder / f"figures/{name}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("algo", networks.METHODS[:5])
def test_presets_of_the_paper_take_every_method(preset, algo):
    cfg = compose([f"preset=centaur-{preset}", f"algo={networks.ALGORITHMS.get(algo, algo)}"])
    wanted = {"emnist": "emnist-balanced", "fashion": "fashion_mnist"}.get(preset, preset)
    assert (cfg.algo.name, cfg.algo.kind, cfg.data.name, cfg.delta) == (
        algo,
        "network",
        wanted,
        1e-5,
    )
    module, settings = cfg.model.module, algorithm_settings(cfg)
    strategy, client = (filled(cfg.algo[side], settings) for side in ("strategy", "client"))
    batch = 10 if algo == "standalone" else 100
    assert (client["momentum"], client["weight_decay"], client["batch"]) == (0.9, 1e-4, batch)
    if preset in ("emnist", "fashion"):
        assert module._target_.endswith("mlp") and list(module.hidden) == [256, 128, 16]
    else:
        assert list(module.channels) == [64, 64] and list(module.hidden) == [
            384 if preset == "cifar10" else 128,
            32,
        ]
    if algo == "standalone":
        return
    local = 2 if preset in ("emnist", "fashion") else 1
    clip, rounds = {"cifar10": (0.01, 200), "cifar100": (0.02, 100)}.get(preset, (0.25, 40))
    assert (strategy["clip"], strategy["rounds"]) == (clip, rounds)
    assert (strategy["eta"], strategy["sampling"]) == (1, 1)
    assert (strategy["server_momentum"], strategy["average"]) == (0, 0)
    assert client["local_epochs"] == local
    if algo == "ppsgd":
        assert (client["local_step"], client["ratio"]) == (0.1, 0.1)
    else:
        augment = "final" if preset.startswith("cifar") else "never"
        assert (client["lr"], client["head_lr"]) == (0.01, 0.01)
        assert (client["head_epochs"], client["augment"]) == (15, augment)
        assert algo != "pmtl_ft" or client["pull"] == 1


def test_a_preset_is_centaur_unless_told_otherwise_and_yields_to_the_command_line():
    cfg = compose(
        [
            "preset=centaur-cifar100",
            "data=patterns",
            "algo.clip=3",
            "rounds=7",
            "model.module.hidden=[9]",
        ]
    )
    strategy = filled(cfg.algo.strategy, algorithm_settings(cfg))
    assert (cfg.algo.name, cfg.algo.kind) == ("centaur", "network")
    assert (strategy["clip"], strategy["rounds"]) == (3, 7)
    assert cfg.data._target_.endswith("Patterns") and list(cfg.model.module.hidden) == [9]


def test_runs_are_kept_and_missing_cells_are_shown(asked, tmp_path, capsys):
    chosen = ["--data", "fashion", "--seeds", "2"]
    reproduce.main(["centaur-table", "--method", "centaur", "standalone", *chosen])
    assert len(asked) == 2 * (2 + 1) * 2 + 1, (
        "sizes x (relations of centaur, and users alone once) x seeds, and one bare run"
    )
    assert "12/12 runs, 0 s left" in capsys.readouterr().out
    lines = [
        json.loads(line)
        for line in (tmp_path / "figures/centaur-runs.jsonl").read_text().splitlines()
    ]
    assert [line["run"] for line in lines] == asked
    for line in lines:
        assert 0 <= line["accuracy"] == 1 - line["risk"] and line["seconds"] > 0
        assert (line["validation_accuracy"] is None) == ("algo=network/standalone" in line["run"])
    reproduce.main(["centaur-table", "--method", "centaur", *chosen])
    assert len(asked) == 13, "nothing is repeated"
    known = {(row["data"], row["method"]) for row in cells(tmp_path) if row["seeds"] != "0"}
    assert known == {("fashion", "centaur"), ("fashion", "standalone")}
    page = (tmp_path / "results.md").read_text()
    first = next(
        line
        for line in page.splitlines()
        if line.startswith("| Fashion-MNIST, n=1000 | replace-one |")
    )
    alone, *missing, centaur = first.split(" | ")[2:7]
    assert missing == ["-", "-", "-"] and "(" in alone and "(" in centaur
    assert "| CIFAR-10, n=500 | zero-out | - | - | - | - | - | - | - |" in page


def test_the_figure_uses_the_runs_of_the_table(asked, tmp_path):
    reproduce.main(["centaur-table", "--data", "fashion", "--seeds", "1", "--method", "fedavg_ft"])
    before = len(asked)
    reproduce.main(["centaur-figure", "--seeds", "1", "--method", "fedavg_ft"])
    eps = [o for run in asked[before:] for o in run if o.startswith("eps=")]
    assert eps == [f"eps={eps}" for eps in networks.EPSILONS if eps != "1"]
    rows = cells(tmp_path, "centaur-figure")
    assert {row["method"] for row in rows if row["accuracy"]} == {"fedavg_ft"} and len(rows) == 19
    assert (tmp_path / "figures/centaur-figure.png").stat().st_size > 10_000


def test_assembling_runs_nothing(asked, tmp_path):
    for name in networks.FIGURES:
        reproduce.main([name, "--assemble"])
        assert not any(float(row["seeds"]) for row in cells(tmp_path, name))
    run = [
        "preset=centaur-cifar10",
        "algo=ppsgd",
        "data.n=500",
        "eps=1",
        "neighbouring=replace-one",
    ]
    short = ["model.precision=bfloat16", "rounds=20"]
    kept.keep(
        [*run, *short, "seed=0"],
        {"risk": 0.25, "accuracy": 0.75, "validation_accuracy": 0.5, "seconds": 7200},
    )
    for seed in (0, 1, 2):
        kept.keep(
            [*run, f"seed={seed}"], {"risk": 0.1 * seed, "accuracy": 1 - 0.1 * seed, "seconds": 1}
        )
    reproduce.main(["centaur-table", "--assemble"])
    page = (tmp_path / "results.md").read_text()
    assert (
        "| CIFAR-10, n=500 | replace-one | - | - | - | 75.0 | - | - | - |" in page
        and "20 rounds" in page
    )
    assert "took 2.0 hours" in page and not asked
    reproduce.main(["centaur-table", "--assemble", "--full"])
    assert "| - | - | - | 90.0 (10.0) | - |" in (tmp_path / "results.md").read_text()


def test_all_cells_can_be_composed_and_full_runs_are_the_presets():
    for full, data in ((False, "fashion"), (False, "cifar10"), (True, "cifar10")):
        for case in networks.cases(data):
            cfg = compose(case.overrides(networks.Choice(full=full)))
            assert cfg.algo.name == case.method and str(cfg.data.n) == case.n
            if case.data == "cifar10" and case.method not in ("standalone", "headmean"):
                assert (cfg.rounds, cfg.model.precision) == (
                    (200, "float32") if full else (20, "bfloat16")
                )


@pytest.mark.slow
def test_several_runs_at_once_give_the_same_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "FOLDER", tmp_path)
    runs = [
        ["algo=network/centaur", *TINY[:-1], "algo.head_epochs=2", f"seed={seed}"]
        for seed in (0, 1)
    ]
    found = {tuple(run): result["risk"] for run, result in kept.results(runs, jobs=2)}
    assert found == {tuple(run): result["risk"] for run, result in kept.results(runs, jobs=1)}


@pytest.mark.parametrize(
    "sizes",
    [
        ("model=mlp", "data.size=6", "model.module.hidden=[8,5]"),
        ("model=lenet", "data.size=16", "data.channels=3"),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_the_loop_of_the_benchmark_does_what_a_round_does(sizes, cached):
    small = (
        ("model.module.channels=[4,4]", "model.module.hidden=[6,5]")
        if "model=lenet" in sizes
        else ()
    )
    experiment = Experiment(
        compose([*bench.SETTING, *sizes, *small, "data.n=5", "data.m=7", "runtime.nodes=1"])
    )
    strategy, client = experiment.strategy, experiment.factory(range(5))
    told = strategy.announcement(strategy.plan[0])
    ours, _, _ = client.fit(strategy.start(), told.to_config())
    network, users = bench.reference(experiment, 5)
    work = bench.partial(bench.loop, network, experiment.data.shape, users, cached)
    np.testing.assert_allclose(bench.side_by_side(work, 5), ours[0], rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_the_benchmark_of_networks_prints_ratios(monkeypatch):
    monkeypatch.setattr(bench, "THREADS", 1)  # more would wait for each other where other tests run
    monkeypatch.setattr(bench, "MLP", ("model=mlp", "data.size=6", "data.m=5"))
    monkeypatch.setattr(
        bench, "LENET", ("model=lenet", "data.size=16", "data.m=5", "model.module.channels=[4,4]")
    )
    rows = bench.against_torch(1, 12, 6, (4, 2))
    assert len(rows) == 3 and all(
        row["ratio"] == pytest.approx(row["users_per_s"] / row["loop"]) for row in rows
    )
    assert all(0 < row["peak_mb"] < 3000 for row in bench.memory(12, 6))
