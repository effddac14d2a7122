"""Selections follow the exponential mechanism, bound each user's weight, and cost what they say."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from scipy.stats import chisquare

from privfed.algorithm.candidate_covers import random_orthonormal
from privfed.algorithm.replies import totals_of
from privfed.config.composition import compose
from privfed.data.cohort import Cohort
from privfed.experiment.wiring import Experiment
from privfed.privacy.bounds import NormBound
from privfed.privacy.clipping import SCORE, clamp
from privfed.privacy.gate import NoiseGate
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.noise import SeededNoise
from privfed.runtimes.inprocess import LocalProxy

SMALL = ("data.n=60", "data.m=6", "data.d=6", "algo.candidates=40", "rounds=2")
VARIANTS = {
    "relative": ("algo=expmech",),
    "absolute": ("algo=expmech", "algo.targets=absolute"),
    "s0": ("algo=expmech", "algo.train=s0"),
    "margin": ("algo=jlmargin", "algo.sketch=4"),
}
KINDS = (
    "typical",
    "fits",
    "huge",
    "overflow",
    "zero",
    "tiny",
    "nan",
    "inf",
    "largest",
    "other labels",
)


def made(*overrides):
    return Experiment(compose([*SMALL, *overrides]))


def one_user(rng, kind, labels, m=6, d=6):
    """A user's data: typical, explained perfectly by the first candidate, or hostile numbers."""
    X, y = rng.standard_normal((m, d)), rng.standard_normal(m)
    if labels:
        X, y = X / np.linalg.norm(X, axis=1, keepdims=True), np.where(y < 0, -1.0, 1.0)
    if kind == "fits":
        X[:, 1:] = 0.0
        y = np.sign(X[:, 0]) if labels else X[:, 0]
    elif kind == "other labels":
        y = 100.0 * rng.standard_normal(m)
    elif kind == "zero":
        X, y = np.zeros((m, d)), np.zeros(m)
    elif kind == "tiny":
        X = X * 1e-200
    elif kind in ("huge", "overflow"):
        X, y = (
            X * {"huge": 1e8, "overflow": 1e200}[kind],
            y if labels else y * {"huge": 1e8, "overflow": 1e200}[kind],
        )
    elif kind in ("nan", "inf", "largest"):
        X[1, 2] = {"nan": np.nan, "inf": -np.inf, "largest": 1.7e308}[kind]
    return X, y


def scores(experiment, X, y):
    """The sums that a cohort would send for the strategy's candidates."""
    strategy = experiment.strategy
    step = strategy.plan[0]
    client = experiment.factory.serving(Cohort(np.arange(len(X)), X, y))
    return client.fit(strategy.candidates(), strategy.announcement(step).to_config())[0][0]


@pytest.mark.parametrize("neighbouring", ["replace-one", "zero-out"])
def test_selection_frequencies_are_the_exact_ones(neighbouring):
    """500 candidates, 20000 draws through the gate, each with a ledger of its own."""
    rng = np.random.default_rng(0)
    total = np.floor(SCORE * rng.random(500) * 12)
    epsilon = 0.8
    factor = {"replace-one": 2, "zero-out": 1}[neighbouring]
    logits = epsilon / factor * total / SCORE
    exact = np.exp(logits - logits.max())
    exact /= exact.sum()
    counts = np.zeros(500)
    for seed in range(20_000):
        gate = NoiseGate(Ledger(Budget(epsilon, 0.0, neighbouring)), SeededNoise(seed))
        counts[
            gate.select(
                "select", total, bound=NormBound(SCORE), epsilon=epsilon * (1 - 1e-12), round=1
            )
        ] += 1
    rare = exact * 20_000 < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(exact[~rare], exact[rare].sum()) * 20_000
    keep = expected > 0
    assert chisquare(observed[keep], expected[keep]).pvalue > 1e-3
    assert chisquare(observed[keep], np.full(keep.sum(), 20_000 / keep.sum())).pvalue < 1e-9, (
        "uniform would do as well"
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_whole_numbers_in_range_whatever_the_data(variant, kind):
    experiment = made(*VARIANTS[variant])
    rng = np.random.default_rng(2)
    for _ in range(5):
        X, y = one_user(rng, kind, variant == "margin")
        found = scores(experiment, X[None], y[None])
        assert np.all((found >= 0) & (found <= SCORE) & (found == np.floor(found)))


def test_replies_out_of_range_are_clamped_to_what_a_nodes_users_can_send():
    strategy = made("algo=expmech", "runtime.nodes=3").strategy
    C = len(strategy.pool)
    lies = [np.full(C, 1e300), np.full(C, -5.0), np.linspace(0, 20.5, C)]
    results = []
    for i, lie in enumerate(lies):
        answer = FitRes(
            Status(Code.OK, ""),
            ndarrays_to_parameters([lie]),
            num_examples=10**6,
            metrics={"step": 1},
        )
        results.append((LocalProxy(str(i), None), answer))
    totals, answered = totals_of(results, [((C,), SCORE)], strategy.federation.registered, clamp, 1)
    np.testing.assert_array_equal(totals[0], 20 * SCORE + np.floor(lies[2]))
    assert answered == ["0", "1", "2"]
    assert clamp(np.array([3.7]), 2.0) == 2.0


@pytest.mark.parametrize("neighbouring", ["replace-one", "zero-out"])
@pytest.mark.parametrize("rounds", [1, 7])
@pytest.mark.parametrize("algo", ["expmech", "jlmargin"])
def test_the_whole_budget_is_spent_purely(algo, rounds, neighbouring):
    result = (
        made(f"algo={algo}", f"rounds={rounds}", "eps=0.7", f"neighbouring={neighbouring}")
        .run()
        .result
    )
    privacy = result["privacy"]
    assert (
        privacy["delta"] == 0.0
        and privacy["would_be"] == "worst-case"
        and privacy["releases"] == rounds
    )
    assert 0.7 * (1 - 1e-9) <= privacy["epsilon"] <= 0.7
    other = {"replace-one": "zero-out", "zero-out": "replace-one"}[neighbouring]
    factor = 0.5 if neighbouring == "replace-one" else 2.0
    assert privacy["epsilon_by_neighbouring"][other] == pytest.approx(0.7 * factor)


@pytest.mark.parametrize("algo", ["expmech", "jlmargin"])
def test_without_privacy_the_best_candidate_is_taken(algo):
    experiment = made(f"algo={algo}", "eps=inf", "rounds=1")
    best = scores(
        experiment, *(getattr(experiment.data.cohort(0, 60), name) for name in "Xy")
    ).argmax()
    choice = experiment.strategy.published(experiment.strategy.pool[best])[0]
    outcome = experiment.run()
    np.testing.assert_array_equal(outcome.model["U"], choice)
    assert outcome.result["privacy"]["guarantee"] == "none" and math.isinf(
        outcome.result["privacy"]["epsilon"]
    )


@pytest.mark.parametrize("algo", ["expmech", "jlmargin"])
def test_candidates_depend_on_nothing_but_seed_and_choice(algo):
    a, b, c = (made(f"algo={algo}", *more) for more in ((), ("data.n=33",), ("seed=1",)))
    np.testing.assert_array_equal(a.strategy.pool, b.strategy.pool)
    assert not np.allclose(a.strategy.pool, c.strategy.pool)
    for experiment in (a, b):
        experiment.strategy.choose(1, 5)
    np.testing.assert_array_equal(a.strategy.pool, b.strategy.pool)
    assert (
        len(a.strategy.pool) == 40
        and len(random_orthonormal(np.random.default_rng(0), 3, 4, 2)) == 3
    )


@pytest.mark.parametrize(
    "more", [("algo=expmech",), ("algo=jlmargin",), ("algo=expmech", "algo.targets=absolute")]
)
def test_same_numbers_however_users_are_spread(more):
    a, b = (
        made(*more, "data.n=300", f"runtime.nodes={nodes}", "rounds=4", "eps=8").run()
        for nodes in (1, 7)
    )
    np.testing.assert_allclose(a.model["U"], b.model["U"], rtol=1e-8, atol=1e-10)
    assert a.result["metrics"] == pytest.approx(b.result["metrics"], rel=1e-8)


def test_several_selections_find_more_than_one():
    """On d=20, with equal budgets, one selection among random candidates fails, twenty do not."""
    settings = (
        "algo=expmech",
        "data.d=20",
        "data.n=4000",
        "data.m=10",
        "eps=8",
        "algo.candidates=100",
    )
    once, often = (
        made(*settings, f"rounds={rounds}").run().result["metrics"]["mse"] for rounds in (1, 20)
    )
    assert often < 0.5 * once


def test_delta_zero_on_the_command_line(tmp_path, monkeypatch, capfd):
    from privfed.commands.run import main

    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "algo=jlmargin", "delta=0", "out=o"]) == 0
    assert "together be 1-differentially private" in " ".join(capfd.readouterr().out.split())
    result = json.loads((tmp_path / "o/result.json").read_text())
    assert result["privacy"]["delta"] == 0 and {"risk", "risk_random", "distortion"} <= set(
        result["metrics"]
    )
    assert (
        json.loads((tmp_path / "o/ledger.jsonl").read_text().splitlines()[0])["mechanism"]
        == "exponential"
    )
