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


def test_features_by_name_or_as_asked_for(read):
    text = "b, a ,target\n1,2,3\n\n4,5e-1,-6\n"
    X, y = read(text, user="alice")["alice"]
    np.testing.assert_array_equal(X, [[2, 1], [0.5, 4]])
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
        ("user,a,target\nbob,1,2\n", "no rows of user 'alice'"),
    ],
)
def test_files_that_cannot_be_used(read, text, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        read(text, user="alice")
    assert "mine.csv" in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"1,2,3", "line 3 has 3 values, the header 2"),
        (b",3", "line 3, column 'a': ''"),
        (b"1,nan", "line 3, column 'target': 'nan'"),
        (b"inf,1", "'inf' is not a finite number"),
        (b"1e999,1", "'1e999' is not a finite number"),
        (b"\xff,1", "line 3, column 'a'"),
        (b"1,\0", "line 3, column 'target'"),
        (b'"1,2', "line 3"),
        (b'1"2,"3', "line 3"),
        (b"1" * 200_000 + b",1", "line 3"),
        (b"7" * 3_000_000, "line 3"),
    ],
)
def test_a_row_that_cannot_be_used_is_left_out_alone_and_its_owner_is_told(read, line, words):
    """Whatever one line holds, all other rows are the same, and nothing stops."""
    said = []
    X, y = read(b"a,target\n1,2\n" + line + b"\n3,4\n", user="alice", say=said.append)["alice"]
    np.testing.assert_array_equal(np.column_stack([X, y]), [[1, 2], [3, 4]])
    assert len(said) == 1 and words in said[0]


def test_a_user_all_of_whose_rows_are_left_out_is_still_there(read):
    assert read("a,target\n1,nan\n", user="alice")["alice"][0].shape == (0, 1)
    both = read("user,a,target\nbob,1,2\nzoe,x,2\n")
    assert both["bob"][0].shape == (1, 1) and both["zoe"][0].shape == (0, 1)


def test_several_users_need_a_column_that_says_whose_row_it_is(read):
    with pytest.raises(ConfigError, match="no column 'user'"):
        read("a,target\n1,2\n")


def test_columns_that_the_federation_expects(read):
    with pytest.raises(ConfigError, match="no column 'height'"):
        read("age,target\n1,2\n", features=["age", "height"], user="alice")
