"""Faults with real processes: zeros for missing users, or a resumable stop; no endless wait."""

from __future__ import annotations

import csv
import json
import signal
import time
from itertools import groupby

import numpy as np
import pytest
from support.processes import (
    eventually,
    ledger_of,
    model_of,
    reference,
    rows_of,
    unfinished_model_of,
)

pytestmark = pytest.mark.slow

SMALL = ("data.n=60", "data.d=6", "data.m=6", "runtime.nodes=2", "eps=4")
"""Two nodes of 30 users."""


def serve(fleet, *settings, port=0):
    return fleet.server(*SMALL, "out=run", *settings, "--insecure", port=port)


def steps(fleet, count):
    """Wait until a run has taken so many steps."""
    eventually(lambda: len(rows_of(fleet.folder / "run")) >= count, f"{count} steps")


def held(fleet):
    """Wait until a run does not get on: a step has been asked and is waited for."""
    seen = [-1.0, 0.0]

    def stuck():
        now = len(rows_of(fleet.folder / "run"))
        if now != seen[0]:
            seen[:] = [now, time.monotonic()]
        return time.monotonic() - seen[1] > 0.3

    eventually(stuck, "a step that does not end")
    return int(seen[0])


def table(folder):
    with (folder / "rounds.csv").open() as file:
        return list(csv.DictReader(file))


def check_books(folder, releases):
    """Every release is written down once, in order, as planned, and the cost only grows."""
    ledger = ledger_of(folder)
    assert [line["release"] for line in ledger] == list(range(1, releases + 1))
    assert len({(line["name"], line["round"]) for line in ledger}) == releases
    spent = [line["epsilon_spent"] for line in ledger]
    assert spent == sorted(spent) and spent[-1] <= 4.0
    return spent[-1]


def check_result(folder, releases):
    """A complete run says what its ledger says."""
    spent = check_books(folder, releases)
    privacy = json.loads((folder / "result.json").read_text())["privacy"]
    assert privacy["epsilon"] == spent and privacy["releases"] == releases


def test_killed_hanging_and_returning_clients_count_as_zero_and_nothing_else_changes(fleet):
    """Node 1 is killed in mid-round and restarted, then hangs past the round's time and wakes."""
    settings = (*SMALL, "rounds=20000")  # far more than it takes: the run is interrupted in the end
    server, port = serve(fleet, *settings, "runtime.round_timeout=2")
    folder = fleet.folder / "run"
    _, one = (fleet.client(port, name) for name in "01")
    steps(fleet, 5)

    one.send(signal.SIGSTOP)
    before = held(fleet)
    one.kill()  # while its answer is waited for
    steps(fleet, before + 1)
    one = fleet.client(port, "1")
    eventually(lambda: server.complaints.count("1 has joined") == 2, "the killed client's return")
    steps(fleet, len(rows_of(folder)) + 2)

    one.send(signal.SIGSTOP)
    eventually(
        lambda: server.complaints.count("1 has left") == 2, "the hanging client's being given up"
    )
    steps(fleet, len(rows_of(folder)) + 1)
    one.send(signal.SIGCONT)
    eventually(lambda: server.complaints.count("1 has joined") == 3, "the sleeper's return")
    steps(fleet, len(rows_of(folder)) + 2)
    server.send(signal.SIGTERM)
    assert "--resume" in server.ends(0)

    rows = rows_of(folder)
    missing = [row["missing_users"] for row in rows]
    assert missing[: before + 1] == [0] * before + [30] and missing[-1] == 0
    assert len(list(groupby(missing))) == 5, "there, killed, back, hanging, back"
    assert {row["users"] for row in rows} == {60} and len(
        {row["noise_std"] for row in rows[1:]}
    ) == 1
    # Noise and divisor are those of the full run: the same noise, the same n, zeros for absent
    # users.
    expected = reference(
        *settings, absent=lambda step: {"1"} if missing[step - 1] else set(), steps=len(rows)
    )
    np.testing.assert_allclose(unfinished_model_of(folder), expected, atol=1e-8)
    entries = len(
        ledger_of(folder)
    )  # the end may have come between an entry and the step's being kept
    assert entries - len(rows) in (0, 1)
    check_books(folder, entries)
    assert "30 users missing" in server.said


def test_a_killed_server_goes_on_where_it_was_with_the_same_clients(fleet):
    settings = ("rounds=120", "privacy.clip=auto")
    server, port = serve(fleet, *settings)
    clients = [fleet.client(port, name) for name in "01"]
    folder = fleet.folder / "run"
    for enough in (20, 60):  # killed twice, the first time while a step is under way
        steps(fleet, enough)
        if enough == 20:
            clients[0].send(signal.SIGSTOP)
            held(fleet)
        server.kill()
        clients[0].send(signal.SIGCONT)
        paid, taken = len(ledger_of(folder)), len(rows_of(folder))
        assert not (folder / "result.json").exists() and taken < 120
        server, _ = fleet.server("--resume", "run", "--insecure", port=port)
    server.ends(0)
    for client in clients:
        client.ends(0)
    # Two measuring steps, the initialiser, then two releases a round but for the last.
    check_result(folder, 3 + 2 * 120 - 1)
    assert len(ledger_of(folder)) > paid
    rows = table(folder)
    assert [int(row["step"]) for row in rows] == list(range(1, 124)) and {
        row["missing_users"] for row in rows
    } == {"0"}
    np.testing.assert_array_equal(model_of(folder), reference(*SMALL, *settings))

    again = fleet.start("server", "--resume", "run", "--insecure")
    assert "complete" in again.ends(2)


def test_a_run_whose_clients_are_gone_stops_in_time_and_can_be_resumed(fleet):
    server, port = serve(fleet, "rounds=150", "runtime.rejoin_timeout=2", "runtime.quorum=1")
    clients = [fleet.client(port, name) for name in "01"]
    steps(fleet, 10)
    for client in clients:
        client.kill()
    gone = time.monotonic()
    line = server.ends(1)
    assert time.monotonic() - gone < 30
    assert "of 60 users" in line and "--resume" in line and server.complaints.count("privfed:") == 1
    folder = fleet.folder / "run"
    paid, rows = ledger_of(folder), rows_of(folder)
    assert len(paid) == len(rows) < 151 and not any(row["missing_users"] for row in rows), (
        "no step below the quorum"
    )

    server, port = fleet.server("--resume", "run", "--insecure")
    for name in "01":
        fleet.client(port, name)
    server.ends(0)
    assert ledger_of(folder)[: len(paid)] == paid
    check_result(folder, 151)
    np.testing.assert_array_equal(model_of(folder), reference(*SMALL, "rounds=150"))


def test_nodes_that_never_come_are_waited_for_no_longer_than_said(fleet):
    server, _ = serve(fleet, "rounds=5", "runtime.join_timeout=1")
    line = server.ends(1)
    assert "only 0 of 2 nodes joined within 1 s" in line and "nothing was released" in line
    assert not ledger_of(fleet.folder / "run")
