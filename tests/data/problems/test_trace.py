from __future__ import annotations

import numpy as np
import pytest
from support.sources import source

from privfed.data.problems import trace_regression
from privfed.foundation.errors import ConfigError


def problem(**changes):
    settings = {
        "n": 2500,
        "m": 2,
        "d1": 4,
        "d2": 3,
        "r": 2,
        "singular": None,
        "sigma": 0.1,
        "seed": 0,
    }
    return source(trace_regression.Trace, **(settings | changes))


@pytest.mark.parametrize("chunk", [trace_regression.CHUNK, 60])
def test_a_user_is_the_same_whoever_makes_it_and_however_many_there_are(monkeypatch, chunk):
    monkeypatch.setattr(trace_regression, "CHUNK", chunk)
    whole = problem().cohort(0, 2500)
    for first, last in ((0, 1), (1022, 1027), (2499, 2500)):
        part = problem().cohort(first, last)
        np.testing.assert_array_equal(part.X, whole.X[first:last])
        np.testing.assert_allclose(part.y, whole.y[first:last], rtol=1e-12)
    np.testing.assert_array_equal(problem(n=7).cohort(0, 7).X, whole.X[:7])


def test_labels_follow_a_matrix_of_the_rank_and_singular_values_asked_for():
    data = problem(d1=6, d2=5, singular=[2.0, 0.5])
    users = data.cohort(0, 2500)
    assert users.X.shape == (2500, 2, 30) and data.d == 30 and users.truth is None
    residual = users.y - np.einsum("nmab,ab->nm", users.X.reshape(2500, 2, 6, 5), data.M_star)
    assert residual.std() == pytest.approx(0.1, rel=0.05) and users.X.std() == pytest.approx(
        1, rel=0.01
    )
    np.testing.assert_allclose(
        np.linalg.svd(data.M_star, compute_uv=False), [2, 0.5, 0, 0, 0], atol=1e-12
    )
    np.testing.assert_allclose(problem(r=3).singular, [1.0, 0.85, 0.7])


def test_users_have_known_covariances_of_their_own():
    data = problem(n=3000, m=1, d1=2, d2=2, r=1, singular=None, C_l=0.5, C_u=2.0)
    users = data.cohort(0, 3000)
    scales = trace_regression.covariances(data.seed, users.identities, 4, 0.5, 2.0)
    assert scales.min() >= 0.5 and scales.max() <= 2 and len(np.unique(scales)) == scales.size
    assert np.std(users.X[:, 0] / np.sqrt(scales)) == pytest.approx(1, rel=0.03)
    L = np.mean(
        users.y[:, :, None] * trace_regression.whitened(users, data.seed, 0.5, 2.0), axis=(0, 1)
    )
    np.testing.assert_allclose(L.reshape(2, 2), data.M_star, atol=0.1)
    with pytest.raises(ConfigError, match="cannot be larger than"):
        problem(C_l=3.0)


def test_models_are_compared_with_the_truth():
    data = problem()
    U, S, Vt = np.linalg.svd(data.M_star, full_matrices=False)
    assert data.compare({"U": U, "S": S, "V": Vt.T}) == pytest.approx(
        {"frobenius": 0, "relative": 0, "spectral": 0, "nuclear": 0}, abs=1e-12
    )
    away = data.compare({"U": U, "S": 2 * S, "V": Vt.T})
    assert away["relative"] == pytest.approx(1) and away["frobenius"] == pytest.approx(
        np.linalg.norm(S)
    )
    assert away["spectral"] == pytest.approx(1) and away["nuclear"] == pytest.approx(1.7)
    assert data.compare({}) == {} == data.compare({"U": U})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n", 0),
        ("m", 0),
        ("d1", 1.5),
        ("d2", -1),
        ("r", 4),
        ("r", 0),
        ("sigma", -1),
        ("sigma", float("nan")),
        ("singular", [1.0]),
        ("singular", [1.0, 0.0]),
        ("singular", [1.0, "a"]),
        ("singular", 1.0),
        ("singular", "ab"),
    ],
)
def test_impossible_problems_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"data.{key}"):
        problem(**{key: value})
