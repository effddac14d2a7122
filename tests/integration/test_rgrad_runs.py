"""Whole runs of DP-RGrad."""

from __future__ import annotations

import numpy as np
import pytest

from privfed.commands.run import main
from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.privacy.statement import guarantee_in_words

SMALL = ("algo=rgrad", "data.n=2500", "data.d1=8", "data.d2=6")


def run(*overrides):
    return Experiment(compose([*SMALL, *overrides])).run()


@pytest.mark.parametrize(
    "more",
    [(), ("algo.clip=0.3", "init.clip=5"), ("algo.calibration=paper",), ("eps=inf", "data.m=3")],
)
def test_same_numbers_for_one_and_seven_nodes(more):
    a, b = (run(f"runtime.nodes={nodes}", "rounds=8", *more) for nodes in (1, 7))
    assert list(a.model) == ["U", "S", "V"]
    for name in a.model:
        np.testing.assert_allclose(b.model[name], a.model[name], rtol=1e-8, atol=1e-10)
    assert b.result["metrics"] == pytest.approx(a.result["metrics"], rel=1e-8)


@pytest.mark.parametrize(
    ("more", "most"),
    [
        ((), 0.05),
        (("neighbouring=weak",), 0.05),
        (("neighbouring=zero-out",), 0.03),
        (("eps=inf",), 0.014),
        (("data.m=4",), 0.03),
        (("algo.clip=0.25", "init.clip=5", "algo.step=2.5", "algo.decay=0.85"), 0.05),
        (("algo.calibration=paper", "eps=8"), 0.1),
        (("model.k=3",), 0.08),
        (("data.singular=[20.0,3.0]",), 0.05),
    ],
    ids=str,
)
def test_the_matrix_is_found_within_the_budget(more, most):
    """Without noise but that of the labels the error is about sqrt(24 * .01 / 2500) = .01."""
    outcome = run("eps=2", *more)
    assert outcome.result["metrics"]["frobenius"] < most
    U, S, V = outcome.model.values()
    assert U.shape == (8, len(S)) and V.shape == (6, len(S)) and (S >= 0).all()
    assert outcome.result["privacy"]["epsilon"] <= outcome.result["privacy"]["target_epsilon"]


@pytest.mark.parametrize(
    "shape", [("data.n=1",), ("data.d1=1", "data.d2=1", "data.r=1"), ("data.r=6",), ("model.k=1",)]
)
def test_smallest_and_squarest_problems(shape):
    for more in ((), ("algo.calibration=paper",)):
        assert np.isfinite(run("rounds=3", *shape, *more).result["metrics"]["frobenius"])


def test_the_guarantee_is_told_in_words():
    paper = guarantee_in_words(run("algo.calibration=paper", "rounds=2").result)
    assert (
        "This would hold under the Gaussian design assumption." in paper
        and "whatever the data" not in paper
    )
    weak = guarantee_in_words(run("neighbouring=weak", "rounds=2").result)
    assert "replacing the targets of one user by any others" in weak and "whatever the data" in weak
    assert (
        run("algo.calibration=paper", "eps=inf", "rounds=2").result["privacy"]["guarantee"]
        == "none"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("data.r=21",), ("data.r=21", "data.d1=20", "data.d2=20")),
        (("model.k=21",), ("model.k=21", "data.d1=20")),
        (("model.k=0",), ("model.k=0", "at least 1")),
        (("data.r=0",), ("data.r=0", "at least 1")),
        (("data.singular=[1.0]",), ("data.singular=[1.0]", "data.r=2")),
        (("algo.calibration=papers",), ("algo.calibration=papers", "clipped, paper")),
        (("algo.slope=0",), ("algo.slope=0", "positive")),
        (("init=spectral",), ("init: ", "U, S, V")),
        (("init=random",), ("init: ", "U, S, V")),
        (("data=synthetic",), ("data", "data=trace")),
        (
            ("algo.calibration=paper", "neighbouring=zero-out"),
            ("neighbouring=zero-out", "weak"),
        ),
        (("algo.calibration=paper", "privacy.clip=auto"), ("privacy.clip=auto", "clips nothing")),
        (("algo.calibration=paper", "algo.C3=0"), ("algo.C3=0", "positive")),
        (("algo.calibration=paper", "algo.sigma_r=0"), ("algo.sigma_r=0", "positive")),
        (
            ("algo.calibration=paper", "neighbouring=weak", "data.sigma=0"),
            ("algo.sigma_xi=0", "label noise"),
        ),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_clear_line(arguments, words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["algo=rgrad", *arguments]) == 2
    err = capfd.readouterr().err
    assert len(err.strip().splitlines()) == 1 and all(word in err for word in words), err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("algo", ["fedrep", "standalone"])
def test_weak_privacy_is_for_this_algorithm_only(algo, capfd):
    assert main([f"algo={algo}", "neighbouring=weak"]) == 2
    assert "neighbouring=weak" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("n", "seeds", "most"), [(20000, 3, 0.011), (80000, 1, 0.0048)])
def test_the_papers_problem_is_solved_within_the_budget(n, seeds, most):
    """Mean Frobenius error at eps=1, d1=d2=20, r=2; statistical floor .0062 and .0031."""
    results = [
        Experiment(compose(["algo=rgrad", f"data.n={n}", f"seed={seed}"])).run().result
        for seed in range(seeds)
    ]
    assert np.mean([result["metrics"]["frobenius"] for result in results]) <= most
    assert all(0.99 <= result["privacy"]["epsilon"] <= 1 for result in results)
