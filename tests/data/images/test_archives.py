"""Official file formats, on small files of the same form; and what is said about broken files."""

from __future__ import annotations

import gzip
import hashlib
import pickle

import numpy as np
import pytest

from privfed.data.images.archives import ARCHIVES, locate, read_labels, read_pixels
from privfed.data.images.file_formats import SUMS
from privfed.foundation.errors import ConfigError


def idx(array):
    sizes = np.array(array.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_idx(folder, train, test, packed=False, prefix="", held_out="t10k"):
    """Images (N, 28, 28) and labels (N,) of a training and a test set."""
    for part, (X, y) in (("train", train), (held_out, test)):
        for name, array in (("images-idx3", X), ("labels-idx1", y)):
            path = folder / f"{prefix}{part}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))


def images(count, shape=(28, 28), classes=10, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.permutation(count) % classes


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_packed_or_not(tmp_path, packed):
    train, test = images(30), images(12, seed=1)
    write_idx(tmp_path, train, test, packed)
    labels, pixels = read_labels("mnist", tmp_path), read_pixels("mnist", tmp_path)
    np.testing.assert_array_equal(labels.y, np.r_[train[1], test[1]])
    assert labels.train == 30 and labels.shape == (1, 28, 28) and labels.user is None
    places = np.array([41, 3, -1, 30, 3])
    expected = np.concatenate([train[0], test[0]]).reshape(42, -1)[places]
    expected[2] = 0
    np.testing.assert_array_equal(pixels.take(places), expected)


def test_emnist_is_turned_upright_and_its_letters_start_at_one(tmp_path):
    (X, y), test = images(26, classes=26), images(26, classes=26, seed=1)
    write_idx(
        tmp_path, (X, y + 1), (test[0], test[1] + 1), prefix="emnist-letters-", held_out="test"
    )
    np.testing.assert_array_equal(read_labels("emnist-letters", tmp_path).y[:26], y)
    taken = read_pixels("emnist-letters", tmp_path).take(np.arange(3)).reshape(3, 28, 28)
    np.testing.assert_array_equal(taken, X[:3].swapaxes(1, 2))


@pytest.mark.parametrize(("name", "header"), [("cifar10", 1), ("cifar100", 2)])
def test_cifar_records(tmp_path, name, header):
    archive, rng = ARCHIVES[name], np.random.default_rng(0)
    records = []
    for file in archive.files:
        record = rng.integers(0, 256, (20, header + 3072), dtype=np.uint8)
        record[:, 0], record[:, header - 1] = (
            7,
            rng.integers(0, archive.classes, 20),
        )  # coarse classes first, if there are any
        record.tofile(tmp_path / file)
        records.append(record)
    whole = np.concatenate(records)
    labels = read_labels(name, tmp_path)
    np.testing.assert_array_equal(labels.y, whole[:, header - 1])
    assert labels.train == len(whole) - 20 and labels.shape == (3, 32, 32)
    places = rng.permutation(len(whole))
    np.testing.assert_array_equal(read_pixels(name, tmp_path).take(places), whole[places, header:])


def test_femnist_knows_whose_an_image_is(tmp_path):
    X, y = images(10, classes=3)
    np.savez_compressed(tmp_path / "femnist.npz", x=X, y=y, user=np.array(list("bbaacabcab")))
    labels = read_labels("femnist", tmp_path)
    np.testing.assert_array_equal(labels.user, [1, 1, 0, 0, 2, 0, 1, 2, 0, 1])
    assert labels.shape == (1, 28, 28) and labels.train == 10
    np.testing.assert_array_equal(
        read_pixels("femnist", tmp_path).take(np.array([4])), X[4].reshape(1, -1)
    )


def test_missing_files_are_named_with_the_folder_and_what_to_do(tmp_path):
    write_idx(tmp_path, images(3), images(3))
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ConfigError) as refusal:
        locate("fashion_mnist", tmp_path)
    words = str(refusal.value)
    assert (
        str(tmp_path) in words
        and "t10k-labels-idx1-ubyte is missing" in words
        and "\n" not in words
    )
    assert "python scripts/fetch_data.py fashion_mnist" in words


def cut(content):
    return content[:-5]


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("train-images-idx3-ubyte", cut, "expected 23536 bytes for 30 x 28 x 28, found 23531"),
        (
            "train-images-idx3-ubyte",
            lambda _: b"",
            "expected an idx file that starts with 0 0 8 3, found nothing",
        ),
        (
            "train-labels-idx1-ubyte",
            lambda _: b"<html>no</html>",
            "starts with 0 0 8 1, found 60 104 116 109",
        ),
        (
            "train-labels-idx1-ubyte",
            lambda _: idx(np.arange(29) % 10),
            "expected 29 x 28 x 28 pixels, found 30 x 28 x 28",
        ),
        (
            "train-images-idx3-ubyte",
            lambda _: idx(np.zeros((30, 27, 28))),
            "expected 30 x 28 x 28 pixels, found 30 x 27 x 28",
        ),
        (
            "t10k-labels-idx1-ubyte",
            lambda _: idx(np.arange(12)),
            "expected labels from 0 to 9, found 0 to 11",
        ),
    ],
)
def test_damaged_idx_files(tmp_path, file, change, words):
    write_idx(tmp_path, images(30), images(12))
    (tmp_path / file).write_bytes(change((tmp_path / file).read_bytes()))
    with pytest.raises(ConfigError, match=words) as refusal:
        read_labels("mnist", tmp_path)
    assert str(tmp_path) in str(refusal.value) and "\n" not in str(refusal.value)


def test_damaged_packed_files_and_records(tmp_path):
    write_idx(tmp_path, images(30), images(12), packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(cut(path.read_bytes()))
    with pytest.raises(ConfigError, match=r"images-idx3-ubyte.gz: damaged.*expected gzip"):
        read_labels("mnist", tmp_path)
    (tmp_path / "train.bin").write_bytes(bytes(3074 * 4 - 1))
    (tmp_path / "test.bin").write_bytes(bytes(3074))
    with pytest.raises(
        ConfigError, match=r"train.bin: .*expected a multiple of 3074 bytes, found 12295"
    ):
        read_labels("cifar100", tmp_path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((4, 28, 28))}, "expected x of bytes"),
        ({"y": np.arange(3)}, "expected 4 labels"),
        ({"y": np.array([0, 1, -1, 2])}, "labels from 0 on"),
        ({"user": np.arange(3)}, "4 users"),
        ({"user": np.array(["a", None, {}, 3], dtype=object)}, "expected an npz file"),
        ({"user": None}, "arrays x, y and user"),
    ],
)
def test_damaged_npz_files(tmp_path, arrays, words):
    whole = {
        "x": np.zeros((4, 28, 28), dtype=np.uint8),
        "y": np.arange(4),
        "user": np.arange(4),
    } | arrays
    np.savez(
        tmp_path / "femnist.npz",
        **{key: value for key, value in whole.items() if value is not None},
    )
    with pytest.raises(ConfigError, match=words):
        read_labels("femnist", tmp_path)


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("unpickled",)


def test_nothing_is_ever_unpickled(tmp_path):
    (tmp_path / "femnist.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ConfigError, match=r"femnist.npz: .*expected an npz file"):
        read_labels("femnist", tmp_path)


def test_checksums_beside_the_data_are_compared(tmp_path):
    write_idx(tmp_path, images(30), images(12))
    path = tmp_path / "train-images-idx3-ubyte"
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / SUMS).write_text(f"{right}  {path.name}\n")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError) as refusal:
        read_pixels("mnist", tmp_path)
    assert f"{path}: damaged" in str(refusal.value)
    assert f"expected sha256 {right}, found {hashlib.sha256(content).hexdigest()}" in str(
        refusal.value
    )
    (tmp_path / SUMS).write_text("nonsense\n")
    with pytest.raises(ConfigError, match="a sha256 and a file name a line"):
        read_pixels("mnist", tmp_path)
