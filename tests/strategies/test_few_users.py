"""Few users: the rehearsal predicts runs, and the filter follows the truth."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from privfed.commands.run import main
from privfed.foundation.linalg import retraction, svec
from privfed.privacy.accounting import gaussian_mu
from privfed.privacy.clipping import clip_outer_products
from strategies.rehearsal import Filter, columns, forecast, rehearsal_of
from strategies.spread_filter import SpreadFilter

FEW = ("init=cascade",)
ALL_SIZES = (*FEW, "data.d=50", "data.m=10", "eps=1")
SMALL = (*FEW, "data.d=20", "data.m=8", "eps=4")


def test_cascades_end_with_k_columns():
    for d, k in ((50, 2), (5, 2), (3, 3), (100, 10), (4, 1)):
        kept = columns(d, k)
        assert kept[0] == d and kept[-1] == k
        assert all(a > b for a, b in pairwise(kept))


def test_rehearsed_signals_have_the_order_that_theory_gives():
    scene = rehearsal_of(50, 2, 10, 0.01)
    assert scene.signal(0.1) ** 2 == pytest.approx((10 - 2) / (2 * (50 - 2)), rel=0.15)
    assert scene.signal(1e-6) < 0.2 * scene.signal(0.1), "label noise hides what is below it"
    assert scene.error(1e-8) == pytest.approx(1e-4 * (1 + 2 / (10 - 2 - 1)), rel=0.1)
    gap = (10 / 50 - (1 - 10 / 50) / 49) / 2
    assert scene.cascade(1000, (50, 2), np.array([1e-3])).gaps[0] == pytest.approx(gap, rel=0.15)


def test_more_users_and_more_budget_are_predicted_to_help():
    def error(n, eps):
        return forecast(n, 30, 2, 8, 0.01, gaussian_mu(eps, 1e-6), "replace-one").error

    assert error(300, 1) > error(800, 1) > error(3000, 1)
    assert error(800, 0.5) > error(800, 1) > error(800, 2)


@pytest.mark.parametrize(
    ("seeds", "sizes"), [(9, (*SMALL, "data.n=150")), (3, (*ALL_SIZES, "data.n=500"))]
)
def test_runs_end_where_they_were_predicted_to(experiment, sizes, seeds):
    errors = []
    for seed in range(seeds):
        made = experiment(*sizes, f"seed={seed}")
        made.watches = False
        errors.append(made.run().result["metrics"]["mse"])
    predicted = made.strategy.predicted.error
    assert predicted < 0.5 * made.strategy.expected.alone
    assert 0.5 < np.median(errors) / predicted < 2.0


def test_where_nothing_can_be_learnt_nothing_is_released(experiment, tmp_path, capsys):
    made = experiment(*ALL_SIZES, "data.n=60")
    outcome = made.run()
    metrics = outcome.result["metrics"]
    assert not made.ledger.releases and metrics["mse"] == pytest.approx(metrics["mse_standalone"])
    assert "nothing can be learnt" in " ".join(made.strategy.notes())
    assert main([*FEW, "data.n=60", "--plan"]) == 0
    assert "users keep their own models" in " ".join(capsys.readouterr().out.split())
    forced = experiment(*ALL_SIZES, "data.n=60", "force=true", "rounds=2")
    assert len(forced.strategy.plan) > 2


def test_the_plan_predicts_the_error(capsys):
    assert main([*FEW, "data.n=1000", "--plan"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "prediction, from public settings alone: error 0.000" in said


def test_the_filter_finds_a_spread_that_was_predicted_wrongly():
    rng, n = np.random.default_rng(3), 1000
    scene = rehearsal_of(30, 2, 8, 0.01)
    truth = 3.0 * 0.1
    for start in (0.1 * truth, truth, 10 * truth):
        Delta = rng.standard_normal((30, 2))
        Delta *= math.sqrt(truth) / np.linalg.norm(Delta)
        known = SpreadFilter.start(scene, start, 1.0)
        variance = 60 * 0.0005 + 1 / n
        for _ in range(60):
            noise = math.sqrt(variance / 60) * rng.standard_normal(Delta.shape)
            x = float(np.sum(Delta**2))
            M = scene.signal(x) * Delta / math.sqrt(x) + noise
            Delta = Delta - known.length(M, variance) * M
        assert 1 / 4 < known.x / np.sum(Delta**2) < 4
        assert np.sum(Delta**2) < 0.05 * truth


def test_kalman_steps_never_make_the_expected_spread_larger():
    for signal in (1e-3, 0.1, 0.9):
        for variance in (1e-4, 1.0, 100.0):
            assert Filter.of(signal, variance).after(1.0, 2) < 1.0


def test_any_number_of_nodes_gives_the_same_model(experiment):
    models = []
    for nodes in (1, 3):
        made = experiment(*SMALL, "data.n=200", "rounds=3", f"runtime.nodes={nodes}")
        made.run()
        models.append(made.model())
    for name in ("U", "heads", "spread"):
        np.testing.assert_allclose(models[0][name], models[1][name], rtol=1e-8, atol=1e-8)


def test_outer_products_of_liars_are_made_positive_and_honest_sums_pass():
    rng = np.random.default_rng(1)
    u = rng.standard_normal((5, 4))
    u /= np.linalg.norm(u, axis=1)[:, None] / (1 - 1e-6) ** 0.5
    honest = svec(u.T @ u)
    np.testing.assert_array_equal(clip_outer_products(honest, 5.0), honest)
    lies = [10.0 ** rng.integers(-3, 300) * rng.standard_normal(10) for _ in range(40)]
    lies += [np.full(10, np.nan), np.full(10, 1e308), -honest]
    bounded = [clip_outer_products(lie, 1.0) for lie in lies]
    apart = max(np.linalg.norm(a - b) for a in bounded for b in bounded)
    assert 1.0 < apart <= math.sqrt(2)


def test_heads_of_unequal_size_are_seen_by_the_cascade(experiment):
    made = experiment(*FEW, "data.d=10", "data.m=8", "data.n=4000", "data.condition=5", "eps=4")
    made.watches = False
    made.run()
    values = np.linalg.eigvalsh(made.model()["heads"])
    assert 3 < values[-1] / values[0] < 9
    U = made.model()["U"]
    assert np.allclose(U.T @ U, np.eye(2)) and np.allclose(retraction(U).shape, (10, 2))


@pytest.mark.parametrize("stop", [2, 7])
def test_a_run_that_is_stopped_goes_on_as_if_nothing_had_happened(experiment, tmp_path, stop):
    settings = (*SMALL, "data.n=150", "rounds=6")
    whole = experiment(*settings)
    whole.run()

    def interrupt(row):
        if row["step"] == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment(*settings).run(tmp_path, interrupt)
    resumed = experiment(*settings)
    resumed.run(tmp_path, resume=True)
    for name, array in whole.model().items():
        np.testing.assert_allclose(resumed.model()[name], array, rtol=1e-12)


@pytest.mark.parametrize("algo", ["fedrep", "centaur", "altmin"])
def test_users_who_judge_are_never_worse_off_than_alone(experiment, algo):
    settings = (
        f"algo={algo}",
        "init=spectral",
        "algo.safety=true",
        "data.d=50",
        "data.m=10",
        "data.n=400",
    )
    made = experiment(*settings, "rounds=3")
    made.watches = False
    metrics = made.run().result["metrics"]
    assert metrics["mse"] <= metrics["mse_standalone"] * (1 + 1e-9)
    assert [step.task for step in made.strategy.plan][-1] == "evidence"
    assert made.strategy.planned_rounds == 3, "the judgement is no round of the algorithm"
    assert set(made.model()) == {"U", "spread"}
    assert made.ledger.releases[-1].name == "evidence"


def test_a_judged_run_with_many_users_keeps_its_embedding(experiment):
    made = experiment("algo.safety=true", "data.n=6000", "rounds=20", "eps=8")
    made.watches = False
    metrics = made.run().result["metrics"]
    assert metrics["mse"] < 0.1 * metrics["mse_standalone"] and not made.strategy.notes()


@pytest.mark.parametrize(
    ("settings", "task"),
    [
        (("data.n=300",), "direction"),
        (("data.n=3000",), "gradient"),
        (("data.n=300", "algo.clip=0.05"), "gradient"),
        (("data.n=300", "init.clip=0.1"), "gradient"),
        (("data.n=300", "algo.estimator=leave-one-out"), "gradient"),
        (("data.n=3000", "algo.estimator=posterior"), "direction"),
        (("data.n=300", "eps=inf"), "gradient"),
        (("data.n=300", "algo=centaur"), "gradient"),
    ],
)
def test_an_automatic_start_is_chosen_by_public_numbers(experiment, settings, task):
    made = experiment("init=auto", "data.d=8", "data.m=6", "rounds=3", *settings)
    assert made.strategy.rounds_task == task
    first = "cascade" if task == "direction" else "spectral"
    assert made.strategy.plan[0].task == first


def test_automatic_runs_are_those_of_the_start_that_was_chosen(experiment):
    for size, start in (("data.n=300", "init=cascade"), ("data.n=3000", "init=spectral")):
        models = []
        for init in ("init=auto", start):
            made = experiment(init, size, "data.d=8", "data.m=6", "rounds=2", "force=true")
            made.run()
            models.append(made.model())
        assert models[0].keys() == models[1].keys()
        for name, array in models[1].items():
            np.testing.assert_array_equal(models[0][name], array)
