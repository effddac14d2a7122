"""Scores and heads of whole cohorts against naive code, one user and one candidate at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from clients.expmech import ExpMechClient
from clients.jlmargin import JLMarginClient, fewest_errors, half_sphere
from privfed.algorithm.candidate_covers import random_orthonormal, sketch_matrix
from privfed.data.cohort import Cohort
from privfed.kernels import candidate_scores
from privfed.privacy.clipping import SCORE


def users(n=30, m=8, d=6, labels=False, seed=0):
    rng = np.random.default_rng(seed)
    X, y = (
        rng.standard_normal((n, m, d)),
        rng.standard_normal((n, m)) * np.exp(rng.standard_normal((n, 1))),
    )
    return Cohort(np.arange(n), X, np.where(y < 0, -1.0, 1.0) if labels else y)


def exp_client(cohort, **options):
    options = {
        "L_f": 2.0,
        "C": 1.5,
        "targets": "relative",
        "train": "all",
        "heads": "all",
    } | options
    return ExpMechClient(cohort, None, **options)


def margin_client(cohort, **options):
    settings = {
        "sketch": 4,
        "rho": 0.1,
        "Gamma": 1.0,
        "directions": 9,
        "train": "all",
        "heads": "all",
        "seed": 3,
    }
    return JLMarginClient(cohort, None, **(settings | options))


def ask(client, candidates):
    config = {
        "step": 1,
        "task": "select",
        "round": 1,
        "seed": 0,
        "clip": np.array([SCORE]).tobytes(),
        "release": True,
        "measure": "",
    }
    sums, count, metrics = client.fit([candidates], config)
    assert count == len(client.cohort) and metrics == {"step": 1} and len(sums) == 1
    return sums[0]


def naive_absolute(X, y, U, longest, C, relative):
    if relative and np.mean(np.abs(y)) > 0:
        y = y / np.mean(np.abs(y))
    P = X @ U
    P = P * np.minimum(1.0, longest / np.maximum(np.linalg.norm(P, axis=1), 1e-300))[:, None]
    v = np.linalg.lstsq(P, y, rcond=None)[0]
    v *= min(1.0, C / max(np.linalg.norm(v), 1e-300))
    return np.mean(np.abs(y)) - np.mean(np.abs(y - P @ v))


def naive_margin(X, y, U, V, rho):
    return max(np.mean(y * (X @ U @ v) > rho) for v in np.concatenate([V, -V]))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("targets", ["relative", "absolute"])
@pytest.mark.parametrize("train", ["all", "s0"])
def test_expmech_scores_are_the_naive_ones(k, targets, train):
    cohort, candidates = users(), random_orthonormal(np.random.default_rng(1), 150, 6, k)
    client = exp_client(cohort, targets=targets, train=train)
    assert client.sensitivity == (1.0 if targets == "relative" else 3.0)
    rows = slice(4) if train == "s0" else slice(8)
    wanted = np.zeros(150)
    for X, y in zip(cohort.X[:, rows], cohort.y[:, rows], strict=True):
        own = [naive_absolute(X, y, U, 2.0, 1.5, targets == "relative") for U in candidates]
        wanted += np.floor(np.clip(np.array(own) / client.sensitivity, 0.0, 1.0) * SCORE)
    found = ask(client, candidates)
    np.testing.assert_array_equal(found, np.floor(found))
    np.testing.assert_allclose(
        found, wanted, atol=30
    )  # a unit a user, where rounding tips a whole number


def test_expmech_kernel_is_exact():
    cohort, candidates = users(n=5), random_orthonormal(np.random.default_rng(1), 7, 6, 2)
    P = np.einsum("nmd,cdk->nmkc", cohort.X, candidates)
    wanted = [[naive_absolute(X, y, U, 2.0, 1.5, False) for U in candidates]
              for X, y in zip(cohort.X, cohort.y, strict=True)]  # fmt: skip
    np.testing.assert_allclose(
        candidate_scores.absolute_scores(P, cohort.y, 2.0, 1.5), wanted, rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("train", ["all", "s0"])
def test_margin_scores_are_the_naive_ones(k, train):
    cohort, candidates = users(labels=True), random_orthonormal(np.random.default_rng(1), 150, 4, k)
    client = margin_client(cohort, train=train)
    rows, V, M = (
        slice(4) if train == "s0" else slice(8),
        half_sphere(3, k, 9),
        sketch_matrix(3, 4, 6),
    )
    wanted = np.zeros(150)
    for X, y in zip(cohort.X[:, rows], cohort.y[:, rows], strict=True):
        X = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
        wanted += [np.floor(naive_margin(X @ M.T, y, U, V, 0.1) * SCORE) for U in candidates]
    np.testing.assert_array_equal(ask(client, candidates), wanted)


def test_tiles_do_not_change_a_sum(monkeypatch):
    cohort, candidates = users(n=50), random_orthonormal(np.random.default_rng(1), 40, 6, 2)
    whole = ask(exp_client(cohort), candidates)
    monkeypatch.setattr(candidate_scores, "WIDTH", 7)
    monkeypatch.setattr(candidate_scores, "TILE", 2000)
    np.testing.assert_allclose(ask(exp_client(cohort), candidates), whole, atol=50)


def test_the_sketch_has_the_stated_entries_and_keeps_inner_products_on_average():
    M = sketch_matrix(0, 400, 30)
    assert set(np.abs(M).ravel()) == {0.05}
    assert np.std(M.T @ M - np.eye(30)) == pytest.approx(1 / 20, rel=0.2)
    assert not np.array_equal(M, sketch_matrix(1, 400, 30))


def test_directions_are_unit_vectors_and_even_where_there_are_two_dimensions():
    for k in (1, 2, 5):
        V = half_sphere(0, k, 16)
        np.testing.assert_allclose(np.linalg.norm(V, axis=1), 1.0)
    angles = np.arctan2(*half_sphere(0, 2, 16).T[::-1])
    np.testing.assert_allclose([b - a for a, b in pairwise(angles)], np.pi / 16)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_final_head_makes_fewest_errors_and_then_has_the_largest_margin(k):
    P = np.random.default_rng(0).standard_normal((40, 7, k))
    P[:10, :, 0] = np.abs(P[:10, :, 0]) + 0.1  # separable users
    V = half_sphere(0, k, 12)
    both = np.concatenate([V, -V])
    for p, v in zip(P, fewest_errors(P, V), strict=True):
        margins = both @ p.T
        errors = np.sum(margins <= 0, axis=1)
        best = errors == errors.min()
        assert np.sum(p @ v <= 0) == errors.min()
        least = np.where(margins > 0, margins, np.inf).min(axis=1)
        assert np.min((p @ v)[p @ v > 0]) == pytest.approx(least[best].max())


def test_users_with_broken_or_other_labels_contribute_nothing_and_are_not_named():
    cohort = users(labels=True)
    cohort.y[3, 4], cohort.y[5, 2] = np.nan, 0.5
    client = margin_client(cohort)
    assert np.flatnonzero(~client.cohort.y.any(axis=1)).tolist() == [3, 5]
    assert not client.seen.X[[3, 5]].any() and client.seen.X[4].any()


def test_sketched_examples_are_kept_and_predictors_live_in_all_dimensions():
    client = margin_client(users(labels=True))
    assert client.seen.X.shape == (30, 8, 4) and client.cohort.X.shape == (30, 8, 6)
    assert client.weights(client.cohort, [client.M.T @ np.eye(4)[:, :2]]).shape == (30, 6)
