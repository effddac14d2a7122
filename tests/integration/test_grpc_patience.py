"""Connections that are quiet, cut, frozen or refused: what a federation of days has to survive."""

from __future__ import annotations

import contextlib
import csv
import re
import signal
import socket
import threading
import time

import numpy as np
import pytest
from support.processes import eventually, ledger_of, model_of, reference, rows_of
from support.slow_users import slow_users

from privfed.runtimes.certificates import make_certificates

pytestmark = pytest.mark.slow
SMALL = ("data.n=20", "data.d=6", "data.m=6", "runtime.nodes=2", "eps=4")


@pytest.mark.parametrize(("keepalive", "seconds"), [(1, 7), (10, 50)])
def test_users_may_compute_in_silence(fleet, keepalive, seconds):
    """Pings of a quiet connection are no attack: gRPC's default cuts it after about four."""
    own = slow_users(fleet)
    settings = (*SMALL, "algo=slow", "init=random", "rounds=1", f"runtime.keepalive={keepalive}")
    patience = ("runtime.round_timeout=200", "out=run", "--insecure")
    server, port = fleet.server(*settings, *patience, *own)
    client = ("--simulate", "--insecure", "--keepalive", keepalive, *own)
    clients = [fleet.client(port, name, *client, TEST_SECONDS=str(seconds)) for name in "01"]
    server.ends(0)
    for each in clients:
        each.ends(0)
    with (fleet.folder / "run/rounds.csv").open() as file:
        assert {row["missing_users"] for row in csv.DictReader(file)} == {"0"}
    assert [row.count("connection lost") for row in (each.said for each in clients)] == [0, 0]


@contextlib.contextmanager
def answering(handle):
    """Call `handle` with every connection to a port of this machine; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        over = threading.Event()

        def serve():
            while not over.is_set():
                with contextlib.suppress(OSError):
                    caller, _ = door.accept()
                    threading.Thread(target=handle, args=(caller,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield door.getsockname()[1]
        finally:
            over.set()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", door.getsockname()[1]), 1).close()


def hang_up(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def relayed(caller, port):
    """Pass bytes between a caller and a server until one of them ends."""
    try:
        server = socket.create_connection(("127.0.0.1", port))
    except OSError:
        return caller.close()

    def copy(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        hang_up(source)
        hang_up(sink)

    threading.Thread(target=copy, args=(caller, server), daemon=True).start()
    copy(server, caller)


@pytest.mark.parametrize("broken", ["eof", "unavailable"])
def test_a_balancer_without_a_server_behind_it_is_tried_again(fleet, broken):
    """A handshake that ends early, or a plain 503, is no reason to give up."""
    make_certificates(fleet.folder / "tls", ["127.0.0.1"])
    server, port = fleet.server(*SMALL, "rounds=2", "out=run", "--certificates", "tls")
    calls = []

    def balancer(caller):
        calls.append(caller)
        if len(calls) > 3:
            return relayed(caller, port)
        with contextlib.suppress(OSError):
            caller.recv(1000)
            if broken == "unavailable":
                caller.sendall(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
            caller.close()

    with answering(balancer) as door:
        client = ("--simulate", "--root-certificates", "tls/ca.crt")
        clients = [fleet.client(door, "0", *client), fleet.client(port, "1", *client)]
        for each in clients:
            each.ends(0)
    server.ends(0)
    assert len(calls) > 3


def test_a_server_that_drops_everybody_is_not_tried_for_ever(fleet):
    """Patience ends although the server accepts each connection; attempts become rare."""
    server, port = fleet.server(*SMALL, "runtime.nodes=3", "rounds=1", "out=run", "--insecure")
    calls = []

    def proxy(caller):
        calls.append(caller)
        threading.Timer(0.5, hang_up, (caller,)).start()
        relayed(caller, port)

    with answering(proxy) as door:
        began = time.monotonic()
        client = fleet.client(door, "0", "--simulate", "--insecure", "--patience", "6")
        assert "gave up after 6 s" in client.ends(2)
        assert time.monotonic() - began < 100
    assert len(calls) < 30
    server.send(signal.SIGINT)


def test_a_frozen_server_asks_its_step_again(fleet):
    settings = (*SMALL, "rounds=300")
    more = ("runtime.keepalive=1", "runtime.round_timeout=3", "runtime.quorum=1")
    server, port = fleet.server(*settings, *more, "out=run", "--insecure")
    trust = ("--simulate", "--insecure", "--keepalive", 1)
    clients = [fleet.client(port, name, *trust) for name in "01"]
    folder = fleet.folder / "run"
    eventually(lambda: len(rows_of(folder)) >= 5, "steps")
    clients[0].send(signal.SIGSTOP)  # so that a step is under way, whatever the machine does
    before = -1
    while before != len(rows_of(folder)):
        before = len(rows_of(folder))
        time.sleep(0.3)
    server.send(signal.SIGSTOP)
    clients[0].send(signal.SIGCONT)
    time.sleep(6)
    server.send(signal.SIGCONT)
    server.ends(0)
    for each in clients:
        each.ends(0)
    assert "asking again" in server.complaints
    assert not any(row["missing_users"] for row in rows_of(folder))
    np.testing.assert_allclose(model_of(folder), reference(*settings), rtol=1e-8, atol=1e-12)
    assert len(ledger_of(folder)) == 301


def test_sigterm_drains_and_exits_with_code_0(fleet):
    settings = (*SMALL, "rounds=20000")
    server, port = fleet.server(*settings, "out=run", "--insecure")
    clients = [fleet.client(port, name) for name in "01"]
    folder = fleet.folder / "run"
    eventually(lambda: len(rows_of(folder)) >= 5, "steps")
    clients[1].send(signal.SIGTERM)
    clients[1].ends(0)
    assert "left; the server goes on" in clients[1].said
    server.send(signal.SIGTERM)
    assert "--resume" in server.ends(0)
    assert len(ledger_of(folder)) == len(rows_of(folder)), "no step was paid for and lost"
    assert clients[0].running, "it waits for the server's return"
    waiting = fleet.start("server", *settings, "out=other", "--insecure", "--listen", "127.0.0.1:0")
    waiting.says("listening on")
    waiting.send(signal.SIGTERM)
    waiting.ends(0)


def test_a_run_starts_with_a_quorum_names_who_is_missing_and_lets_them_join_later(fleet):
    settings = (*SMALL, "data.n=30", "runtime.nodes=3", "rounds=2000")
    # Long enough for two clients to start on a busy machine.
    more = ("runtime.join_timeout=20", "runtime.start_quorum=0.6", "out=run", "--insecure")
    server, port = fleet.server(*settings, *more)
    for name in "01":
        fleet.client(port, name)
    folder = fleet.folder / "run"
    eventually(lambda: len(rows_of(folder)) >= 3, "steps without node 2")
    assert rows_of(folder)[0]["missing_users"] == 10
    assert re.search(r"1 of 3 nodes missing: 2\b", server.complaints)
    fleet.client(port, "2")
    eventually(lambda: not rows_of(folder)[-1]["missing_users"], "node 2's taking part")
    server.send(signal.SIGINT)


def test_through_the_proxy_of_the_environment(fleet):
    """check_reachable and gRPC take the same way: https_proxy, and no_proxy."""
    make_certificates(fleet.folder / "tls", ["127.0.0.1"])
    server, port = fleet.server(*SMALL, "rounds=2", "out=run", "--certificates", "tls")
    asked = []

    def proxy(caller):
        request = b""
        while b"\r\n\r\n" not in request:
            request += caller.recv(1)
        asked.append(request.split(b"\r\n")[0].decode())
        caller.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        relayed(caller, port)

    with answering(proxy) as door:
        client = ("--simulate", "--root-certificates", "tls/ca.crt")
        through = {"https_proxy": f"http://127.0.0.1:{door}", "no_proxy": ""}
        # Nobody listens at port 1: without the proxy the server could not be reached.
        one = fleet.client(1, "0", *client, **through)
        two = fleet.client(
            port, "1", *client, https_proxy="http://127.0.0.1:1", no_proxy="localhost,127.0.0.1"
        )
        for each in (one, two):
            each.ends(0)
    server.ends(0)
    assert len(asked) == 2 and set(asked) == {"CONNECT 127.0.0.1:1 HTTP/1.1"}, asked
