"""For neighbouring data sets the sums before noise differ by at most what the ledger claims."""

from __future__ import annotations

import numpy as np
import pytest

from privfed.config import compose
from privfed.data.cohort import Cohort
from privfed.experiment import Experiment
from privfed.linalg import retraction
from privfed.privacy.noise import SeededNoise
from privfed.privacy.quantile import MEASURES

SETTINGS = ("data.n=60", "data.d=6", "data.m=6", "data.k=2", "rounds=2", "eps=8")
VARIANTS = (
    ("algo.estimator=leave-one-out",),
    ("algo.estimator=two-batches", "algo.train=s0"),
    ("privacy.clip=auto",),
    ("algo.clip=100", "init.clip=100"),
    ("algo=altmin", "init=pairs", "rounds=1"),
    ("algo=altmin", "init=pairs", "rounds=1", "algo.clip.moments=1e-3", "algo.clip.products=10"),
    ("algo=altmin", "rounds=1", "algo.target=labels", "algo.estimator=halves", "algo.eta_c=1", "algo.zeta=1"),
    ("algo=altmin", "rounds=1", "privacy.clip=auto"),
    ("algo=centaur", "init=ppm", "init.iterations=1"),
)
KINDS = ("typical", "huge", "overflow", "zero", "aligned", "tiny", "cancelling", "lopsided", "nan", "inf", "largest")


def users(rng, kind, m=6, d=6):
    """One user's data set: typical, or the worst someone could think of."""
    X, y = rng.standard_normal((m, d)), rng.standard_normal(m)
    if kind == "huge":
        X, y = X * 1e8, y * 1e8
    elif kind == "overflow":
        X, y = np.full((m, d), 1e200), np.full(m, 1e200)
    elif kind == "zero":
        X, y = np.zeros((m, d)), np.zeros(m)
    elif kind == "aligned":
        X = np.tile(X[:1], (m, 1))
    elif kind == "tiny":
        X = X * 1e-200
    elif kind == "cancelling":  # the pairs of the spectral statistic add up to zero, and leave only rounding
        X, y = np.outer([2.0, 2.0, -1.0, 0.0, 0.0, 0.0], X[0]) * 1e10, np.ones(m)
    elif kind in ("nan", "inf", "largest"):
        X[1, 2] = {"nan": np.nan, "inf": -np.inf, "largest": 1.7e308}[kind]
    elif kind == "lopsided":
        X = X * np.array([[1e15], [1e-15]] * (m // 2))
    return X, y


def sums(experiment, cohort, step, shared):
    """What the gate would receive in this step, given the shared parameters, and the bound of each sum."""
    strategy = experiment.strategy
    strategy.shared = strategy.initial() if step.task == strategy.init.task else shared
    for name, bound in strategy.clips.items():
        strategy.clips[name] = 0.3 if isinstance(bound, str) else bound
    answer = experiment.factory.serving(cohort).fit(strategy.announced(step), strategy.announcement(step))[0]
    names = list(strategy.sums_of(step))
    bounds = [strategy.clips[name] for name in names] if step.releases else []
    return answer, bounds + [MEASURES[step.question].bound for _ in names if step.measure]


@pytest.mark.parametrize("variant", VARIANTS, ids=" ".join)
@pytest.mark.parametrize("neighbouring", ["replace-one", "add-remove"])
def test_no_user_moves_a_sum_by_more_than_the_sensitivity(variant, neighbouring):
    experiment = Experiment(compose([*SETTINGS, *variant, f"neighbouring={neighbouring}"]))
    rng = np.random.default_rng(0)
    gate = experiment.federation.gate
    largest = 0.0
    for trial in range(100):
        U = retraction(rng.standard_normal((6, 2)))
        base = experiment.data.cohort(0, 60)
        kinds = rng.choice(KINDS, 2)
        cohorts = []
        for kind in kinds:
            X, y = base.X.copy(), base.y.copy()
            X[59], y[59] = users(rng, kind)
            cohorts.append(Cohort(np.arange(60), X, y))
        if neighbouring == "add-remove":
            cohorts[1] = Cohort(np.arange(59), base.X[:59], base.y[:59])
        for step in experiment.strategy.plan:
            (a, bounds), (b, _) = (sums(experiment, cohort, step, [U]) for cohort in cohorts)
            for one, other, bound in zip(a, b, bounds, strict=True):
                moved = np.linalg.norm(one - other)
                assert moved <= gate.sensitivity(bound) * (1 + 1e-9), (trial, kinds, step)
                largest = max(largest, moved / gate.sensitivity(bound))
    assert largest > 0.5, "the search never came near the bound: it would not notice a sensitivity twice too small"


@pytest.mark.parametrize("neighbouring", ["replace-one", "add-remove"])
def test_every_release_of_a_run_is_in_the_ledger_with_its_sensitivity(neighbouring):
    experiment = Experiment(compose([*SETTINGS, "privacy.clip=auto", f"neighbouring={neighbouring}"]))
    calls = []

    class Spy(SeededNoise):
        def normal(self, size, s, name, round):
            calls.append((name, round, size))
            return super().normal(size, s, name, round)

    experiment.federation.gate.source = Spy(0)
    experiment.run()
    releases = experiment.ledger.releases
    assert [(r.name, r.round, r.size) for r in releases] == calls
    factor = {"replace-one": 2.0, "add-remove": 1.0}[neighbouring]
    assert all(factor * r.clip < r.sensitivity < factor * r.clip * 1.001 for r in releases)
    assert len({(r.name, r.round) for r in releases}) == len(releases), "noise would be reused"
