"""What we are measured against computes what we compute, and says so where it does not."""

from __future__ import annotations

import sys

import bench_flower
import bench_limits
import bench_rivals
import bench_user
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from rich.console import Console

HERE = ("vectorised NumPy", "loop over users")


@pytest.fixture
def printed(capsys):
    def show(table):
        Console(width=200).print(table)
        return capsys.readouterr().out

    return show


def test_rivals_in_this_process_compute_what_we_do_and_are_shown_beside_us(printed):
    rows = bench_rivals.rivals(n=300, rounds=2, names=HERE, users=200, base=200)
    assert [row["rival"] for row in rows] == list(HERE)
    for row in rows:
        assert row["difference"] < 1e-10 and row["users_per_s"] > 0 and not row["note"]
        assert row["ratio_n"] == pytest.approx(row["ours_n"] / row["users_per_s"])
    text = printed(bench_rivals.SECTION.table(rows))
    assert all(name in text for name in HERE) and "privfed at n=200" in text and "at n=300" in text


def test_the_problem_has_users_on_both_sides_of_the_clip_norm():
    problem = bench_rivals.Problem(2000)
    norms = [
        np.linalg.norm(bench_user.gradient(X, y, problem.U))
        for X, y in zip(problem.X, problem.y, strict=True)
    ]
    assert 0.02 < np.mean(np.array(norms) < bench_rivals.BOUND) < 0.98


def test_a_rival_that_computes_something_else_is_not_compared(monkeypatch, printed):
    def wrong(problem, rounds):
        total, seconds = bench_rivals.rounds_here(bench_rivals.looped, problem, rounds)
        return total * (1 + 1e-5), seconds

    monkeypatch.setitem(bench_rivals.RIVALS, "wrong", (wrong, 50))
    (row,) = bench_rivals.rivals(n=50, rounds=1, names=["wrong"], base=50)
    assert row["users_per_s"] is None and "ratio_n" not in row
    assert "void: its clipped sum differs from ours by 1.0e-05" in printed(
        bench_rivals.SECTION.table([row])
    )


def test_flowers_user_and_strategy_agree_with_us_without_starting_ray(tmp_path, monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    problem, path = bench_rivals.Problem(40), str(tmp_path / "problem.npz")
    np.savez(path, X=problem.X, y=problem.y)
    strategy = bench_flower.FedRep(problem.n, bench_rivals.BOUND)
    arrays, U = ArrayRecord([problem.U]), problem.U

    def replies(round):
        strategy.current_arrays = arrays
        for i in range(problem.n):
            content = RecordDict(
                {"arrays": arrays, "config": ConfigRecord({"path": path, "server-round": round})}
            )
            asked = Message(content, dst_node_id=i, message_type="train")
            yield bench_flower.train(asked, Context(1, i, {"partition-id": i}, RecordDict(), {}))

    after, _ = strategy.aggregate_train(1, replies(1))
    assert problem.difference(strategy.total) < 1e-10
    expected = bench_user.stepped(U, problem.total, problem.n, 0)
    assert np.allclose(after.to_numpy_ndarrays()[0], expected, atol=1e-12)
    noised, _ = strategy.aggregate_train(2, replies(2))
    assert (
        np.linalg.norm(
            noised.to_numpy_ndarrays()[0] - bench_user.stepped(U, problem.total, problem.n, 1)
        )
        > 1e-2
    )


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_pfl_agrees_with_us(processes):
    if not bench_rivals.PFL.exists():
        pytest.skip("pfl is not installed: python benchmarks/bench_rivals.py --install-pfl")
    problem = bench_rivals.Problem(60)
    total, seconds = bench_rivals.on_pfl(processes, problem, 2)
    assert problem.difference(total) < bench_rivals.AGREEMENT and len(seconds) == 2


def test_a_rival_whose_process_fails_says_so_and_the_others_go_on(monkeypatch, printed):
    def broken(problem, rounds):
        return bench_rivals.rounds_apart(
            [sys.executable, "-c", "raise SystemExit('out of order')"], problem, rounds
        )

    monkeypatch.setitem(bench_rivals.RIVALS, "broken", (broken, 50))
    first, second = bench_rivals.rivals(
        n=50, rounds=1, names=["broken", "loop over users"], users=50, base=50
    )
    assert first["users_per_s"] is None and "ratio_n" not in first and second["users_per_s"] > 0
    assert "failed: out of order" in printed(bench_rivals.SECTION.table([first, second]))


def test_a_rival_that_is_not_installed_says_how_to_get_it(monkeypatch, tmp_path, printed):
    monkeypatch.setattr(bench_rivals, "PFL", tmp_path / "nothing")
    (row,) = bench_rivals.rivals(n=50, rounds=1, names=["pfl, 1 process"], users=50, base=50)
    assert "not installed: python benchmarks/bench_rivals.py --install-pfl" in printed(
        bench_rivals.SECTION.table([row])
    )


def test_limits_of_the_machine_are_beside_what_a_round_gets(printed):
    rows = bench_limits.against_limits(
        n=400, rounds=2, overrides=["runtime.threads=1"], entries=2**16, size=64
    )
    assert [row["limit"] for row in rows] == ["triad", "read", "gemm float64", "gemm float32"]
    for row in rows:
        assert 0 < row["achieved"] == pytest.approx(row["fraction"] * row["available"])
    assert rows[0]["needed"] == 400 * 10 * 51 * 4 and rows[2][
        "needed"
    ] == 400 * bench_limits.operations(10, 50, 2)
    assert "a FedRep round of 400 users with 1 threads" in printed(bench_limits.SECTION.table(rows))
