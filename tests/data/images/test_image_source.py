"""Users with images: the same for every node, with held-out images and fresh users to validate."""

from __future__ import annotations

import numpy as np
import pytest
from support.sources import source
from test_archives import images, write_idx

from privfed.config.composition import compose
from privfed.data.images.image_source import HeldOut, Images
from privfed.data.images.train_test_split import SPLITS
from privfed.federation.client_factory import ClientFactory
from privfed.foundation.errors import ConfigError

WHOLE = [name for name in SPLITS if name != "natural"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """2000 training and 500 test images: two pixels with their number, a third with their class."""
    folder = tmp_path_factory.mktemp("mnist")
    sets = []
    for count, seed in ((2000, 0), (500, 1)):
        X, y = images(count, seed=seed)
        X[:, 0, 0], X[:, 0, 1], X[:, 0, 2] = (
            np.arange(count) // 256 + 10 * seed,
            np.arange(count) % 256,
            y,
        )
        sets.append((X, y))
    write_idx(folder, *sets)
    return folder


@pytest.fixture(scope="module")
def writers(tmp_path_factory):
    """40 writers with 3 to 42 images, one with 2."""
    folder = tmp_path_factory.mktemp("femnist")
    user = np.random.default_rng(0).permutation(
        np.r_[np.repeat(np.arange(40), np.arange(40) + 3), 40, 40]
    )
    X, y = images(len(user), classes=62)
    X[:, 0, 0], X[:, 0, 1], X[:, 0, 3] = (
        np.arange(len(user)) // 256,
        np.arange(len(user)) % 256,
        user,
    )
    np.savez(folder / "femnist.npz", x=X, y=y, user=user)
    return folder


def make(folder, **changes):
    settings = {
        "name": "mnist",
        "path": str(folder),
        "n": 50,
        "m": None,
        "split": "classes",
        "S": 5,
        "alpha": 0.5,
        "validation": 0.1,
        "shape": [1, 28, 28],
        "classes": 10,
        "seed": 0,
    }
    return source(Images, **(settings | changes))


def natural(folder, **changes):
    return make(
        folder, **({"name": "femnist", "split": "natural", "n": None, "classes": 62} | changes)
    )


def numbers(X, y):
    """Which images these are, of those that are there."""
    return (X[..., 0].astype(int) * 256 + X[..., 1])[y >= 0]


@pytest.mark.parametrize("split", WHOLE)
def test_what_users_have(folder, split):
    data = make(folder, split=split)
    users, fresh = data.cohort(0, 50), data.validation()
    assert (
        users.X.dtype == np.uint8
        and users.X.shape == (50, data.m, 784)
        and data.d == 784
        and data.n == 50
    )
    np.testing.assert_array_equal(users.ids, np.arange(50))
    assert fresh.X.shape[1:] == users.X.shape[1:] and len(fresh) >= 1
    seen = []
    for cohort in (users, fresh):
        for X, y in ((cohort.X, cohort.y), (cohort.truth.X, cohort.truth.y)):
            assert y.dtype == np.float64 and X.dtype == np.uint8
            np.testing.assert_array_equal(
                X[..., 2], np.where(y < 0, 0, y)
            )  # labels belong to their images
            assert not X[y < 0].any()
            seen.append(numbers(X, y))
        assert np.sum(cohort.y >= 0, 1).min() >= 2 and np.sum(cohort.truth.y >= 0, 1).min() >= 1
    everything = np.concatenate(seen)
    assert len(np.unique(everything)) == len(
        everything
    )  # nobody shares an image, whether to train or to test
    official = [ids >= 2560 for ids in seen]
    assert official[1].all() and not any(
        part.any() for part in (official[0], official[2], official[3])
    )
    counts = data.describe_split()
    assert counts.shape == (50, 10) and counts.sum() == len(seen[0])


def test_equal_shares_of_s_classes(folder):
    data = make(folder)
    users = data.cohort(0, 50)
    assert data.m == 35 and users.truth.y.shape == (
        50,
        10,
    )  # 1800 / 50 = 36 makes shards of 7; 500 / 50
    for row, held_out in zip(users.y, users.truth.y, strict=True):
        np.testing.assert_array_equal(np.unique(row, return_counts=True)[1], [7] * 5)
        np.testing.assert_array_equal(np.unique(held_out), np.unique(row))
    fresh = data.validation()
    assert len(fresh) == 4 and fresh.truth.y.shape == (4, 10)  # 200 images, 45 a user
    for row, held_out in zip(fresh.y, fresh.truth.y, strict=True):
        np.testing.assert_array_equal(np.unique(row, return_counts=True)[1], [7] * 5)
        np.testing.assert_array_equal(np.unique(held_out, return_counts=True)[1], [2] * 5)


@pytest.mark.parametrize("split", SPLITS)
def test_a_user_is_the_same_whoever_makes_it(folder, writers, split):
    def source(**more):
        return (
            natural(writers, n=30, **more)
            if split == "natural"
            else make(folder, split=split, **more)
        )

    whole = source().cohort(0, 30)
    for first, last in ((0, 1), (7, 19), (29, 30), (5, 5)):
        part = source().cohort(first, last)
        for mine, theirs in ((part, whole), (part.truth, whole.truth)):
            np.testing.assert_array_equal(mine.X, theirs.X[first:last])
            np.testing.assert_array_equal(mine.y, theirs.y[first:last])
        np.testing.assert_array_equal(part.ids, np.arange(first, last))
    assert not np.array_equal(source(seed=1).cohort(0, 30).y[:, :2], whole.y[:, :2])


def test_writers_are_users(writers):
    data = natural(writers)
    users, fresh = data.cohort(0, data.n), data.validation()
    assert (data.n, len(fresh)) == (36, 4)  # the writer of two images has too few
    names = []
    for cohort in (users, fresh):
        for row in range(len(cohort)):
            mine = np.r_[
                cohort.X[row][cohort.y[row] >= 0], cohort.truth.X[row][cohort.truth.y[row] >= 0]
            ][:, 3]
            assert len(set(mine)) == 1
            names.append(mine[0])
            if cohort is users:
                size = mine[0] + 3
                assert len(mine) == size and np.sum(cohort.truth.y[row] >= 0) == max(
                    1, round(0.2 * size)
                )
    assert sorted(names) == list(range(40))
    few = natural(writers, n=10, m=6)
    assert (
        few.m == 6
        and few.cohort(0, 10).X.shape == (10, 6, 784)
        and few.validation().X.shape[1] == 6
    )
    np.testing.assert_array_equal(few.cohort(0, 10).truth.y[:, 0], users.truth.y[:10, 0])
    assert make(writers, name="femnist", classes=62, n=30, split="iid").cohort(
        0, 30
    ).truth.y.shape == (30, 6)


def test_wrong_counts_the_images_that_are_there():
    held_out = HeldOut(
        np.zeros((3, 4, 2), dtype=np.uint8),
        np.array([[1, 2, 3, 4], [0, 1, -1, -1], [5, -1, -1, -1.0]]),
    )
    np.testing.assert_array_equal(
        held_out.wrong(np.array([[1, 2, 0, 0], [0, 1, 9, 9], [4, 5, -1, -1]])), [0.5, 0, 1]
    )
    assert held_out[1:].y.shape == (2, 4) and held_out[np.array([2])].X.shape == (1, 4, 2)


def test_m_limits_the_images_of_a_user(folder):
    assert make(folder, m=10).cohort(0, 2).X.shape == (2, 10, 784)
    assert make(folder, m=10, split="dirichlet").m == 10
    with pytest.raises(ConfigError, match=r"data.m=40: .*at most 35"):
        _ = make(folder, m=40).m


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("name", "minst", "did you mean 'mnist'"),
        ("split", "dirichelt", "did you mean 'dirichlet'"),
        ("split", "natural", "does not say whose"),
        ("n", 0, "at least 1"),
        ("n", None, "at least 1"),
        ("m", 0, "at least 1"),
        ("S", 11, "between 1 and the number of classes, 10"),
        ("S", 0, "between 1"),
        ("alpha", 0, "positive"),
        ("alpha", -1.0, "positive"),
        ("validation", 0.0, "between 0.01 and 0.5"),
        ("validation", 0.6, "between 0.01 and 0.5"),
        ("shape", [1, 32, 32], "images of mnist are 1 x 28 x 28"),
        ("shape", [28, 28], "channels, rows, columns"),
        ("shape", "28", "channels, rows, columns"),
        ("classes", 47, "mnist has 10"),
        (
            "path",
            "/nonexistent",
            "train-images-idx3-ubyte is missing; get it with python scripts/fetch_data.py mnist",
        ),
    ],
)
def test_bad_settings_are_refused_before_anything_is_read(folder, key, value, words):
    with pytest.raises(ConfigError, match=f"data.{key}=.*{words}") as refusal:
        make(folder, **{key: value})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n": 400}, "data.n=400: too many users"),
        ({"n": 501, "split": "iid"}, "data.n=501: too many users"),
        (
            {"n": 5, "validation": 0.01},
            "data.validation=0.01: 20 images are too few for a fresh user with 330 training",
        ),
        ({"n": 901, "split": "quantity"}, "data.n=901: too many users"),
    ],
)
def test_deals_that_are_impossible(folder, changes, words):
    with pytest.raises(ConfigError, match=words):
        _ = make(folder, **changes).m


def test_settings_that_disagree_with_the_users_own_file(writers):
    for key, value, words in (
        ("n", 37, "36 writers"),
        ("shape", [3, 28, 28], "are 1 x 28 x 28"),
        ("classes", 60, "up to 61"),
    ):
        with pytest.raises(ConfigError, match=f"data.{key}=.*{words}"):
            _ = natural(writers, **{key: value}).m


@pytest.mark.parametrize(
    "name", ["cifar10", "cifar100", "mnist", "fashion_mnist", "emnist", "femnist"]
)
def test_configs_say_where_data_are_expected(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVFED_DATA", str(tmp_path))
    factory = ClientFactory.of(compose([f"data={name}", "model.k=1"]))
    with pytest.raises(
        ConfigError, match=f"data.path={tmp_path / name}: .* is missing; .*fetch_data.py {name}"
    ):
        _ = factory.source
    monkeypatch.delenv("PRIVFED_DATA")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"data.path={tmp_path / 'data' / name}: "):
        _ = factory.source


def test_a_config_makes_users(folder):
    data = ClientFactory.of(
        compose(["data=mnist", f"data.path={folder}", "data.n=50", "model.k=1"])
    ).source
    assert (
        data.cohort(3, 5).X.shape == (2, data.m, 784)
        and data.shape == (1, 28, 28)
        and data.compare({}) == {}
    )
