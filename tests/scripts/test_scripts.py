"""Figures and benchmarks: what they ask for exists, and they can write what they find."""

from __future__ import annotations

import ast
import csv
import zlib

import numpy as np
import pytest
from conftest import ROOT
from figures import centaur, common, few_users, jl, networks, pmpr, rates, rgrad
from support.processes import printed_by

from privfed.config.composition import compose

MODULES = (pmpr, rates, few_users, centaur, networks, jl, rgrad)
FIGURES = {name: (module, figure) for module in MODULES for name, figure in module.FIGURES.items()}
METRICS = (
    "mse",
    "mse_standalone",
    "mse_oracle",
    "agreed",
    "spectral",
    "nuclear",
    "excess",
    "dist",
    "start",
    "frobenius",
    "risk",
    "risk_random",
    "risk_standalone",
    "risk_oracle",
    "distortion",
)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_and_written_from_what_was_measured(name, tmp_path, monkeypatch):
    module, figure = FIGURES[name]
    asked = []

    def measured(cases, seeds, *_):
        asked.extend(cases.values())
        numbers = range(seeds) if isinstance(seeds, int) else seeds
        return {
            key: [
                {
                    m: float(
                        np.random.default_rng(zlib.crc32(repr((key, m, s)).encode())).uniform(
                            0.01, 0.9
                        )
                    )
                    for m in METRICS
                }
                for s in numbers
            ]
            for key in cases
        }

    monkeypatch.setattr(module, "runs", measured)
    if name == "few-users":  # a hundred predictions of half a second
        monkeypatch.setattr(module, "predicted", lambda eps, n: 1.0 / (eps * n))
    monkeypatch.setattr(common, "FOLDER", tmp_path / "figures")
    monkeypatch.setattr(common, "DOCS", tmp_path)
    if name == "centaur-rate":  # a row per round of single runs
        monkeypatch.setattr(module, "distances", lambda overrides: [0.9**t for t in range(40)])
    if name == "pmpr-newcomer":
        monkeypatch.setattr(
            module, "newcomers", lambda how, seed, sizes, users: (0.1, {m: 1 / m for m in sizes})
        )
    rows, picture, paragraph = figure.make(2)
    common.write(name, figure, rows, picture, paragraph, seconds=1.0)
    common.assemble([name, "not made yet"])
    with (tmp_path / f"figures/{name}.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows) >= len(asked)
    assert len(rows) == len(asked) or name in ("centaur-rate", "pmpr-newcomer")
    page = (tmp_path / "results.md").read_text()
    assert figure.title in page and f"figures/{name}.png" in page and f"reproduce.py {name}" in page
    assert (tmp_path / f"figures/{name}.png").stat().st_size > 10_000
    for overrides in asked[:: max(1, len(asked) // 6)]:
        compose(overrides)


def test_all_that_docs_show_can_be_made_again():
    shown = {path.stem for path in (ROOT / "docs/figures").glob("*.png")}
    assert shown - {"benchmarks", "scaling"} == set(
        FIGURES
    )  # which benchmarks/bench.py and benchmarks/bench_scaling.py make
    assert all((ROOT / f"docs/figures/{name}.csv").exists() for name in FIGURES)


def test_runs_spread_over_processes_keep_their_order():
    small = ("data.n=100", "data.d=5", "rounds=2")
    found = common.runs({"a": small, "b": (*small, "eps=inf")}, 2)
    assert [len(found[key]) for key in ("a", "b")] == [2, 2]
    again = common.one([*small, "eps=inf", "seed=1"])
    assert found["b"][1]["mse"] == pytest.approx(again["mse"], rel=1e-9)


@pytest.mark.slow
def test_benchmarks_of_altmin_and_rgrad_print_ratios():
    from bench_linear import alternating_minimisation, low_rank_step

    for rows in (alternating_minimisation(1), low_rank_step(1)):
        assert all(row["ratio"] > 0 for row in rows)


@pytest.mark.slow
def test_the_benchmark_of_runtimes_prints_ratios_and_one_message_a_node_and_round():
    """In a process of its own, as it starts a Ray."""
    code = "from bench_runtimes import processes; print(processes(400, 3, 1))"
    base, alone, together = ast.literal_eval(printed_by(code))
    assert [row["messages"] for row in (base, alone, together)] == [0, 1, 1]
    assert together["of_one_process"] == pytest.approx(together["seconds"] / base["seconds"])
    assert together["of_one_node"] == pytest.approx(together["seconds"] / alone["seconds"])
