from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kstest
from support.sources import source

from privfed.data.problems.margin import BLOCK, Margin, sphere_cdf
from privfed.foundation.errors import ConfigError


def problem(**changes):
    settings = {
        "n": 200,
        "m": 6,
        "d": 9,
        "k": 2,
        "margin": 0.2,
        "strength": 0.6,
        "label_noise": 0.0,
        "seed": 0,
    }
    return source(Margin, **(settings | changes))


def test_a_user_is_the_same_whoever_makes_it_and_however_many_there_are():
    whole = problem().cohort(0, 200)
    for first, last in ((0, 1), (BLOCK - 2, BLOCK + 3), (199, 200), (5, 150)):
        part = problem().cohort(first, last)
        np.testing.assert_array_equal(part.X, whole.X[first:last])
        np.testing.assert_array_equal(part.y, whole.y[first:last])
        np.testing.assert_array_equal(part.truth.V_star, whole.truth.V_star[first:last])
    np.testing.assert_array_equal(problem(n=7).cohort(0, 7).X, whole.X[:7])
    assert not np.isin(problem().validation(64).X[:, 0, 0], whole.X[:, 0, 0]).any()


@pytest.mark.parametrize(
    "shape",
    [{}, {"k": 1}, {"k": 3}, {"d": 2}, {"d": 3}, {"d": 500}, {"strength": 1.0}, {"d": 1, "k": 1}],
)
def test_examples_lie_in_the_unit_ball_and_keep_the_margin(shape):
    users = problem(**shape).cohort(0, 100)
    assert (
        users.X.dtype == np.float32 and np.linalg.norm(users.X.astype(float), axis=2).max() <= 1.0
    )
    margins = users.y * np.einsum("nmd,nd->nm", users.X.astype(float), users.truth.W_star)
    assert margins.min() >= 0.2
    np.testing.assert_allclose(np.linalg.norm(users.truth.W_star, axis=1), 1.0)
    np.testing.assert_allclose(users.truth.errors(users.truth.W_star), 0.0, atol=1e-12)
    np.testing.assert_allclose(users.truth.errors(-users.truth.W_star), 1.0, atol=1e-12)


def test_the_subspace_part_does_not_depend_on_the_dimension():
    for d in (5, 50, 2000):
        users = problem(d=d).cohort(0, 20)
        inside = np.linalg.norm(users.X.astype(float) @ users.truth.U_star, axis=2)
        np.testing.assert_allclose(inside, 0.6, rtol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(users.X, axis=2), 1.0, rtol=1e-4)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize(("d", "noise"), [(4, 0.0), (30, 0.2)])
def test_the_risk_is_that_of_examples_drawn_in_all_dimensions(k, d, noise):
    """Predictors between truth and nonsense, judged by 20000 examples per user in d dimensions."""
    data = problem(n=4, m=20_000, d=d, k=k, label_noise=noise)
    users = data.cohort(0, 4)
    rng = np.random.default_rng(1)
    for size in (0.0, 0.3, 2.0):
        W = users.truth.W_star + size * rng.standard_normal((4, d))
        wrong = np.mean(users.y * np.einsum("nmd,nd->nm", users.X.astype(float), W) <= 0, axis=1)
        np.testing.assert_allclose(users.truth.errors(W), wrong, atol=0.02)
        np.testing.assert_allclose(users.truth.errors(5 * W), users.truth.errors(W), atol=1e-9)


@pytest.mark.parametrize("D", [1, 2, 3, 10])
def test_a_coordinate_of_the_sphere_has_the_stated_law(D):
    g = np.random.default_rng(0).standard_normal((20_000, D))
    c = g[:, 0] / np.linalg.norm(g, axis=1)
    if D == 1:
        np.testing.assert_array_equal(
            sphere_cdf(np.array([-1.1, -1.0, 0.0, 1.0]), 1), [0, 0.5, 0.5, 1]
        )
    else:
        assert kstest(c, lambda x: sphere_cdf(x, D)).pvalue > 0.001
    np.testing.assert_array_equal(sphere_cdf(np.array([-np.inf, np.inf]), D), [0, 1])


def test_labels_are_flipped_as_often_as_asked_and_predicting_nothing_is_wrong():
    users = problem(label_noise=0.25, n=2000).cohort(0, 2000)
    flipped = users.y * np.einsum("nmd,nd->nm", users.X, users.truth.W_star.astype(np.float32)) < 0
    assert flipped.mean() == pytest.approx(0.25, abs=0.015)
    np.testing.assert_array_equal(users.truth.errors(np.zeros((2000, 9))), 1.0)
    assert users.truth[:3].errors(users.truth.W_star[:3]) == pytest.approx([0.25] * 3)


def test_a_distance_is_told_of_orthonormal_representations_only():
    data = problem()
    assert data.compare({"U": data.U_star @ np.array([[0.0, 1.0], [-1.0, 0.0]])})["dist"] < 1e-9
    assert data.compare({"U": 3 * data.U_star}) == data.compare({}) == {}


@pytest.mark.parametrize("algo", ["standalone", "oracle", "fedrep"])
def test_other_algorithms_run_on_it(run, algo):
    metrics = run(f"algo={algo}", "data=margin", "data.m=12").result["metrics"]
    assert metrics["risk_oracle"] < 0.1 and 0 <= metrics["risk"] <= 0.6
    assert metrics["accuracy"] == pytest.approx(1 - metrics["risk"])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n", 0),
        ("k", 10),
        ("margin", 0.6),
        ("margin", -0.1),
        ("strength", 1.1),
        ("label_noise", 0.5),
    ],
)
def test_impossible_problems_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"data.{key}"):
        problem(**{key: value})
