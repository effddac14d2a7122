"""Strangers who hold connections, files with other columns, and disks that are full."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import grpc
import numpy as np
import pytest
from support.processes import ENVIRONMENT, eventually, ledger_of
from support.puppet import Puppet

from privfed.federation.identity import Identity, ticket_of
from privfed.federation.roster import Member, Roster, new_token
from privfed.runtimes.file_limit import make_room
from privfed.runtimes.places import PER_ADDRESS, PER_NODE, NoPlaceError, Places

REMOTE = ("data=remote", "eps=4", "data.d=3", "data.k=1", "model.k=1", "--insecure", "out=run")


def write_rows(path, columns, rows=6, seed=0):
    values = np.random.default_rng(seed).standard_normal((rows, len(columns) + 1))
    lines = [",".join(map(repr, row)) for row in values.tolist()]
    path.write_text("\n".join([",".join([*columns, "target"]), *lines]) + "\n")


def real(fleet, port, name, *more):
    return fleet.client(
        *(port, name, "--data", f"{name}.csv", "--insecure", "--state", f"{name}-state"),
        *("--test", "0", *more),
        tokens="tokens",
    )


@pytest.fixture
def registered(fleet):
    """Alice, bob and carol, each with a file."""
    fleet.start("roster", "roster.json", "alice", "bob", "carol").ends(0)
    for seed, name in enumerate(("alice", "bob", "carol")):
        write_rows(fleet.folder / f"{name}.csv", "abc", seed=seed)
    return fleet


def serve(fleet, *settings):
    return fleet.server(*REMOTE, *settings, "--roster", "roster.json")


@pytest.mark.slow
def test_strangers_hold_no_place_of_a_registered_node(registered):
    server, port = serve(registered, "rounds=2")
    strangers = [Puppet(port) for _ in range(100)]
    try:
        for stranger in strangers[:3]:
            stranger.listen()  # the challenge, which is never answered
        eventually(lambda: refused(strangers[-1]), "the last stranger's being refused")
        clients = [real(registered, port, name) for name in ("alice", "bob", "carol")]
        for client in clients:
            client.ends(0)
        server.ends(0)
    finally:
        for stranger in strangers:
            stranger.close()


def refused(stranger):
    try:
        stranger.listen()
    except grpc.RpcError as error:
        return error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    return False


def test_places():
    roster = Roster([Member(name, 1, new_token()) for name in ("alice", "bob")])
    places = Places(roster, strangers=10)
    held = [places.claim("here", None) for _ in range(PER_ADDRESS)]
    with pytest.raises(NoPlaceError, match="from that address"):
        places.claim("here", b"alice\0" + ticket_of("another token", "alice"))
    held += [places.claim("there", None) for _ in range(2)]
    with pytest.raises(NoPlaceError, match="too many strangers"):
        places.claim("elsewhere", b"\xff\xfe")
    token = roster.members["alice"].token
    mine = [places.claim("here", Identity("alice", token).ticket) for _ in range(PER_NODE)]
    with pytest.raises(NoPlaceError, match="alice"):
        places.claim("here", Identity("alice", token).ticket)
    places.leave(mine[0])
    places.leave(mine[0])
    places.claim("here", Identity("alice", token).ticket)
    places.prove(held[-1], "bob")  # without a ticket, but with a proof
    places.claim("elsewhere", None)
    assert places.most > 2 * PER_NODE + 10


def test_the_limit_of_open_files_is_raised_or_said():
    code = (
        "import resource, logging, sys; logging.basicConfig()\n"
        "from privfed.runtimes.file_limit import make_room\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 512)); make_room(300)\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 400; make_room(1000)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "about 412 nodes" in done.stderr, done.stderr
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    make_room(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


@pytest.mark.slow
def test_columns_are_checked_by_name(registered):
    """Prescribed by the server, or those of the file that came first; in any order of the file."""
    rows = np.loadtxt(registered.folder / "bob.csv", delimiter=",", skiprows=1)
    reordered = [",".join(map(repr, row)) for row in rows[:, [3, 2, 0, 1]].tolist()]
    (registered.folder / "bob.csv").write_text("\n".join(["target,c,a,b", *reordered]) + "\n")
    write_rows(registered.folder / "carol.csv", ("a", "b", "other"))
    for settings, complaint in (
        (("data.columns=[a,b,c]",), "has no column 'c'"),
        ((), "other columns than that of the node which came first"),
    ):
        server, port = serve(registered, *settings, "rounds=1")
        for name in ("alice", "bob"):
            real(registered, port, name)
            server.says(f"{name} has joined")
        assert complaint in real(registered, port, "carol").ends(2)
        server.send(signal.SIGINT)
        server.ends(1)
    assert "carol has other columns than alice" in server.complaints


@pytest.mark.slow
def test_a_full_disk_costs_nothing_however_often_the_server_is_restarted(registered):
    """The result of a step must be sure to be kept before the step is charged."""
    # A file may have 20 kB: ledger lines fit, a checkpoint does not.
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
        "from privfed.__main__ import main; sys.exit(main())"
    )
    folder = registered.folder
    server, port = serve(registered, "rounds=400")
    clients = [real(registered, port, name) for name in ("alice", "bob", "carol")]
    eventually(lambda: (folder / "run/checkpoint.npz").exists(), "a checkpoint")
    server.kill()
    paid = len(ledger_of(folder / "run"))
    for _ in range(2):
        again = subprocess.run(
            [
                *(sys.executable, "-c", limited, "server", "--resume", "run", "--insecure"),
                *("--listen", f"127.0.0.1:{port}"),
            ],
            cwd=folder,
            env=os.environ | ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert again.returncode == 1 and "nothing was charged" in again.stderr, again.stderr
        assert len(ledger_of(folder / "run")) == paid
    assert all(client.running for client in clients)


@pytest.mark.slow
def test_tokens_are_replaced_and_revoked_while_the_server_runs(registered):
    server, port = serve(registered, "rounds=20000")
    clients = {name: real(registered, port, name) for name in ("alice", "bob", "carol")}
    server.says("carol has joined")
    eventually(lambda: len(ledger_of(registered.folder / "run")) > 3, "steps")
    registered.start("roster", "revoke", "roster.json", "carol").ends(0)
    assert "token is wrong" in clients["carol"].ends(2)
    assert not (registered.folder / "tokens/carol.token").exists()
    registered.start("roster", "rotate", "roster.json", "bob").ends(0)
    clients["bob"].ends(2)
    real(registered, port, "bob")
    eventually(lambda: server.complaints.count("bob has joined") == 2, "bob's return")
    assert "is not registered" in registered.start("roster", "rotate", "roster.json", "x").ends(2)
    assert clients["alice"].running
    server.send(signal.SIGTERM)
    server.ends(0)
