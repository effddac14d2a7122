"""Settings by theorems: against values computed by hand, and as settings of a run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privfed.algorithm.theory import Problem
from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import ConfigError
from strategies import theorems

HEADS = {"Lambda": 2.0, "lambda_": 1.0, "Gamma": 3.0, "R": 0.5}


def problem(**changes):
    return Problem(
        **({"n": 1000, "m": 400, "d": 50, "k": 2, "epsilon": 1, "delta": 1e-6} | changes)
    )


def test_pmpr_theorem_10():
    said = theorems.pmpr(problem(), **HEADS, proof=False)
    wanted = {"algo.eta": 1 / 8, "rounds": 83, "algo.clip": 105, "init.clip": 462.5}
    assert {key: pytest.approx(value) for key, value in wanted.items()}.items() <= dict(
        said.settings
    ).items()
    assert said.settings["algo.batches"] == "fresh", "floor(400 / 166) = 2 examples per round"
    proven = theorems.pmpr(problem(), **HEADS, proof=True).settings
    assert proven["algo.clip"] == pytest.approx(105 * 82 * 7.600902, rel=1e-6)
    few = theorems.pmpr(problem(m=10), **HEADS, proof=False)
    assert few.settings["algo.batches"] == "redrawn" and "need m=332 examples" in few.violated[0]


def test_pmpr_theorem_17():
    said = theorems.pmpr_margin(problem(n=2000, m=40), 0.2, 1.0, 1.0, 0.05, False)
    assert said.settings["algo.sketch"] == 358, "ln(80000 / .05) / .04 = 357.1"
    assert said.settings["algo.gamma"] == pytest.approx(0.1 / 2.414214, rel=1e-6)
    assert "10^1098 members" in said.violated[0]


def test_dpmp():
    heads = HEADS | {"Gamma": 2.0, "R": 0.0}
    said = theorems.dpmp(problem(n=100, m=10, d=25), **heads, proof=False).settings
    assert said["algo.eta_c"] == pytest.approx(10)
    assert said["algo.zeta"] == pytest.approx(2 * 5.079217, rel=1e-6)
    assert said["algo.clip.moments"] == pytest.approx(100)
    assert said["algo.clip.products"] == pytest.approx(101.58434, rel=1e-6)
    chosen = theorems.dpmp_select(problem(n=100, m=10, d=4, k=1, epsilon=0.5), 3.0, False)
    assert chosen.settings == {
        "algo.L_f": pytest.approx(13.815511),
        "algo.gamma": pytest.approx(0.02),
        "algo.C": 3.0,
    }
    assert "10^24 members" in chosen.violated[0]


def test_centaur_theorem_5_1():
    heads = {"Lambda": 1.0, "lambda_": 1.0, "Gamma": 2.0, "R": 0.0}
    said = theorems.centaur(problem(epsilon=math.inf), **heads, proof=False)
    assert said.settings == {
        "algo.eta": 0.25,
        "algo.clip": pytest.approx(105.1304, rel=1e-5),
        "rounds": 7,
        "init.agreement": 0.01,
        "init.iterations": 28,
        "init.copies": 110,
        "init.clip": pytest.approx(1116.98, rel=1e-4),
    }
    noisy = theorems.centaur(problem(), **heads | {"R": 0.1}, proof=False)
    assert any("sigma_g" in words for words in noisy.violated)
    assert any("labels have noise 0.1" in words for words in noisy.violated)


def test_rgrad_theorem_3():
    known = {"sigma_1": 1.0, "sigma_r": 0.5, "sigma_xi": 0.5, "C_l": 1.0, "C_u": 1.0}
    sizes = known | {"d1": 20.0, "d2": 10.0}
    said = theorems.rgrad(problem(n=100), **sizes, proof=False)
    assert said.settings == {"rounds": 5, "algo.step": 0.5}
    by_hand = 2 * ((math.sqrt(2) + 0.5) / 0.5) ** 2 * 20 * math.log(30)
    assert f"n (Theorem 1) must be at least {by_hand:.3g} and is 100" in said.violated
    assert "n (Theorem 3, n_3)" not in str(said.violated), "2 * 30 <= 100"


def test_constants_that_nobody_knows_must_be_given():
    with pytest.raises(ConfigError, match=r"theory\.Lambda=None: must be given"):
        theorems.pmpr(problem(), **HEADS | {"Lambda": None}, proof=False)


def test_a_run_follows_the_theorem_and_what_a_person_sets_wins():
    run = Experiment(compose(["preset=theory-pmpr", "data.n=300", "data.d=6", "rounds=2"]))
    known = run.data.constants()
    V = run.data.cohort(0, 300).truth.V_star
    assert known["Lambda"] == pytest.approx(np.linalg.norm(V, 2) / math.sqrt(300))
    assert known["Gamma"] == pytest.approx(np.max(np.linalg.norm(V, axis=1)))
    assert run.cfg.algo.eta == pytest.approx(1 / (2 * known["Lambda"] ** 2))
    assert run.cfg.rounds == 2 and run.strategy.eta == run.cfg.algo.eta
    assert run.notes[0].startswith("settings by PMPR Theorem 10: algo.eta=")
    assert "PMPR Theorem 10 promises nothing here: b = floor(m/2T) is 0" in run.notes[1]
    given = Experiment(compose(["preset=theory-pmpr", "data.n=300", "theory.Lambda=2"]))
    assert given.cfg.algo.eta == pytest.approx(1 / 8)


def test_a_setting_about_which_the_theorem_says_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"algo\.decay=theory: PMPR Theorem 10 says nothing"):
        Experiment(compose(["preset=theory-pmpr", "data.n=300", "algo.decay=theory"]))
