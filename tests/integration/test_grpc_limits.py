"""Real client processes against servers that ask for too much, are killed, and are resumed."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from flwr.common import FitIns, ndarrays_to_parameters
from support.processes import eventually, ledger_of, rows_of

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.federation.client_ledger import ClientLedger
from privfed.federation.roster import Member, Roster, new_token
from privfed.privacy.accounting import composed
from privfed.runtimes.admission import AdmissionControl
from privfed.runtimes.grpc_transport import listening

pytestmark = pytest.mark.slow
D = 4


def write_rows(path, seed):
    X = np.random.default_rng(seed).standard_normal((10, D))
    lines = [",".join(map(repr, row)) for row in np.column_stack([X, X.sum(axis=1)]).tolist()]
    path.write_text("\n".join(["a,b,c,d,target", *lines]) + "\n")


@pytest.fixture
def hostile(fleet):
    """A server in the hands of a test; alice's process joins it."""
    roster = Roster([Member("alice", 1, new_token()), Member("rest", 99, new_token())])
    roster.write_tokens(fleet.folder / "tokens")
    write_rows(fleet.folder / "alice.csv", 1)
    settings = ["data=remote", f"data.d={D}", "data.n=100", "rounds=2", "init=random", "eps=1"]
    run = Experiment(compose(settings), roster)
    admission = AdmissionControl(roster, lambda node: run.factory.welcome(roster.nodes[node]))
    with listening(admission, "127.0.0.1:0", None, 1 << 20, admission.places) as port:

        def join(*more):
            data = ("--data", "alice.csv", "--insecure", "--state", "state")
            return fleet.client(port, "alice", *data, *more, tokens="tokens")

        yield run, admission, join


def test_a_client_process_leaves_instead_of_answering_a_huge_clip_norm(hostile, fleet):
    run, admission, join = hostile
    alice = join()
    node = eventually(lambda: admission.all().get("alice"), "alice's coming")
    told = run.strategy.announcement(run.strategy.plan[0])
    asked = ndarrays_to_parameters(run.strategy.shared)
    answer = node.fit(FitIns(asked, told.to_config()), timeout=60, group_id=None)
    assert answer.metrics == {"step": 1}
    grown = replace(told, step=2, round=2, clips=(1e90,))
    with contextlib.suppress(Exception):
        node.fit(FitIns(asked, grown.to_config()), timeout=60, group_id=None)
        pytest.fail("it answered")
    complaint = alice.ends(2)
    assert "clip norm 1e+90, which is not planned; nothing was sent" in complaint
    assert alice.complaints.count("\n") == 1 and "plan: 2 step(s) with 100 user(s)" in alice.said
    ledger = ClientLedger(fleet.folder / "state", fleet.folder / "alice.csv")
    assert [step.step for step in ledger.steps] == [1]

    # Another run: over the limit with what was answered before.
    over = join("--max-epsilon", "0.9")
    assert "--max-epsilon is 0.9; nothing was sent" in over.ends(3)
    shown = join("--plan")
    shown.ends(0)
    assert "steps 1-2" in shown.said and "epsilon 1, delta 1e-06" in shown.said
    assert "joined" not in shown.said and shown.complaints == ""
    eventually(lambda: not admission.all(), "everybody's leaving")


def test_killed_servers_and_clients_neither_pay_twice_nor_too_little(fleet):
    """Nothing of a person is left in the run's folder when it is complete."""
    folder = fleet.folder
    fleet.start("roster", "roster.json", "alice-of-ward-7", "bob").ends(0)
    for seed, name in enumerate(("alice-of-ward-7", "bob")):
        write_rows(folder / f"{name}.csv", seed)
    settings = ("eps=8", "data=remote", f"data.d={D}", "rounds=60", "out=run")
    server, port = fleet.server(*settings, "--roster", "roster.json", "--insecure")

    def real(name):
        data = ("--data", f"{name}.csv", "--insecure", "--state", f"{name}-state")
        return fleet.client(port, name, *data, "--patience", 60, tokens="tokens")

    alice, bob = real("alice-of-ward-7"), real("bob")
    eventually(lambda: len(rows_of(folder / "run")) >= 10, "ten steps")
    assert (folder / "run/private").stat().st_mode & 0o777 == 0o700
    server.kill()
    alice.kill()
    server, _ = fleet.server("--resume", "run", "--insecure", port=port)
    alice = real("alice-of-ward-7")
    for process in (server, alice, bob):
        process.ends(0)

    planned = {}
    for name in ("alice-of-ward-7", "bob"):
        ledger = ClientLedger(folder / f"{name}-state", folder / f"{name}.csv")
        numbers = [step.step for step in ledger.steps]
        assert numbers == sorted(set(numbers)) and set(numbers) <= set(range(1, 62))
        assert len({step.run for step in ledger.steps}) == 1, "a resumed run keeps its number"
        planned |= {step.step: step.prices for step in ledger.steps}
        assert len(numbers) >= len(ledger_of(folder / "run")) - (1 if name == "bob" else 30)
        assert composed(ledger.spent(), 1e-6) <= 8.0
        assert not list((folder / f"{name}-state").glob("*.answer"))
    # Every release of the run was charged by the nodes that answered, at no less than it cost.
    for line in ledger_of(folder / "run"):
        step = line["round"] + (0 if line["name"] == "gradient" else -1) + 1
        assert any(mu >= line["mu"] for mu, *_ in planned[step])

    publisher = fleet.start(
        "server", "--publish", "run", "--insecure", "--listen", f"127.0.0.1:{port}"
    )
    publisher.says("giving the model in run")
    newcomer = ("--user", "dora", "--data", "bob.csv", "--insecure", "--state", "dora-state")
    fleet.start("client", "--server", f"127.0.0.1:{port}", *newcomer).ends(0)
    assert (folder / "dora-state/dora.npz").exists()
    publisher.kill()

    assert not (folder / "run/private").exists()
    tokens = [member.token for member in Roster.read(folder / "roster.json")]
    for path in (folder / "run").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for secret in ("alice-of-ward-7", "bob.", *tokens):
            assert secret.encode() not in content and secret not in path.name, path
