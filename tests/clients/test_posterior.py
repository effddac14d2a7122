"""Directions and outer products of few users' algorithm against one user at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_contributions import cohort, settings_for

from clients.initialisers.cascade import CascadeTask
from clients.posterior_fedrep import PosteriorFedRepClient
from privfed.algorithm.client import CohortClient
from privfed.data.cohort import Cohort
from privfed.foundation.linalg import retraction, svec
from privfed.kernels.least_squares import lstsq
from privfed.models.linear import fit_heads
from privfed.models.posterior import Prior, unit


def embedding(d, k=2, seed=1):
    return retraction(np.random.default_rng(seed).standard_normal((d, k)))


def covariance(prior):
    d = len(prior.U)
    inside = prior.U @ prior.root @ prior.root @ prior.U.T
    return inside + prior.outside**2 * (np.eye(d) - prior.U @ prior.U.T)


def posterior_mean(X, y, C, noise):
    """E[w | y] for w ~ N(0, C) and y = X w + noise, one user, by the textbook."""
    return C @ X.T @ np.linalg.inv(X @ C @ X.T + noise**2 * np.eye(len(X))) @ y


HEADS = np.array([[1.2, 0.3], [0.3, 0.5]])


@pytest.mark.parametrize("m", [4, 9])
def test_directions_are_those_of_the_posterior_mean_of_one_user_at_a_time(m):
    users, U, x = cohort(40, m, 6), embedding(6), 0.3
    client = PosteriorFedRepClient(users, None, "all", "all", 0.1)
    shared = [U, HEADS, np.array([x])]
    (total,), _, _ = client.fit(shared, settings_for("direction", 1.0))
    prior = Prior.of_spread(U, HEADS, x, 0.1)
    C, wanted = covariance(prior), 0.0
    for X, y in zip(users.X.astype(float), users.y.astype(float), strict=True):
        w = posterior_mean(X, y, C, 0.1)
        v, delta = np.linalg.solve(prior.root, U.T @ w), w - U @ (U.T @ w)
        wanted = wanted + np.outer(v, delta) / np.linalg.norm(v) / np.linalg.norm(delta)
    np.testing.assert_allclose(total, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("m", [4, 9])
def test_outer_products_are_those_of_one_user_at_a_time(m):
    users, V = cohort(40, m, 6), embedding(6, 3)
    client = CohortClient(users, CascadeTask(2, 0.1))
    (total,), _, _ = client.fit([V, np.array([0.7])], settings_for("cascade", 1.0))
    C, wanted = covariance(Prior.of_fraction(V, 2, 0.7, 0.1)), 0.0
    for X, y in zip(users.X.astype(float), users.y.astype(float), strict=True):
        u = V.T @ posterior_mean(X, y, C, 0.1)
        wanted = wanted + np.outer(u, u) / (u @ u)
    np.testing.assert_allclose(total, svec(wanted), rtol=1e-5, atol=1e-5)


def test_the_prior_joins_least_squares_heads_and_users_alone():
    users, U = cohort(30, 4, 8).exact(), embedding(8)
    far = Prior.of_spread(U, np.eye(2), 1e9, 1e-6)
    assert far.outside == pytest.approx(far.root[0, 0])
    np.testing.assert_allclose(far.predictors(users.X, users.y), lstsq(users.X, users.y), atol=1e-6)
    near = Prior.of_spread(U, np.eye(2), 0.0, 1e-6)
    explained = np.matmul(users.X @ U, np.array([1.0, -2.0]))
    heads = fit_heads(U, users.X, explained) @ U.T
    np.testing.assert_allclose(near.predictors(users.X, explained), heads, atol=1e-6)


def test_noise_that_a_user_measures_is_used_in_place_of_the_assumed_one():
    rng = np.random.default_rng(5)
    U, V = embedding(20), rng.standard_normal((400, 2))
    X = rng.standard_normal((400, 10, 20))
    y = np.matmul(X, (V @ U.T)[..., None])[..., 0] + 0.5 * rng.standard_normal((400, 10))
    prior = Prior.of_spread(U, np.eye(2), 1e-3, 0.01)

    def error(W):
        return float(np.mean(np.sum((W - V @ U.T) ** 2, axis=1)))

    v, outer = prior.parts(prior.fit(X, y))
    trusting = v @ prior.root @ U.T + prior.outside * outer
    assert error(prior.predictors(X, y)) < 0.9 * error(trusting)


def test_directions_do_not_depend_on_the_scale_of_targets():
    users, U = cohort(20, 4, 6).exact(), embedding(6)
    prior = Prior.of_spread(U, HEADS, 0.3, 0.1)
    small, large = (prior.fit(users.X, scale * users.y) for scale in (1.0, 1e6))
    np.testing.assert_allclose(unit(small), unit(large), atol=1e-12)
    W = prior.predictors(users.X, users.y)
    np.testing.assert_allclose(prior.predictors(users.X, 1e6 * users.y), 1e6 * W, rtol=1e-6)


def test_users_without_data_send_nothing_and_all_others_the_same_length():
    users = cohort(3, 4, 6).exact()
    X, y = users.X.copy(), users.y.copy()
    X[0], y[0] = 0.0, 0.0
    X[1] *= 1e150
    client = PosteriorFedRepClient(Cohort(users.ids, X, y), None, "all", "all", 0.1)
    block = next(client.blocks())
    shared = [embedding(6), np.eye(2), np.array([1.0])]
    with np.errstate(all="ignore"):
        parts = np.asarray(client.direction(block, shared, None))
    norms = np.sqrt(np.sum(parts**2, axis=(1, 2)))
    assert norms[0] == 0.0 and norms[2] == pytest.approx(1.0)
    assert norms[1] in (0.0, pytest.approx(1.0)) and math.isfinite(norms[1])
