"""A user's own table: which rows train, which judge, and what that may depend on."""

from __future__ import annotations

import os

import numpy as np
import pytest
import yaml
from support.sources import source
from support.tables import write

from privfed.config.option_groups import CONF
from privfed.data.row_order import lots
from privfed.data.tables.options import Options
from privfed.data.tables.table_source import Table
from privfed.foundation.errors import ConfigError

DEFAULTS = yaml.safe_load((CONF / "data/table.yaml").read_text())
del DEFAULTS["_target_"]


@pytest.fixture
def table(tmp_path):
    """A table whose targets say whose row it is and which: 1000 i + j.

    Users have these numbers of rows.
    """

    def table(
        sizes=(1, 4, 5, 12), order=None, name="mine.csv", times=None, path=None, seed=0, **settings
    ) -> Table:
        if path is None:
            when = times or (lambda i, j: j)
            places = [(i, j) for i, m in enumerate(sizes) for j in range(m)]
            lines = [[f"u{i:04}", 1000 * i + j, when(i, j), (i + j) % 7 + 0.5] for i, j in places]
            lines = lines if order is None else [lines[i] for i in order(len(lines))]
            path = write(tmp_path / name, ["user", "y", "when", "a"], lines)
        given = {"ignore": ["when"]} | settings | {"path": str(path)}
        return source(Table, seed, **DEFAULTS | given)

    return table


def rows(cohort, i):
    """Rows that train and judge the i-th user."""
    return (
        cohort.rows.y[cohort.starts[i] : cohort.starts[i + 1]].tolist(),
        cohort.held.y[cohort.held_starts[i] : cohort.held_starts[i + 1]].tolist(),
    )


def all_rows(data):
    cohort = data.cohort(0, data.n)
    return [rows(cohort, i) for i in range(data.n)]


def test_a_fifth_of_each_users_rows_judges_and_the_others_train(table):
    for i, (train, held) in enumerate(all_rows(table())):
        m = (1, 4, 5, 12)[i]
        assert len(held) == (0, 1, 1, 2)[i] and sorted(train + held) == [
            1000 * i + j for j in range(m)
        ]


def test_the_last_rows_in_time_judge_wherever_they_stand_in_the_file(table):
    shuffled = {
        "order": lambda n: np.random.default_rng(0).permutation(n),
        "times": lambda i, j: f"2024-01-{28 - j:02}",
    }
    for i, (train, held) in enumerate(all_rows(table(time="when", ignore=[], **shuffled))):
        m, some = (1, 4, 5, 12)[i], (0, 1, 1, 2)[i]
        assert held == [1000 * i + j for j in range(some)][::-1] and sorted(train) == [
            1000 * i + j for j in range(some, m)
        ]


def test_random_rows_depend_on_the_seed_and_on_nothing_else(table, tmp_path):
    one, other, again = (
        table(sizes=(50, 50)),
        table(seed=1, sizes=(50, 50)),
        table(sizes=(50, 50), name="copy.csv"),
    )
    assert all_rows(one) == all_rows(again) != all_rows(other)
    held = all_rows(one)[0][1]
    assert held != sorted(held) and max(held) - min(held) > 20
    assert [y - 1000 for y in all_rows(one)[1][1]] != held, "two users have different places"


@pytest.mark.parametrize("settings", [{}, {"evaluate": False, "most_rows": 5}, {"most_rows": 3}])
def test_one_users_rows_do_not_decide_which_of_anothers_are_used(table, settings):
    """Otherwise replacing one user would move the contributions of all who have too many rows."""
    few, many = (
        table(**settings, sizes=(3, 9, 40)),
        table(**settings, sizes=(11, 9, 40), name="other.csv"),
    )
    assert all_rows(few)[1:] == all_rows(many)[1:]
    mixed = table(
        **settings, sizes=(11, 9, 40), name="mixed.csv", order=lambda n: [*range(20, n), *range(20)]
    )
    assert all_rows(mixed) == all_rows(many), "nor where they stand in the file"


def test_lots_are_even_and_unrelated():
    who, place = np.repeat(np.arange(300, dtype=np.uint64), 100), np.tile(np.arange(100), 300)
    u = (lots(0, who, place) / 2.0**64).reshape(300, 100)
    assert abs(u.mean() - 0.5) < 0.01 and abs(u.std() - 12**-0.5) < 0.01
    for a, b in (
        (u[:, 1:], u[:, :-1]),
        (u[1:], u[:-1]),
        (u, (lots(1, who, place) / 2.0**64).reshape(300, 100)),
    ):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03
    first = np.argsort(u, axis=1)[:, 0]
    assert np.bincount(first // 10, minlength=10).min() > 10


def test_nodes_have_the_rows_that_one_node_has(table):
    data = table(sizes=(1, 4, 5, 12, 7, 30))
    whole = all_rows(data)
    for first, last in ((0, 2), (2, 3), (3, 6), (6, 6)):
        part = data.cohort(first, last)
        assert part.ids.tolist() == list(range(first, last))
        assert [rows(part, i) for i in range(len(part))] == whole[first:last]


def test_nothing_is_held_out_or_told_where_nothing_is_evaluated(table):
    data = table(evaluate=False, test=0.5, sizes=(0, 1, 4, 12))
    assert [len(train) for train, _ in all_rows(data)] == [1, 4, 12] and not any(
        held for _, held in all_rows(data)
    )
    cohort = data.cohort(0, 3)
    assert (
        cohort.truth is None
        and not data.simulated
        and data.validation() is None
        and data.notes == []
    )
    assert "row" not in data.examples


def test_most_rows_caps_training_and_not_judging(table):
    data = table(most_rows=100, sizes=(2, 100_000))
    assert [(len(train), len(held)) for train, held in all_rows(data)] == [(1, 1), (100, 20_000)]
    assert any("1 users have 100 rows or more" in note for note in data.notes)
    latest = table(most_rows=3, time="when", ignore=[], sizes=(10, 2))
    assert all_rows(latest)[0] == ([5, 6, 7], [8, 9]), "of those that train, the latest"
    assert latest.m == 2 and data.m == 50


def test_users_without_usable_rows_keep_their_place(table, tmp_path):
    path = write(
        tmp_path / "gaps.csv",
        ["user", "a", "b", "y"],
        [["x", 1.5, 1, ""], ["y", 2.5, 3, 5], ["y", 1.5, 4, 6], ["z", "", 1, 2]],
    )
    data = table(missing="drop", ignore=[], path=path)
    assert data.n == 3 and data.cohort(0, 3).sizes.tolist() == [0, 1, 0]
    assert sorted(y for part in all_rows(data)[1] for y in part) == [5, 6]


def test_those_who_are_watched_are_spread_over_all_who_are_judged(table):
    data = table(sizes=tuple([1, 5] * 700))
    watched = data.validation()
    assert len(watched) == 500 and np.all(watched.ids % 2 == 1) and watched.ids[-1] > 1390
    assert (
        table(sizes=(1, 1, 1)).validation() is None
        and table(test=0, sizes=(9, 9)).validation() is None
    )


def test_a_file_that_changes_is_read_again(table, tmp_path):
    data = table(sizes=(2, 2))
    path = tmp_path / "mine.csv"
    assert table(path=path).frame is data.frame, "read once"
    then = path.stat()
    path.write_text(path.read_text().replace("1001", "1009"))
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert table(path=path).frame is not data.frame
    assert sorted(y for part in all_rows(table(path=path))[1] for y in part) == [1000, 1009], (
        "though size and time are the same"
    )


def test_a_schema_that_changes_is_read_again(table, tmp_path):
    schema = tmp_path / "schema.yaml"
    schema.write_text(table(sizes=(2, 2)).schema.to_yaml())
    settings = {"ignore": [], "schema": str(schema), "path": tmp_path / "mine.csv"}
    assert table(**settings).schema.numbers[0].bounds is None
    schema.write_text(
        schema.read_text().replace("kind: numeric}", "kind: numeric, bounds: [0, 9]}")
    )
    assert table(**settings).schema.numbers[0].bounds == (0, 9)


def test_the_fingerprint_is_that_of_what_was_read(table, tmp_path):
    one, copy = table(), table(name="copy.csv")
    assert one.fingerprint == copy.fingerprint
    others = [
        table(sizes=(1, 4, 5, 11), name="fewer.csv"),
        table(bounds={"a": [0, 9]}),
        table(ignore=[]),
    ]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 4


def test_a_home_folder_is_found(table, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    table(sizes=(2, 3))
    assert table(path="~/mine.csv").n == 2


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"test": 1}, "below 1"),
        ({"test": -0.1}, "from 0"),
        ({"most_rows": 0}, "at least 1"),
        ({"k": 0}, "at least 1"),
        ({"k": "many"}, "whole number"),
        ({"evaluate": "maybe"}, "true or false"),
        ({"describe": 1}, "true or false"),
    ],
)
def test_impossible_settings(table, setting, words):
    with pytest.raises(ConfigError, match=words):
        table(**setting)
    with pytest.raises(ConfigError, match=r"data\.path"):
        Table(**DEFAULTS, seed=0)


def test_settings_that_a_table_does_not_have(table):
    with pytest.raises(ConfigError, match=r"data\.categorial: .*did you mean 'categorical'"):
        table(categorial=["a"])
    with pytest.raises(ConfigError, match=r"data\.user: is missing"):
        Options.of({"path": "mine.csv"})
