"""Directions and outer products of few users' algorithm against one user at a time."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from test_contributions import cohort, settings_for

from clients.fedrep import FedRepClient
from clients.initialisers.cascade import CascadeTask
from privfed.algorithm.client import CohortClient
from privfed.data.cohort import Cohort
from privfed.foundation.linalg import retraction, svec
from privfed.kernels.least_squares import lstsq
from privfed.models.linear import fit_heads
from privfed.models.personal_predictors import (
    NOISES,
    NOT_JUDGED,
    SAYS_NOTHING,
    Rows,
    chosen_spread,
    evidence,
    judged,
    personal_predictors,
)
from privfed.models.posterior import Prior, unit


def embedding(d, k=2, seed=1):
    return retraction(np.random.default_rng(seed).standard_normal((d, k)))


def posterior_client(users):
    return FedRepClient(users, None, "posterior", "all", "all", None, None, noise=0.1)


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
    client = posterior_client(users)
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
    client = CohortClient(users, CascadeTask(0.1))
    (total,), _, _ = client.fit([V, np.array([0.7, 2.0])], settings_for("cascade", 1.0))
    C, wanted = covariance(Prior.of_fraction(V, 2, 0.7, 0.1)), 0.0
    for X, y in zip(users.X.astype(float), users.y.astype(float), strict=True):
        u = V.T @ posterior_mean(X, y, C, 0.1)
        wanted = wanted + np.outer(u, u) / (u @ u)
    np.testing.assert_allclose(total, svec(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("m", [4, 9])
def test_posterior_means_by_gram_matrices_are_the_same(m):
    users = cohort(20, m, 6).exact()
    prior = Prior.of_spread(embedding(6), HEADS, 0.3, 0.1)
    gram = np.matmul(users.X, users.X.transpose(0, 2, 1))
    wanted = prior.fit(users.X, users.y)
    np.testing.assert_allclose(prior.fit(users.X, users.y, gram), wanted, rtol=1e-7, atol=1e-9)


def test_users_who_know_nothing_of_heads_predict_alone_or_by_least_squares():
    users, U = cohort(30, 4, 8).exact(), embedding(8)
    alone, least_squares = lstsq(users.X, users.y), fit_heads(U, users.X, users.y) @ U.T
    far, near = np.array([SAYS_NOTHING]), np.array([NOT_JUDGED])
    for safety in (False, True):
        predictors = partial(personal_predictors, X=users.X, y=users.y, safety=safety)
        np.testing.assert_allclose(predictors([]), alone)
        np.testing.assert_allclose(predictors([U, far]), alone)
        np.testing.assert_allclose(predictors([U]), least_squares)
        np.testing.assert_allclose(predictors([U, near]), least_squares)


@pytest.mark.parametrize("m", [5, 15])
def test_densities_and_means_are_those_of_the_textbook_for_rows_more_or_fewer_than_features(m):
    users, U = cohort(4, m, 8).exact(), embedding(8)
    prior = Prior.of_fraction(U, 2, 0.8)
    logs, W = judged(prior, Rows.of(users.X, users.y))
    for i, (X, y) in enumerate(zip(users.X, users.y, strict=True)):
        density, means = [], []
        for noise in NOISES:
            ridge = noise**2 * np.mean(X**2)
            K = X @ covariance(prior) @ X.T + ridge * np.eye(m)
            scale = y @ np.linalg.solve(K, y) / m
            density.append(-0.5 * (np.linalg.slogdet(K)[1] + m * math.log(scale)))
            means.append(posterior_mean(X, y, covariance(prior), math.sqrt(ridge)))
        parts = np.exp(np.array(density) - max(density))
        assert logs[i] == pytest.approx(max(density) + math.log(np.mean(parts)))
        np.testing.assert_allclose(W[i], parts @ np.array(means) / np.sum(parts), atol=1e-8)


def problem(degrees, noise, m=10, users=1000):
    """Return examples, targets, true predictors, and an embedding that misses by an angle."""
    rng, angle = np.random.default_rng(5), math.radians(degrees)
    Q, V = retraction(rng.standard_normal((20, 4))), rng.standard_normal((users, 2))
    X, W = rng.standard_normal((users, m, 20)), V @ Q[:, :2].T
    y = np.matmul(X, W[..., None])[..., 0] + noise * rng.standard_normal((users, m))
    return X, y, W, math.cos(angle) * Q[:, :2] + math.sin(angle) * Q[:, 2:]


@pytest.mark.parametrize("degrees", [0.1, 20, 40, 60, 90])
@pytest.mark.parametrize(("noise", "m"), [(0.01, 8), (0.5, 8), (0.3, 30)])
def test_heads_that_users_judged_are_no_worse_than_alone_and_hardly_worse_than_federated(
    degrees, noise, m
):
    X, y, W, U = problem(degrees, noise, m)

    def error(shared, safety=True):
        return float(np.mean(np.sum((personal_predictors(shared, X, y, safety) - W) ** 2, axis=1)))

    told = evidence(U, X, y)
    assert np.max(np.sum(told**2, axis=1)) <= 1 + 1e-12
    spread = chosen_spread(np.mean(told, axis=0), 0.0, 20, 2)
    mixed, alone, federated = error([U, np.array([spread])]), error([]), error([U])
    assert mixed <= 1.001 * alone and mixed <= 1.12 * federated
    if degrees <= 20:
        assert mixed < 0.8 * alone
    if degrees == 90:
        assert spread == SAYS_NOTHING


def test_noise_hides_evidence_and_then_users_stay_alone():
    assert chosen_spread(np.array([0.3, 0.1, 0.0, 0.0]), 0.05, 20, 2) < SAYS_NOTHING
    assert chosen_spread(np.array([0.3, 0.1, 0.0, 0.0]), 0.5, 20, 2) == SAYS_NOTHING


def test_directions_do_not_depend_on_the_scale_of_targets():
    users, U = cohort(20, 4, 6).exact(), embedding(6)
    prior = Prior.of_spread(U, HEADS, 0.3, 0.1)
    small, large = (prior.fit(users.X, scale * users.y) for scale in (1.0, 1e6))
    np.testing.assert_allclose(unit(small), unit(large), atol=1e-12)
    W = personal_predictors([U, HEADS, np.array([0.3])], users.X, users.y, True)
    large = personal_predictors([U, HEADS, np.array([0.3])], users.X, 1e6 * users.y, True)
    np.testing.assert_allclose(large, 1e6 * W, rtol=1e-6)


def test_users_without_data_send_nothing_and_all_others_the_same_length():
    users = cohort(3, 4, 6).exact()
    X, y = users.X.copy(), users.y.copy()
    X[0], y[0] = 0.0, 0.0
    X[1] *= 1e150
    client = posterior_client(Cohort(users.ids, X, y))
    block = next(client.blocks())
    shared = [embedding(6), np.eye(2), np.array([1.0])]
    with np.errstate(all="ignore"):
        parts = np.asarray(client.direction(block, shared, None))
    norms = np.sqrt(np.sum(parts**2, axis=(1, 2)))
    assert norms[0] == 0.0 and norms[2] == pytest.approx(1.0)
    assert norms[1] in (0.0, pytest.approx(1.0)) and math.isfinite(norms[1])
