from __future__ import annotations

import numpy as np
import pytest
from support.sources import source

from privfed.config.composition import compose
from privfed.data.images.patterns import BLOCK, Patterns
from privfed.federation.client_factory import ClientFactory
from privfed.foundation.errors import ConfigError


def problem(**changes):
    settings = {
        "n": 100,
        "m": 12,
        "t": 5,
        "size": 8,
        "channels": 1,
        "classes": 10,
        "S": 3,
        "noise": 0.5,
        "shape": [1, 8, 8],
        "seed": 0,
    }
    return source(Patterns, **(settings | changes))


def test_a_user_is_the_same_whoever_makes_it_and_however_many_there_are():
    whole = problem().cohort(0, 100)
    for first, last in ((0, 1), (BLOCK - 2, BLOCK + 3), (99, 100), (5, 90), (4, 4)):
        part = problem().cohort(first, last)
        for mine, theirs in ((part, whole), (part.truth, whole.truth)):
            np.testing.assert_array_equal(mine.X, theirs.X[first:last])
            np.testing.assert_array_equal(mine.y, theirs.y[first:last])
    np.testing.assert_array_equal(problem(n=7).cohort(0, 7).X, whole.X[:7])
    assert not np.array_equal(problem(seed=1).cohort(0, 7).X, whole.X[:7])


def test_users_have_images_of_few_classes():
    data = problem()
    users = data.cohort(0, 100)
    assert (
        users.X.shape == (100, 12, 64)
        and users.X.dtype == np.uint8
        and users.truth.X.shape == (100, 5, 64)
    )
    assert users.y.dtype == np.float64 and users.y.min() == 0 and users.y.max() == 9
    for row, held_out in zip(users.y, users.truth.y, strict=True):
        assert len(set(row) | set(held_out)) <= 3
    counts = data.describe_split()
    np.testing.assert_array_equal(
        counts, [np.bincount(row.astype(int), minlength=10) for row in users.y]
    )
    fresh = data.validation()
    assert len(fresh) == 64 and not np.isin(fresh.X[:, 0, :4], users.X[:, 0, :4]).all(axis=1).all()


def test_images_are_shifted_patterns_with_noise():
    clean = problem(noise=0.0, channels=3, shape=[3, 8, 8])
    users, patterns = clean.cohort(0, 10), clean.prototypes()
    assert patterns.shape == (9, 10, 3, 8, 8)
    np.testing.assert_allclose(patterns.std(axis=(2, 3, 4)), 1.0)
    for image, label in zip(users.X.reshape(-1, 192), users.y.ravel(), strict=True):
        away = np.abs(np.clip(128 + 36 * patterns[:, int(label)].reshape(9, -1), 0, 255) - image)
        assert away.max(axis=1).min() <= 0.51
    noise = problem(noise=1.0).cohort(0, 100).X.astype(float) - problem(noise=0.0).cohort(0, 100).X
    assert noise.std() == pytest.approx(36, rel=0.1)


def test_classes_can_be_told_apart_and_together_better_than_alone():
    data = problem(n=400, m=20, t=10, noise=1.0)
    users = data.cohort(0, 400)
    X, T = users.X / 64.0 - 2, users.truth.X / 64.0 - 2
    shared = np.linalg.lstsq(
        X.reshape(-1, 64), np.eye(10)[users.y.ravel().astype(int)], rcond=None
    )[0]
    alone, together = [], []
    for i in range(100):
        mine = np.unique(users.y[i]).astype(int)
        means = np.stack([X[i][users.y[i] == c].mean(0) for c in mine])
        alone.append(mine[np.argmin(((T[i][:, None] - means) ** 2).sum(2), axis=1)])
        together.append(mine[np.argmax((T[i] @ shared)[:, mine], axis=1)])
    some = users.truth[:100]
    assert some.wrong(np.array(together)).mean() < 0.7 * some.wrong(np.array(alone)).mean() < 0.2


def test_the_config_resolves_to_numbers():
    cfg = compose(["data=patterns", "data.size=6", "data.channels=2", "model.k=1"])
    assert list(cfg.data.shape) == [2, 6, 6] and all(
        isinstance(size, int) for size in cfg.data.shape
    )
    data = ClientFactory.of(cfg).source
    assert (data.n, data.m, data.d, data.shape, data.classes) == (400, 20, 72, (2, 6, 6), 10)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n", 0),
        ("m", 0),
        ("t", 0),
        ("size", 1),
        ("channels", 0),
        ("classes", 1),
        ("S", 11),
        ("noise", -1.0),
        ("shape", [1, 9, 9]),
    ],
)
def test_impossible_problems_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"data.{key}"):
        problem(**{key: value})
