"""Probabilities of labels: the map's optimum, its limits, and that it never changes an answer."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from privfed.models import logistic_heads as heads


def made(classes, m=12, users=5, seed=0):
    rng = np.random.default_rng(seed)
    scores = 0.7 * rng.normal(size=(users, m, 1 if classes == 2 else classes))
    return scores, rng.integers(0, classes, (users, m)).astype(float)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_the_slope_is_the_penalised_optimum(classes):
    scores, y = made(classes)
    maps = heads.fit(scores, y, classes)
    ease = heads.ROWS / (12 + heads.ROWS)
    np.testing.assert_allclose(maps[:, 0], ease)
    for i in range(len(y)):
        z = heads.log_probabilities(scores[i], np.full((12, 1), ease), classes)

        def cost(b, z=z, i=i):
            P = heads.probabilities(b * z)[np.arange(12), y[i].astype(int)]
            return -np.log(P).sum() + (b - 1) ** 2 / (2 * heads.SLOPE**2)

        best = minimize_scalar(cost, bounds=(heads.LEAST, 5), method="bounded").x
        assert maps[i, 1] == pytest.approx(max(best, heads.LEAST), abs=1e-4)
        assert cost(maps[i, 1]) <= cost(1.0) + 1e-9, "never worse than without a map"


@pytest.mark.parametrize("classes", [2, 4])
def test_answers_stay_and_probabilities_add_up(classes):
    scores, y = made(classes, seed=1)
    maps = heads.fit(scores, y, classes)
    told = heads.logits(scores, maps[:, None], classes)
    P = heads.probabilities(told)
    np.testing.assert_allclose(P.sum(axis=-1), 1.0)
    if classes == 2:
        np.testing.assert_array_equal(told > 0, scores > 0)
    else:
        np.testing.assert_array_equal(told.argmax(axis=-1), scores.argmax(axis=-1))
    assert P.min() > 0.01, "a dozen rows make nobody certain"


def test_broken_scores_and_users_without_rows():
    scores, y = made(3)
    scores[0, 0], scores[1, 0] = np.nan, 1e300
    assert np.isfinite(heads.fit(scores, y, 3)).all()
    assert heads.identity(4, 0).shape == (4, 0)
    P = heads.probabilities(heads.logits(np.array([[9.0]]), heads.identity(1, 2), 2))
    np.testing.assert_allclose(P, [[heads.NO_ROWS / 2, 1 - heads.NO_ROWS / 2]], atol=1e-6)
