"""Account of all runs on the same data: nothing is lost, nothing is counted less than released."""

from __future__ import annotations

import errno
import json
import math
import multiprocessing
import os
import stat
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from privfed.foundation.errors import BudgetError, ConfigError, PrivfedError
from privfed.privacy import account as module
from privfed.privacy.account import Account, Limit, Reservation, new_run, reserve_all
from privfed.privacy.accounting import Planned, gaussian_epsilon, total_epsilon
from privfed.privacy.neighbouring import REPLACE_ONE, ZERO_OUT

DELTA = 1e-6
PRICE = (0.1, 0.0, None, 1.0)


def reservation(mu=0.1, count=4, relation=REPLACE_ONE, run=None):
    paid = Counter({(mu, 0.0, None, 1.0): count})
    return Reservation(run or new_run(), "fedrep", relation, DELTA, "worst-case", "discrete", paid)


def spent(path, relation=REPLACE_ONE):
    account = Account(path)
    with account.locked(write=False):
        return account.total(DELTA, relation)


def record(account, run, name, round, covered=True, limit=None):
    with account.locked():
        account.record(run, name, round, PRICE, covered, limit)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "account.jsonl"


def test_reservations_add_up_and_are_never_given_back(path):
    for i in range(1, 4):
        reserve_all([Account(path)], [reservation()], None)
        assert spent(path) == pytest.approx(gaussian_epsilon(0.2 * math.sqrt(i), DELTA))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "time" not in path.read_text()


def test_a_resumed_run_does_not_reserve_again_and_another_plan_does(path):
    mine = reservation()
    for _ in range(3):
        reserve_all([Account(path)], [mine], None)
    assert spent(path) == pytest.approx(gaussian_epsilon(0.2, DELTA))
    reserve_all([Account(path)], [reservation(count=5, run=mine.run)], None)
    assert spent(path) == pytest.approx(gaussian_epsilon(0.3, DELTA)), "4 + 5 releases of 0.1"


def test_releases_of_the_plan_cost_nothing_more_and_those_of_a_copy_do(path):
    """A copied folder has the same run's name: the copy makes the same releases once more."""
    mine = reservation()
    original, copy = Account(path), Account(path)
    reserve_all([original], [mine], None)
    for account in (original, copy):
        for i in range(3):
            record(account, mine.run, "gradient", i)
    assert spent(path) == pytest.approx(gaussian_epsilon(0.1 * math.sqrt(4 + 3), DELTA))
    record(original, mine.run, "unplanned", 1, covered=False)
    assert spent(path) == pytest.approx(gaussian_epsilon(0.1 * math.sqrt(4 + 4), DELTA))
    with copy.locked():
        assert copy.extras_of(mine.run) == 4
    with pytest.raises(PrivfedError, match="lost the reservation"):
        record(original, new_run(), "gradient", 1)


def test_the_limit_holds_for_runs_and_for_copies(path):
    limit = Limit(gaussian_epsilon(0.1 * math.sqrt(9), DELTA) * (1 + 1e-9), DELTA, REPLACE_ONE)
    mine = reservation()
    reserve_all([Account(path)], [mine], limit)
    reserve_all([Account(path)], [reservation()], None)  # the first limit is the account's own
    with pytest.raises(BudgetError, match="nothing was released"):
        reserve_all([Account(path)], [reservation()], None)
    with pytest.raises(BudgetError):
        reserve_all([Account(path)], [reservation()], Limit(100, DELTA, REPLACE_ONE))
    account = Account(path)
    for _ in range(2):
        record(account, mine.run, "gradient", 1)
    before = path.read_bytes()
    with pytest.raises(BudgetError, match="a second time, by a copy"):
        record(account, mine.run, "gradient", 1)
    assert path.read_bytes() == before
    with account.locked():
        account.set_limit(Limit(100, DELTA, REPLACE_ONE))
    with pytest.raises(BudgetError, match=r"limit is epsilon=0\.001"):
        reserve_all([Account(path)], [reservation()], Limit(1e-3, DELTA, REPLACE_ONE))
    reserve_all([Account(path)], [reservation()], None)


def test_all_runs_of_a_sweep_are_checked_before_one_is_reserved(path):
    limit = Limit(gaussian_epsilon(0.3, DELTA), DELTA, REPLACE_ONE)
    runs = [reservation() for _ in range(3)]
    reserve_all([Account(path)], runs[:2], limit, only_check=True)
    with pytest.raises(BudgetError, match="3 runs with 12 planned releases"):
        reserve_all([Account(path)], runs, limit, only_check=True)
    assert not path.exists()


def test_data_of_two_accounts_are_charged_in_both_or_in_none(tmp_path):
    first, second = (tmp_path / name for name in ("a.jsonl", "b.jsonl"))
    reserve_all([Account(first)], [reservation(count=9)], Limit(2, DELTA, REPLACE_ONE))
    reserve_all([Account(second), Account(first)], [reservation(count=1)], None)
    assert spent(first) == pytest.approx(gaussian_epsilon(0.1 * math.sqrt(10), DELTA))
    assert spent(second) == pytest.approx(gaussian_epsilon(0.1, DELTA))
    before = second.read_bytes()
    with pytest.raises(BudgetError):
        reserve_all([Account(second), Account(first)], [reservation(mu=1.0)], None)
    assert second.read_bytes() == before


def test_a_line_that_was_cut_off_is_dropped_wherever_the_cut_is(path):
    reserve_all([Account(path)], [reservation()], None)
    whole = path.read_bytes()
    reserve_all([Account(path)], [reservation()], None)
    longer = path.read_bytes()
    for cut in range(len(whole) + 1, len(longer), 7):
        path.write_bytes(longer[:cut])
        assert spent(path) == pytest.approx(gaussian_epsilon(0.2, DELTA))
        reserve_all([Account(path)], [reservation()], None)
        assert path.read_bytes().startswith(whole)
        assert spent(path) == pytest.approx(gaussian_epsilon(0.2 * math.sqrt(2), DELTA))
    for cut in range(0, whole.index(b"\n"), 5):  # killed while the file was being made
        path.write_bytes(whole[:cut])
        reserve_all([Account(path)], [reservation()], None)
        assert spent(path) == pytest.approx(gaussian_epsilon(0.2, DELTA))


def test_a_changed_line_is_noticed_and_a_foreign_file_is_left_alone(path, tmp_path):
    for _ in range(3):
        reserve_all([Account(path)], [reservation()], None)
    lines = path.read_text().splitlines(keepends=True)
    for text in (
        "".join(lines).replace('"paid": [[0.1', '"paid": [[0.01', 1),
        "".join(lines[:2] + lines[3:]),
        "".join(lines[:1] + lines[2:]),
        "".join(lines) + "nonsense\n",
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"line [2345] (was changed|cannot be read)"):
            reserve_all([Account(path)], [reservation()], None)
        assert path.read_text() == text
    table = tmp_path / "table.csv"
    table.write_text("user,x\nann,1")
    with pytest.raises(ConfigError, match="is not an account"):
        reserve_all([Account(table)], [reservation()], None)
    assert table.read_text() == "user,x\nann,1"
    for place in (tmp_path, "/dev/full", tmp_path / "no" / "folder.jsonl"):
        with pytest.raises(ConfigError, match=r"privacy\.account="):
            reserve_all([Account(type(path)(place))], [reservation()], None)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_on_a_full_disk_nothing_is_reserved(path, monkeypatch, call):
    mine = reservation()
    reserve_all([Account(path)], [mine], None)
    before, write = path.read_bytes(), os.write

    def full(descriptor, *content):
        if content:
            write(descriptor, content[0][: len(content[0]) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module.os, call, full)
        with pytest.raises(ConfigError, match="No space left on device"):
            reserve_all([Account(path)], [reservation()], None)
        with pytest.raises(ConfigError, match="No space left on device"):
            record(Account(path), mine.run, "gradient", 1)
    assert path.read_bytes() == before
    reserve_all([Account(path)], [reservation()], None)


def contend(path, start, admitted):
    start.wait()
    for _ in range(5):
        try:
            reserve_all([Account(path)], [reservation()], Limit(0.99, DELTA, REPLACE_ONE))
            admitted.put(1)
        except BudgetError:
            pass


def test_processes_that_reserve_at_the_same_time_never_pass_the_limit_together(path):
    context = multiprocessing.get_context("fork")
    start, admitted = context.Barrier(4), context.Queue()
    processes = [context.Process(target=contend, args=(path, start, admitted)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    count = 0
    while not admitted.empty():
        admitted.get()
        count += 1
    most = max(k for k in range(21) if gaussian_epsilon(0.2 * math.sqrt(k), DELTA) <= 0.99)
    assert 0 < most < 20 and count == most
    account = Account(path)
    with account.locked():
        assert len(account.runs) == most and account.total(DELTA, REPLACE_ONE) <= 0.99
    for line in path.read_text().splitlines():
        json.loads(line)


ACTIONS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["reserve", "release"]), st.integers(0, 3)),
    max_size=25,
)


@given(ACTIONS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_interleaving_counts_the_union_of_what_was_reserved_and_released(tmp_path, actions):
    """Three processes: two copies of one run, and a run of its own, in any order."""
    path = tmp_path / f"{new_run()}.jsonl"
    views = [Account(path) for _ in range(3)]
    mine, other = reservation(), reservation(relation=ZERO_OUT)
    names, reserved, made = [mine, mine, other], set(), Counter()
    for who, action, round in actions:
        run = names[who]
        if action == "reserve":
            reserve_all([views[who]], [run], None)
            reserved.add(run.run)
        elif run.run in reserved:
            record(views[who], run.run, "gradient", round)
            made[run.run, round] += 1
    costs = []
    for run, mu in ((mine, 0.1), (other, 0.2)):  # zero-out counts twice under replace-one
        again = sum(count - 1 for (name, _), count in made.items() if name == run.run)
        costs += [Planned(mu)] * ((4 if run.run in reserved else 0) + again)
    if reserved:
        for account in (*views, Account(path)):
            with account.locked():
                assert account.total(DELTA, REPLACE_ONE) == pytest.approx(
                    total_epsilon(costs, DELTA)
                )
