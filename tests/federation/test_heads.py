"""Heads on a user's own disk: whole files or none, private, inside their folder for any name."""

from __future__ import annotations

import os

import numpy as np
import pytest

import privfed.foundation.atomic_files
from privfed.federation.head_store import HeadStore
from privfed.foundation.errors import ConfigError


def test_a_head_comes_back_as_it_was(tmp_path):
    store = HeadStore(tmp_path / "state", {4: "alice"})
    W = np.random.default_rng(0).standard_normal((2, 5))
    store.save(np.array([4, 5]), W)
    np.testing.assert_array_equal(HeadStore(tmp_path / "state", {4: "alice"}).load(4), W[0])
    np.testing.assert_array_equal(store.load(5), W[1])
    assert store.load(6) is None
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == [
        "alice.npz",
        "user-5.npz",
    ]


def test_only_the_owner_can_read_them_whatever_the_mask(tmp_path):
    before = os.umask(0)
    try:
        HeadStore(tmp_path / "state").save(np.array([0]), np.ones((1, 3)))
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state/user-0.npz").stat().st_mode & 0o777 == 0o600


def test_a_write_that_fails_leaves_the_last_head(tmp_path, monkeypatch):
    store = HeadStore(tmp_path / "state")
    store.save(np.array([0]), np.ones((1, 3)))

    def full(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(privfed.foundation.atomic_files.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        store.save(np.array([0]), np.zeros((1, 3)))
    np.testing.assert_array_equal(store.load(0), np.ones(3))
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["user-0.npz"]


@pytest.mark.parametrize("name", ["../alice", "/etc/alice", "a/b", "..", "alice\0", "ä ö"])
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    store = HeadStore(tmp_path / "state", {0: name})
    store.save(np.array([0]), np.ones((1, 3)))
    assert (
        store.path(0).resolve().parent == (tmp_path / "state").resolve() and store.path(0).exists()
    )


def test_a_folder_that_cannot_be_used_is_told_at_once(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file/deeper"):
        with pytest.raises(ConfigError, match="cannot keep heads there"):
            HeadStore(folder)

    def read_only(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(
        privfed.foundation.atomic_files.os, "open", read_only
    )  # root may write anywhere
    with pytest.raises(ConfigError, match="Permission denied"):
        HeadStore(tmp_path / "state")
