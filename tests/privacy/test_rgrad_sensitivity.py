"""DP-RGrad: no user moves a sum by more than the ledger claims, and what rests on an assumption is labelled so."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_sensitivity import KINDS, sums, users

from privfed.config import compose
from privfed.data.cohort import Cohort
from privfed.experiment import Experiment
from privfed.linalg import retraction

SETTINGS = ("algo=rgrad", "data.n=60", "data.d1=2", "data.d2=3", "data.m=6", "rounds=2", "eps=8")
FACTOR = {"replace-one": 2.0, "weak": 2.0, "add-remove": 1.0}


@pytest.mark.parametrize("variant", [(), ("algo.clip=100", "init.clip=100"), ("model.k=1",)], ids=" ".join)
@pytest.mark.parametrize("neighbouring", list(FACTOR))
def test_no_user_moves_a_sum_by_more_than_the_sensitivity(variant, neighbouring):
    experiment = Experiment(compose([*SETTINGS, *variant, f"neighbouring={neighbouring}"]))
    rng = np.random.default_rng(0)
    gate, k = experiment.federation.gate, experiment.federation.k
    largest = 0.0
    for trial in range(40):
        base = experiment.data.cohort(0, 60)
        shared = [retraction(rng.standard_normal((2, k))), rng.uniform(0, 2, k), retraction(rng.standard_normal((3, k)))]
        kinds = rng.choice(KINDS, 2)
        cohorts = []
        for kind in kinds:
            X, y = base.X.copy(), base.y.copy()
            X[59], y[59] = users(rng, kind)
            if cohorts and neighbouring == "weak":
                X[59] = cohorts[0].X[59]
            cohorts.append(Cohort(np.arange(40), X, y))
        if neighbouring == "add-remove":
            cohorts[1] = Cohort(np.arange(59), base.X[:59], base.y[:59])
        for step in experiment.strategy.plan:
            (a, bounds), (b, _) = (sums(experiment, cohort, step, shared) for cohort in cohorts)
            for one, other, bound in zip(a, b, bounds, strict=True):
                moved = np.linalg.norm(one - other)
                assert moved <= gate.sensitivity(bound) * (1 + 1e-9), (trial, kinds, step)
                largest = max(largest, moved / gate.sensitivity(bound))
    assert largest > 0.5, "the search never came near the bound: it would not notice a sensitivity twice too small"


@pytest.mark.parametrize("neighbouring", list(FACTOR))
def test_clipped_releases_are_charged_with_their_sensitivity(neighbouring):
    experiment = Experiment(compose([*SETTINGS, f"neighbouring={neighbouring}"]))
    privacy = experiment.run().result["privacy"]
    factor = FACTOR[neighbouring]
    assert all(factor * r.clip < r.sensitivity < factor * r.clip * 1.001 for r in experiment.ledger.releases)
    assert privacy["guarantee"] == "worst-case" and 0.99 * 8 <= privacy["epsilon"] <= 8
    cost = privacy["epsilon_by_neighbouring"]
    assert (
        set(cost) == set(FACTOR)
        and cost["weak"] == pytest.approx(cost["replace-one"])
        and cost["add-remove"] < 0.6 * cost["weak"]
    )


@pytest.mark.parametrize("neighbouring", ["replace-one", "weak"])
def test_the_papers_calibration_is_what_the_paper_prints_and_is_labelled(neighbouring):
    constants = ("algo.C2=3", "algo.C3=5", "data.sigma=0.2", "data.singular=[2.0,0.5]")
    experiment = Experiment(compose([*SETTINGS, "algo.calibration=paper", f"neighbouring={neighbouring}", *constants]))
    result = experiment.run().result
    r, log, strong = 2, math.log(60), neighbouring == "replace-one"
    core = 3 * (0.2 + strong * math.sqrt(r) * 2.0) * math.sqrt(r) * log
    gradient = 5 * (0.2 + strong * 0.5) * math.sqrt(r * (2 + 3) * log)
    releases = experiment.ledger.releases
    assert [x.name for x in releases] == ["regression"] * 3 + ["gradient"] * 2
    assert [x.size for x in releases] == [3, 6, 4, 14, 14]
    assert [x.sensitivity for x in releases] == pytest.approx([core / 0.5, core / 0.5, core, gradient, gradient], rel=1e-4)
    shares = [(x.mu / experiment.budget.mu) ** 2 for x in releases]
    assert shares == pytest.approx([0.1, 0.1, 0.1, 0.35, 0.35], rel=1e-4)
    privacy = result["privacy"]
    assert privacy["guarantee"] == "under the Gaussian design assumption"
    assert list(privacy["epsilon_by_neighbouring"]) == [neighbouring] and "C2=3" in result["notes"][0]
