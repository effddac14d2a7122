"""Heads on public features: batched as one by one, norm at most 1, better together than alone."""

from __future__ import annotations

import numpy as np
import pytest

from privfed.config.composition import compose
from privfed.data.cohort import Cohort
from privfed.experiment.wiring import Experiment
from privfed.federation.client_factory import ClientFactory
from privfed.foundation.errors import ConfigError
from privfed.models.procedural_images import scenes
from privfed.models.public_features import PublicFeatures
from privfed.privacy.clipping import Dense, norm

WEIGHTS = {"edges": 2.0, "colours": 2.0, "patches": 6.0}
SMALL = (
    "algo=headmean",
    "data.n=12",
    "data.m=8",
    "model.pictures=80",
    "model.patches=16",
    "model.k=20",
)


def client(*overrides):
    return ClientFactory.of(compose([*SMALL, *overrides]))(range(12))


def ridge(A, Y, strength):
    K = A @ A.T
    return A.T @ np.linalg.solve(K + strength * np.trace(K) / len(K) * np.eye(len(K)), Y)


def naive_user(mine, i):
    """Centred features, targets and classes of one user."""
    y = mine.cohort.y[i].astype(int)
    phi = mine.model(mine.cohort.X[i]).astype(np.float64)
    own = np.unique(y)
    Y = np.zeros((len(y), mine.model.classes))
    Y[:, own] = (y[:, None] == own) - 1 / len(own)
    return phi - phi.mean(axis=0), Y, own, phi.mean(axis=0)


def test_heads_are_those_of_one_user_after_the_other():
    mine = client()
    sent = mine.heads(mine.cohort, [], {})
    for i in range(12):
        phi, Y, _, _ = naive_user(mine, i)
        head = ridge(phi @ mine.model.basis, Y, mine.ridge).T
        np.testing.assert_allclose(sent[i], head / np.linalg.norm(head), rtol=1e-5, atol=1e-7)


def test_predictions_are_those_of_one_user_after_the_other():
    mine = client()
    M = np.random.default_rng(0).standard_normal((10, 20))
    errors, alone = mine.own_errors(mine.cohort, [M]), mine.rival_errors(mine.cohort)["alone"]
    for i in range(12):
        phi, Y, own, mean = naive_user(mine, i)
        test, truth = mine.model(mine.cohort.truth.X[i]) - mean, mine.cohort.truth.y[i]
        s, q = ((x @ mine.model.basis @ M.T)[:, own] for x in (phi, test))
        s, q = s - s.mean(axis=1, keepdims=True), q - q.mean(axis=1, keepdims=True)
        a = np.sum(s * Y[:, own]) / np.sum(s * s)
        scores = a * q + test @ ridge(phi, Y[:, own] - a * s, mine.local)
        assert errors[i] == pytest.approx(np.mean(own[scores.argmax(axis=1)] != truth))
        scores = test @ ridge(phi, Y[:, own], mine.alone)
        assert alone[i] == pytest.approx(np.mean(own[scores.argmax(axis=1)] != truth))


def test_no_user_sends_more_than_its_share_or_changes_what_others_send():
    mine = client()
    expected = mine.heads(mine.cohort, [], {})
    rng, X = np.random.default_rng(1), mine.cohort.X.astype(np.float64)
    strange = {
        "huge": X[3] * 1e300,
        "tiny": X[3] * 1e-310,
        "flat": np.full_like(X[3], 7.0),
        "zero": np.zeros_like(X[3]),
        "the same": np.repeat(X[3][:1], len(X[3]), axis=0),
        "NaN": np.where(rng.random(X[3].shape) < 0.1, np.nan, X[3]),
    }
    for name, pixels in strange.items():
        for targets in (
            mine.cohort.y[3],
            np.full(8, 2.0),
            np.full(8, -1.0),
            np.full(8, 0.5),
            np.full(8, np.nan),
        ):
            changed, y = X.copy(), mine.cohort.y.copy()
            changed[3], y[3] = pixels, targets
            with np.errstate(all="ignore"):
                other = type(mine)(
                    Cohort(mine.cohort.ids, changed, y), None, mine.model, 1.0, 2.0, 1.0
                )
                sent = other.heads(other.cohort, [], {})
                others = [i for i in range(12) if i != 3]
                np.testing.assert_allclose(sent[others], expected[others], rtol=1e-9, err_msg=name)
                assert norm(Dense(sent[3:4]).clipped(1.0)[0]) <= 1, name


def test_together_is_better_than_alone_and_users_alone_are_the_same():
    run = (
        Experiment(compose(["algo=headmean", "eps=8", "data.n=200", "model.pictures=200"]))
        .run()
        .result
    )
    assert (
        run["metrics"]["risk"] < 0.8 * run["metrics"]["risk_standalone"]
        and run["privacy"]["releases"] == 1
    )
    alone = (
        Experiment(
            compose(
                ["algo=features/standalone", "model=features", "data.n=200", "model.pictures=200"]
            )
        )
        .run()
        .result
    )
    assert (
        alone["metrics"]["risk"] == pytest.approx(run["metrics"]["risk_standalone"])
        and alone["privacy"]["releases"] == 0
    )


def test_features_are_public_and_do_not_know_left_from_right():
    pictures = (255 * scenes(6, (3, 12, 12))).astype(np.uint8)
    features = PublicFeatures([3, 12, 12], 10, 5, 8, 40, WEIGHTS)
    described = features(pictures.reshape(6, -1))
    assert described.shape == (6, len(features.basis)) and np.isfinite(described).all()
    mirrored = features(np.ascontiguousarray(pictures[..., ::-1]).reshape(6, -1))
    np.testing.assert_allclose(described, mirrored, atol=1e-5)
    np.testing.assert_allclose(features.basis.T @ features.basis, np.eye(5), atol=1e-5)
    again = PublicFeatures([3, 12, 12], 10, 5, 8, 40, WEIGHTS)
    assert (
        again.basis is features.basis
        and (scenes(6, (3, 12, 12)) == scenes.__wrapped__(6, (3, 12, 12))).all()
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("model.k=5000", "cannot be larger than the"),
        ("model.weights=3", "give a weight for each of edges"),
        ("model.patches=0", "whole number"),
        ("algo.ridge=1e-20", "at least 1e-8"),
        ("rounds=2", "one release"),
        ("data.size=6", "too small"),
        ("data=synthetic", "classifies pictures"),
    ],
)
def test_mistakes_are_explained(wrong, words):
    with pytest.raises(ConfigError, match=words):
        Experiment(
            compose(
                [
                    *(
                        s
                        for s in SMALL
                        if wrong.partition("=")[0] != s.partition("=")[0] and "data." not in s
                    ),
                    wrong,
                ]
            )
        )
