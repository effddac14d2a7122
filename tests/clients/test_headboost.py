"""Boosting of a mean head: batched as one by one, length 1, and never worse than users alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from clients.headboost import left_out
from privfed.config.composition import compose
from privfed.data.cohort import Cohort
from privfed.experiment.wiring import Experiment
from privfed.federation.client_factory import ClientFactory
from privfed.foundation.errors import ConfigError
from privfed.models.procedural_images import scenes
from privfed.models.public_features import PublicFeatures
from privfed.privacy.clipping import Dense, norm

FACTORS = (0.5, 1, 2, 4, 8, 16)
SMALL = ("algo=headboost", "data.n=12", "data.m=8", "model.pictures=80", "model.k=20")


def client(*overrides):
    return ClientFactory.of(compose([*SMALL, *overrides]))(range(12))


def ridge(A, Y, strength):
    K = A @ A.T
    return A.T @ np.linalg.solve(K + strength * np.trace(K) / len(K) * np.eye(len(K)), Y)


def softmax(s):
    P = np.exp(s - s.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True)


def one_user(mine, i):
    """Centred features, one-hot labels among its own classes, these classes, and the mean."""
    y = mine.cohort.y[i].astype(int)
    phi = mine.model(mine.cohort.X[i]).astype(np.float64)
    own = np.unique(y)
    return phi - phi.mean(axis=0), (y[:, None] == own).astype(float), own, phi.mean(axis=0)


def naive_choice(mine, phi, hot, s):
    """The share of the mean head that one user trusts, with heads refitted without each picture."""
    count = len(phi)
    level = mine.local * np.sum(phi**2) / count

    def losses(a):
        R, scores = hot - softmax(a * s), np.empty_like(s)
        for j in range(count):
            rest = np.arange(count) != j
            K = phi[rest] @ phi[rest].T + level * np.eye(count - 1)
            scores[j] = a * s[j] + phi[j] @ phi[rest].T @ np.linalg.solve(K, R[rest])
        each = [logsumexp(f * scores, axis=1) - f * scores[hot > 0] for f in FACTORS]
        return min(each, key=np.sum)

    full, best, most = losses(1.0), 1.0, 0.0
    for a in (0.5, 0.25, 0.0):
        gain = full - losses(a)
        sure = gain.mean() - gain.std() / math.sqrt(count)
        if sure > most:
            best, most = a, sure
    return best


@pytest.mark.parametrize("size", [0.0, 3.0])
def test_messages_are_those_of_one_user_after_the_other_and_have_length_one(size):
    mine = client()
    M = size * np.random.default_rng(0).standard_normal((10, 20))
    sent = mine.residual_heads(mine.cohort, [M], {})
    for i in range(12):
        phi, hot, own, _ = one_user(mine, i)
        z = phi @ mine.model.coordinates
        head = np.zeros((10, 20))
        head[own] = ridge(z, hot - softmax((z @ M.T)[:, own]), mine.ridge).T
        np.testing.assert_allclose(sent[i], head / np.linalg.norm(head), rtol=1e-5, atol=1e-7)
        assert np.linalg.norm(sent[i]) == pytest.approx(1.0)


@pytest.mark.parametrize("size", [0.3, 3.0, 30.0])
def test_predictions_are_those_of_one_user_after_the_other(size):
    mine = client()
    M = size * np.random.default_rng(0).standard_normal((10, 20))
    M -= M.mean(axis=0)
    errors, alone = mine.own_errors(mine.cohort, [M]), mine.rival_errors(mine.cohort)["alone"]
    trusts = set()
    for i in range(12):
        phi, hot, own, mean = one_user(mine, i)
        test, truth = mine.model(mine.cohort.truth.X[i]) - mean, mine.cohort.truth.y[i]
        s, q = ((x @ mine.model.coordinates @ M.T)[:, own] for x in (phi, test))
        s, q = s - s.mean(axis=1, keepdims=True), q - q.mean(axis=1, keepdims=True)
        a = naive_choice(mine, phi, hot, s)
        trusts.add(a)
        scores = a * q + test @ ridge(phi, hot - softmax(a * s), mine.local)
        assert errors[i] == pytest.approx(np.mean(own[scores.argmax(axis=1)] != truth))
        scores = test @ ridge(phi, hot - 1 / len(own), mine.local)
        assert alone[i] == pytest.approx(np.mean(own[scores.argmax(axis=1)] != truth))
    assert len(trusts) > 1 or size < 1, "this start does not make users choose"


def test_left_out_scores_are_those_of_a_ridge_without_the_picture():
    mine = client()
    user = mine.users(mine.cohort)
    K = user.phi @ user.phi.transpose(0, 2, 1)
    fast = left_out(user, user.inverse(K, mine.local), np.zeros_like(user.Y))
    for i in (0, 7):
        level = mine.local * np.trace(K[i]) / 8
        for j in range(8):
            rest = np.arange(8) != j
            inner = K[i][np.ix_(rest, rest)] + level * np.eye(7)
            slow = K[i][j, rest] @ np.linalg.solve(inner, user.Y[i][rest])
            np.testing.assert_allclose(fast[i, j], slow, rtol=1e-6, atol=1e-9)


def test_no_user_sends_more_than_its_share_or_changes_what_others_send():
    mine = client()
    M = np.random.default_rng(0).standard_normal((10, 20))
    expected = mine.residual_heads(mine.cohort, [M], {})
    rng, X = np.random.default_rng(1), mine.cohort.X.astype(np.float64)
    strange = {
        "huge": X[3] * 1e300,
        "tiny": X[3] * 1e-310,
        "flat": np.full_like(X[3], 7.0),
        "the same": np.repeat(X[3][:1], len(X[3]), axis=0),
        "NaN": np.where(rng.random(X[3].shape) < 0.1, np.nan, X[3]),
    }
    for name, pixels in strange.items():
        for targets in (mine.cohort.y[3], np.full(8, 2.0), np.full(8, -1.0), np.full(8, np.nan)):
            changed, y = X.copy(), mine.cohort.y.copy()
            changed[3], y[3] = pixels, targets
            with np.errstate(all="ignore"):
                other = type(mine)(Cohort(mine.cohort.ids, changed, y), None, mine.model, 2.0, 0.5)
                sent = other.residual_heads(other.cohort, [M], {})
                others = [i for i in range(12) if i != 3]
                np.testing.assert_allclose(sent[others], expected[others], rtol=1e-9, err_msg=name)
                assert norm(Dense(sent[3:4]).clipped(1.0)[0]) <= 1, name


def run(*overrides):
    small = ("algo=headboost", "data.n=120", "model.pictures=200", "model.k=40")
    return Experiment(compose([*small, *overrides])).run().result


def test_boosting_beats_users_alone_and_a_ruined_mean_head_costs_them_nothing():
    noisy, private, exact = (run(f"eps={eps}") for eps in (0.05, 8, "inf"))
    alone = private["metrics"]["risk_standalone"]
    assert private["privacy"]["releases"] == 12
    assert exact["metrics"]["risk"] < private["metrics"]["risk"] < 0.9 * alone
    assert noisy["metrics"]["risk"] <= alone + 0.01


def test_the_step_follows_from_noise_alone_and_shrinks_with_it(monkeypatch):
    strategy = Experiment(compose(list(SMALL))).strategy
    steps = []
    for nu in (10.0, 100.0, 1000.0, 1e6):
        sigma = 2 * math.sqrt(12) / nu
        monkeypatch.setattr(strategy, "noise_std", lambda name, sigma=sigma: sigma)
        steps.append(strategy.step())
        noise = steps[-1] * math.sqrt(12) * sigma
        assert noise < 1.0, "scores have more noise than one unit of log-odds"
    assert steps == sorted(steps) and steps[0] < 0.05 and steps[-1] == 40.0
    monkeypatch.setattr(strategy, "noise_std", lambda name: 0.0)
    assert strategy.step() == 40.0


def test_coordinates_of_procedural_pictures_have_length_one_and_spread_evenly():
    weights = {"edges": 1.0, "fine_edges": 4.0, "pixels": 6.0}
    for whitening in (0.0, 0.25, 0.5):
        features = PublicFeatures([1, 16, 16], 10, 12, 1, 60, weights, whitening)
        pictures = (255 * scenes(60, (1, 16, 16))).astype(np.float64)
        z = features(pictures.reshape(60, -1)) @ features.coordinates
        spread = z.var(axis=0)
        assert spread.sum() == pytest.approx(1.0, rel=1e-3)
        if whitening == 0.5:
            np.testing.assert_allclose(spread, 1 / 12, rtol=1e-2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("model.weights.edges=-1", "at least 0"),
        ("model.weights={edges: 0, colours: 0, patches: 0, fine_edges: 0, pixels: 0}", "above 0"),
        ("model.weights.egdes=1", "egdes"),
        ("model.whitening=0.7", "between 0 and 0.5"),
        ("model.k=5000", "cannot be larger than the"),
        ("algo.local=0", "at least 1e-8"),
        ("rounds=0", "rounds"),
    ],
)
def test_mistakes_are_explained(wrong, words):
    with pytest.raises(ConfigError, match=words):
        Experiment(compose([*SMALL, wrong]))
