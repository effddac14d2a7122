"""Users' own rows: what is read, in which order, and what is said about unusable files."""

from __future__ import annotations

import numpy as np
import pytest

from privfed.data.tables.client_rows import read_own_rows
from privfed.foundation.errors import ConfigError


@pytest.fixture
def read(tmp_path):
    def read(text, target="target", **more):
        path = tmp_path / "mine.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_own_rows(path, target, **more)

    return read


def test_features_in_the_files_order_or_as_asked_for(read):
    text = "b, a ,target\n1,2,3\n\n4,5e-1,-6\n"
    X, y = read(text, user="alice")["alice"]
    np.testing.assert_array_equal(X, [[1, 2], [4, 0.5]])
    np.testing.assert_array_equal(y, [3, -6])
    np.testing.assert_array_equal(
        read(text, user="alice", features=["a"])["alice"][0], [[2], [0.5]]
    )
    np.testing.assert_array_equal(read(text, target="a", user="alice")["alice"][1], [2, 0.5])


def test_one_users_rows_or_everybodys_by_name(read):
    text = "user,a,target\nzoe,1,2\nbob,3,4\nzoe,5,6\n"
    everybody = read(text)
    assert list(everybody) == ["bob", "zoe"]
    np.testing.assert_array_equal(everybody["zoe"][0], [[1], [5]])
    assert list(read(text, user="zoe")) == ["zoe"]


def test_other_peoples_numbers_are_not_looked_at(read):
    assert list(read("user,a,target\nzoe,secret,2\nbob,3,4\n", user="bob")) == ["bob"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("a,target\n", "has no rows"),
        ("a,b\n1,2\n", "no column 'target'"),
        ("a,Target\n1,2\n", "did you mean 'Target'"),
        ("a,a,target\n1,1,2\n", "appears twice"),
        ("a,target\n1,2,3\n", "line 2 has 3 values, the header 2"),
        ("a,target\n1,2\n\n,3\n", "line 4, column 'a': ''"),
        ("a,target\n1,nan\n", "line 2, column 'target': 'nan'"),
        ("a,target\ninf,1\n", "'inf' is not a finite number"),
        ("a,target\n1e999,1\n", "'1e999' is not a finite number"),
        ("user,a,target\nbob,1,2\n", "no rows of user 'alice'"),
        (b"a,target\n\xff,1\n", "cannot be read"),
        (b"a,target\n1,\0\n", "line|NUL"),
    ],
)
def test_files_that_cannot_be_used(read, text, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        read(text, user="alice")
    assert "mine.csv" in str(refusal.value) and "\n" not in str(refusal.value)


def test_several_users_need_a_column_that_says_whose_row_it_is(read):
    with pytest.raises(ConfigError, match="no column 'user'"):
        read("a,target\n1,2\n")


def test_columns_that_the_federation_expects(read):
    with pytest.raises(ConfigError, match="no column 'height'"):
        read("age,target\n1,2\n", features=["age", "height"], user="alice")
