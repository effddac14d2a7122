from __future__ import annotations

import numpy as np
import pytest
from support.sources import source

from privfed.data.problems.synthetic import FEATURES, Synthetic
from privfed.foundation.errors import ConfigError


def problem(**changes):
    return source(
        Synthetic,
        **(
            {
                "n": 2500,
                "m": 4,
                "d": 5,
                "k": 2,
                "R": 0.1,
                "features": "gaussian",
                "condition": 1.0,
                "seed": 0,
            }
            | changes
        ),
    )


@pytest.mark.parametrize("features", FEATURES)
def test_a_user_is_the_same_whoever_makes_it_and_however_many_there_are(features):
    whole = problem(features=features).cohort(0, 2500)
    for first, last in ((0, 1), (1022, 1027), (2499, 2500)):
        part = problem(features=features).cohort(first, last)
        np.testing.assert_array_equal(part.X, whole.X[first:last])
        np.testing.assert_array_equal(part.y, whole.y[first:last])
    fewer = problem(features=features, n=7).cohort(0, 7)
    np.testing.assert_array_equal(fewer.X, whole.X[:7])


@pytest.mark.parametrize("features", FEATURES)
def test_features_have_identity_covariance_so_the_closed_form_is_the_population_error(features):
    data = problem(features=features, m=40)
    users = data.cohort(0, 2500)
    rows = users.X.reshape(-1, 5)
    np.testing.assert_allclose(rows.mean(0), 0, atol=0.02)
    np.testing.assert_allclose(rows.T @ rows / len(rows), np.eye(5), atol=0.03)
    residual = users.y - np.einsum("nmd,nd->nm", users.X, users.truth.W_star)
    assert residual.std() == pytest.approx(0.1, rel=0.02)
    W = users.truth.W_star + 0.3
    predicted = np.mean((users.y - np.einsum("nmd,nd->nm", users.X, W)) ** 2)
    assert predicted == pytest.approx(
        np.mean(np.sum((W - users.truth.W_star) ** 2, 1)) + 0.01, rel=0.05
    )


def test_unit_heads_have_length_1_and_the_directions_of_normal_ones():
    V = problem().cohort(0, 50).truth.V_star
    unit = problem(unit_heads=True).cohort(0, 50).truth.V_star
    np.testing.assert_allclose(unit, V / np.linalg.norm(V, axis=1, keepdims=True))


def test_mixed_users_differ_in_kind():
    X = problem(features="mixed").cohort(0, 3).X
    assert set(np.abs(X[1]).ravel()) == {1.0}
    assert np.abs(X[2]).max() <= np.sqrt(3) and len(np.unique(X[0])) == 20


def test_condition_number_and_shared_representation():
    data = problem(condition=8.0, n=20000, k=3)
    W = data.cohort(0, 20000).truth.W_star
    values = np.linalg.svd(W, compute_uv=False)
    assert values[0] / values[2] == pytest.approx(8.0, rel=0.05) and values[3] < 1e-9 * values[0]


def test_validation_users_are_nobody_s_training_users():
    data = problem()
    assert not np.any(np.isin(data.validation(64).y, data.cohort(0, 2500).y))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n", 0),
        ("m", 0),
        ("d", -1),
        ("k", 6),
        ("k", 1.5),
        ("R", -1.0),
        ("R", float("nan")),
        ("condition", 0.5),
        ("features", "gausian"),
    ],
)
def test_impossible_problems_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"data.{key}"):
        problem(**{key: value})
