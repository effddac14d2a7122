"""Secure aggregation between real processes: enrolment, roster's hash, losses, refusals."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from support.processes import ledger_of, model_of

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.federation.roster import Roster
from privfed.secure.keys import NodeKey

NAMES = ("alice", "bob", "carol", "dave")
SETTINGS = ("eps=8", "data=remote", "data.d=3", "rounds=2", "privacy.trust=nobody")


def write_rows(path, seed):
    X = np.random.default_rng(seed).standard_normal((8, 3))
    rows = np.column_stack([X, X @ [1.0, -1.0, 0.5]]).tolist()
    lines = ["a,b,c,target", *(",".join(map(repr, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def enrolled(fleet):
    """Register real nodes with keys that they made; return the hash of the roster."""
    started = fleet.start("client", "--enroll", "--user", NAMES[0])
    keys = []
    for seed, name in enumerate(NAMES):
        write_rows(fleet.folder / f"{name}.csv", seed)
        if seed:
            key = NodeKey.fresh()
            key.save(fleet.folder / f"{name}.key")
            keys.append(f"{name}={key.public.hex()}")
    started.ends(0)
    registered = fleet.start("roster", "roster.json", *NAMES, "--key", started.said.strip(), *keys)
    registered.ends(0)
    digest = Roster.read(fleet.folder / "roster.json").digest()
    assert digest is not None and digest.hex() in registered.said
    return digest.hex()


@pytest.mark.slow
def test_real_clients_with_keys_of_their_own(fleet):
    digest = enrolled(fleet)
    server, port = fleet.server(*SETTINGS, "out=run", "--roster", "roster.json", "--insecure")

    def real(name, told):
        more = ("--insecure", "--state", f"{name}-state", "--roster-hash", told)
        return fleet.client(port, name, "--data", f"{name}.csv", *more, tokens="tokens")

    liar = real("dave", "0" * 64)
    liar.ends(2)
    assert "roster has the hash" in liar.complaints
    clients = [real(name, digest) for name in NAMES]
    for client in clients:
        client.ends(0)
        assert "added by the nodes" in client.said
    server.ends(0)
    result = json.loads((fleet.folder / "run/result.json").read_text())
    assert result["privacy"]["trust"] == "nobody" and result["privacy"]["guarantee"] == "worst-case"
    assert {line["noise"] for line in ledger_of(fleet.folder / "run")} == {
        "sum-of-rounded-gaussians"
    }
    journal = json.loads((fleet.folder / "alice-state/alice.masks.json").read_text())
    assert journal["unmasked"] == [1, 2, 3]


@pytest.mark.slow
def test_processes_give_the_numbers_of_one_process(fleet):
    settings = ("data.n=60", "data.d=6", "data.m=6", "rounds=3", "privacy.trust=nobody")
    done = fleet.start("run", *settings, "runtime=grpc", "runtime.nodes=3", "out=run")
    made = Experiment(compose([*settings, "runtime.nodes=3"]))
    made.run()
    done.ends(0)
    assert (model_of(fleet.folder / "run") == made.model()["U"]).all()


@pytest.mark.slow
def test_a_killed_client_is_missed_and_the_run_goes_on(fleet):
    settings = ("data.n=12", "data.d=6", "data.m=6", "rounds=60", "privacy.trust=nobody")
    more = ("privacy.honest=0.75", "runtime.nodes=4", "runtime.quorum=0.7", "--insecure")
    server, port = fleet.server(*settings, *more, "out=run")
    clients = [
        fleet.client(port, i, "--simulate", "--insecure", tokens="run/private/tokens")
        for i in range(4)
    ]
    server.says("round 3")
    clients[2].kill()
    server.ends(0)
    with (fleet.folder / "run/rounds.csv").open() as file:
        missing = [int(row["missing_users"]) for row in csv.DictReader(file)]
    assert set(missing) == {0, 3} and missing[0] == 0


@pytest.mark.slow
def test_missing_keys_and_hashes_are_one_line(fleet):
    fleet.start("roster", "roster.json", *NAMES).ends(0)
    refused = fleet.start("server", *SETTINGS, "--roster", "roster.json", "--insecure")
    refused.ends(2)
    assert "alice has no public key (4 of 4 nodes have none)" in refused.complaints
    assert len(refused.complaints.strip().splitlines()) == 1
    odd = fleet.start("roster", "roster.json", "--key", "alice=zzz")
    odd.ends(2)
    assert "the key of alice" in odd.complaints
