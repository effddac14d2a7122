"""Metrics on held-out rows: against their definitions, and standard errors against repetition."""

from __future__ import annotations

import numpy as np
import pytest

from privfed.data.evaluation_metrics import HeldOut, mean_loss, paired, ranking


def rows(rng, users=40, labels=2):
    """Held-out rows of users who differ: labels follow scores that also have a user's part."""
    user = np.repeat(np.arange(users), rng.integers(1, 9, users))
    logits = rng.normal(size=(len(user), labels)) + rng.normal(size=(users, labels))[user]
    P = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = (rng.random(len(user))[:, None] > np.cumsum(P, axis=1)).sum(axis=1).astype(float)
    return HeldOut(user, y, P.argmax(axis=1).astype(float), P)


def test_labels_against_definitions():
    told = rows(np.random.default_rng(0))
    found = told.metrics()
    assert found["risk"].value == np.mean(told.answers != told.y)
    assert found["accuracy"].value == pytest.approx(1 - found["risk"].value)
    chosen = told.P[np.arange(len(told.y)), told.y.astype(int)]
    assert found["log_loss"].value == pytest.approx(-np.log(chosen).mean())
    ones, zeros = told.P[told.y == 1, 1], told.P[told.y == 0, 1]
    pairs = (ones[:, None] > zeros) + 0.5 * (ones[:, None] == zeros)
    assert found["auc"].value == pytest.approx(pairs.mean())
    ties = np.full_like(told.P, 0.5)
    assert ranking(ties, told.y, told.user).value == 0.5
    assert ranking(told.P, np.ones_like(told.y), told.user) is None
    assert 0.5 < rows(np.random.default_rng(1), labels=4).metrics()["auc"].value < 1


def test_numbers_against_definitions():
    rng = np.random.default_rng(0)
    y = rng.normal(size=50)
    told = HeldOut(np.arange(50) // 5, y, y + 0.1)
    found = told.metrics()
    assert found["mse"].value == pytest.approx(0.01) and found["mae"].value == pytest.approx(0.1)
    assert found["r2"].value == pytest.approx(1 - 0.01 / y.var())
    assert "r2" not in HeldOut(np.arange(3), np.ones(3), np.zeros(3)).metrics()
    assert HeldOut(np.arange(2), np.array([1e300, 0]), np.zeros(2)).metrics()["mse"].value <= 1e80


def test_standard_errors_are_those_of_repetitions_over_users():
    rng = np.random.default_rng(2)
    found = [rows(rng, 60).metrics() for _ in range(300)]
    for name in ("risk", "log_loss", "auc"):
        spread = np.std([f[name].value for f in found])
        told = np.mean([f[name].error for f in found])
        assert told == pytest.approx(spread, rel=0.15), name


def test_pairs_are_compared_user_by_user():
    user = np.arange(200) // 2
    rng = np.random.default_rng(3)
    hard = rng.exponential(size=100)[user]
    y = np.zeros(200)
    one = HeldOut(user, y, np.sqrt(hard))
    other = HeldOut(user, y, np.sqrt(hard + 0.1 + 0.01 * rng.normal(size=100)[user]))
    gap = paired(one, other)
    assert gap.value == pytest.approx(-0.1, abs=0.01) and gap.error < 0.01
    assert mean_loss(one.losses(), user).error > 10 * gap.error
    assert mean_loss(np.ones(3), np.zeros(3, dtype=np.int64)).error == 0.0
