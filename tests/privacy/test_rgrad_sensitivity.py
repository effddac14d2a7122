"""DP-RGrad: releases are charged with their sensitivities, and assumptions are labelled."""

from __future__ import annotations

import math

import pytest

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment

SETTINGS = ("algo=rgrad", "data.n=60", "data.d1=2", "data.d2=3", "data.m=6", "rounds=2", "eps=8")
FACTOR = {"replace-one": 2.0, "weak": 2.0, "zero-out": 1.0}


@pytest.mark.parametrize("neighbouring", list(FACTOR))
def test_clipped_releases_are_charged_with_their_sensitivity(neighbouring):
    experiment = Experiment(compose([*SETTINGS, f"neighbouring={neighbouring}"]))
    privacy = experiment.run().result["privacy"]
    factor = FACTOR[neighbouring]
    assert all(
        factor * r.clip < r.sensitivity < factor * r.clip * 1.001
        for r in experiment.ledger.releases
    )
    assert privacy["would_be"] == "worst-case" and 0.99 * 8 <= privacy["epsilon"] <= 8
    cost = privacy["epsilon_by_neighbouring"]
    assert (
        set(cost) == set(FACTOR)
        and cost["weak"] == pytest.approx(cost["replace-one"])
        and cost["zero-out"] < 0.6 * cost["weak"]
    )


@pytest.mark.parametrize("neighbouring", ["replace-one", "weak"])
def test_the_papers_calibration_is_what_the_paper_prints_and_is_labelled(neighbouring):
    constants = ("algo.C2=3", "algo.C3=5", "data.sigma=0.2", "data.singular=[2.0,0.5]")
    experiment = Experiment(
        compose([*SETTINGS, "algo.calibration=paper", f"neighbouring={neighbouring}", *constants])
    )
    result = experiment.run().result
    r, log, strong = 2, math.log(60), neighbouring == "replace-one"
    core = 3 * (0.2 + strong * math.sqrt(r) * 2.0) * math.sqrt(r) * log
    gradient = 5 * (0.2 + strong * 0.5) * math.sqrt(r * (2 + 3) * log)
    releases = experiment.ledger.releases
    assert [x.name for x in releases] == ["regression"] * 3 + ["gradient"] * 2
    assert [x.size for x in releases] == [3, 6, 4, 14, 14]
    assert [x.sensitivity for x in releases] == pytest.approx(
        [core / 0.5, core / 0.5, core, gradient, gradient], rel=1e-4
    )
    shares = [(x.mu / experiment.budget.mu) ** 2 for x in releases]
    assert shares == pytest.approx([0.1, 0.1, 0.1, 0.35, 0.35], rel=1e-4)
    privacy = result["privacy"]
    assert privacy["would_be"] == "under the Gaussian design assumption"
    assert (
        list(privacy["epsilon_by_neighbouring"]) == [neighbouring] and "C2=3" in result["notes"][0]
    )
