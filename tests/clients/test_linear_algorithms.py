"""Sums of Priv-AltMin, its initialiser, the power method and CENTAUR against one user at a time."""

from __future__ import annotations

import numpy as np
import pytest
from support import naive
from test_contributions import cohort, settings_for

from clients.altmin import AltMinClient
from clients.centaur import CentaurClient
from clients.fedrep import FedRepClient
from clients.initialisers.pairs import PairsTask as Pairs
from clients.initialisers.power_method import PowerMethodTask as PowerMethod
from privfed.algorithm.announcement import Announcement
from privfed.data.cohort import draw_orders
from privfed.foundation.linalg import retraction, unsvec

ALTMIN = {
    "estimator": "leave-one-out",
    "train": "all",
    "heads": "all",
    "target": "residuals",
    "eta_c": None,
    "zeta": None,
}


def embedding(d, k=2, seed=1):
    return retraction(np.random.default_rng(seed).standard_normal((d, k)))


def announced(task, *clips):
    return settings_for(task, clips[0]) | {"clip": np.array(clips).tobytes()}


@pytest.mark.parametrize("target", ["residuals", "labels"])
@pytest.mark.parametrize("estimator", ["leave-one-out", "halves"])
@pytest.mark.parametrize("bounds", [(None, None), (2.0, 0.5)])
def test_altmin_sums_are_those_of_one_weighted_least_squares_problem(target, estimator, bounds):
    users, U, clips = cohort(60, 8, 5), embedding(5), (1.0, 0.2)
    own = AltMinClient(
        users,
        None,
        **ALTMIN
        | {"target": target, "estimator": estimator, "eta_c": bounds[0], "zeta": bounds[1]},
    )
    (A, b), _, _ = own.fit([U], announced("moments", *clips))
    wanted_A, wanted_b, weights = 0.0, 0.0, []
    for X, y in zip(users.X, users.y, strict=True):
        others = (
            (lambda j: [i for i in range(8) if i != j])
            if estimator == "leave-one-out"
            else (lambda j: range(4))
        )
        rows = range(8) if estimator == "leave-one-out" else range(4, 8)
        A_i, b_i = naive.moments(X, y, U, others, rows, target == "residuals", *bounds)
        weights.append(min(1, clips[0] / np.linalg.norm(A_i), clips[1] / np.linalg.norm(b_i)))
        wanted_A, wanted_b = wanted_A + weights[-1] * A_i, wanted_b + weights[-1] * b_i
    assert min(weights) < 0.9 and max(weights) > 0.9, "some users are scaled down, some are not"
    np.testing.assert_allclose(unsvec(A, 10), wanted_A, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(b, wanted_b, rtol=1e-5, atol=1e-5)


def test_the_paper_s_bounds_hold_for_any_user():
    users, U = cohort(50, 8, 5), embedding(5)
    users.X[:10], users.y[10:20] = 1e8 * users.X[:10], 1e8 * users.y[10:20]
    own = AltMinClient(
        users,
        None,
        **ALTMIN | {"target": "labels", "estimator": "halves", "eta_c": 2.0, "zeta": 3.0},
    )
    moments, products = own.moments(
        next(users.blocks()), [U], Announcement.from_config(announced("moments", 1e9, 1e9))
    )
    assert 1.0 < moments.norms.max() <= 4.0 and products.norms.max() <= 6.0


@pytest.mark.parametrize("m", [2, 5, 8])
def test_pairs(m):
    users = cohort(40, m, 6)
    own = AltMinClient(users, Pairs(zeta=0.8), **ALTMIN)
    sums, _, _ = own.fit([], announced("pairs", 0.2))
    wanted = sum(
        naive.clip(naive.pair_moment(X, y, 0.8), 0.2) for X, y in zip(users.X, users.y, strict=True)
    )
    np.testing.assert_allclose(unsvec(sums[0], 6), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("centre", [True, False])
def test_power_method_all_copies_at_once(centre):
    users = cohort(40, 6, 5)
    copies = np.stack([embedding(5, seed=seed) for seed in range(3)])
    own = AltMinClient(users, PowerMethod(centre, batch=None), **ALTMIN)
    sums, _, _ = own.fit([copies], announced("ppm", 2.0))
    wanted = sum(
        naive.clip(naive.power_products(X, y, copies, centre), 2.0)
        for X, y in zip(users.X, users.y, strict=True)
    )
    np.testing.assert_allclose(sums[0], wanted, rtol=1e-5, atol=1e-5)


def test_power_method_on_a_batch_drawn_anew_in_every_iteration():
    users = cohort(40, 6, 5)
    copies = embedding(5)[None]
    own = AltMinClient(users, PowerMethod(False, batch=2), **ALTMIN)
    first, again, second = (
        own.fit([copies], announced("ppm", 2.0) | {"round": t})[0][0] for t in (1, 1, 2)
    )
    order = draw_orders(0, 1, np.arange(40), 6)[:, :2]
    wanted = sum(
        naive.clip(naive.power_products(X[j], y[j], copies, False), 2.0)
        for X, y, j in zip(users.X, users.y, order, strict=True)
    )
    np.testing.assert_allclose(first, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, second)


@pytest.mark.parametrize("zeta", [1e80, 1e99, 1e300])
def test_a_user_whose_pairs_overflow_contributes_nothing(zeta):
    users = cohort(20, 6, 5)
    users.y[7] = 1e100
    sums, _, _ = AltMinClient(users, Pairs(zeta), **ALTMIN).fit([], announced("pairs", 0.2))
    assert np.isfinite(sums[0]).all()


def test_centaur_s_gradient_is_half_of_fedrep_s_by_two_batches():
    users, U = cohort(40, 8, 5), embedding(5)
    theirs = CentaurClient(users, None, train="all", heads="all", head_batch=None, batch=None)
    ours = FedRepClient(
        users, None, "two-batches", train="all", heads="all", head_batch=None, batch=None
    )
    (a,), (b,) = (client.fit([U], announced("gradient", 1e9))[0] for client in (theirs, ours))
    np.testing.assert_allclose(a, b / 2, rtol=1e-12)


def test_only_the_announced_group_answers():
    users, U = cohort(3000, 6, 5), embedding(5)
    own = AltMinClient(users, None, **ALTMIN)
    asked = [
        own.fit([U], announced("moments", 1.0, 1.0) | {"users": 3000, "groups": 4, "group": group})[
            0
        ]
        for group in range(4)
    ]
    everybody = own.fit([U], announced("moments", 1.0, 1.0))[0]
    for part, whole in zip(zip(*asked, strict=True), everybody, strict=True):
        np.testing.assert_allclose(sum(part), whole, rtol=1e-9, atol=1e-9)
    assert all(np.linalg.norm(b) > 0 for _, b in asked)
