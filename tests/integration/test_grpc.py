"""Federations over gRPC: the same numbers as locally, real clients, nothing private leaves."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
from flwr.proto.transport_pb2 import ClientMessage, ServerMessage
from flwr.server.superlink.fleet.grpc_bidi.grpc_bridge import ResWrapper
from flwr.server.superlink.fleet.grpc_bidi.grpc_client_proxy import GrpcClientProxy
from support.processes import ledger_of, model_of, reference

from privfed.config.composition import compose
from privfed.data.row_order import row_order
from privfed.data.user_identity import identities_of
from privfed.experiment.wiring import Experiment
from privfed.federation.identity import Identity
from privfed.federation.participant import OwnRows, Participant
from privfed.federation.roster import Member, Roster, new_token
from privfed.runtimes.admission import AdmissionControl
from privfed.runtimes.certificates import make_certificates
from privfed.runtimes.grpc_client import GrpcClient
from privfed.runtimes.server_loop import run_server_loop

FEATURES, ROWS = 5, 12


def write_csv(path, seed):
    """A user's own rows, with numbers that nothing else has; X, y."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((ROWS, FEATURES))
    y = X @ np.array([1.0, -1.0, 0.5, 0.0, 2.0]) + 0.01 * rng.standard_normal(ROWS)
    header = ",".join([*(f"x{i}" for i in range(FEATURES)), "target"])
    path.write_text(
        "\n".join([header, *(",".join(map(repr, row)) for row in np.column_stack([X, y]).tolist())])
        + "\n"
    )
    return X, y


@pytest.mark.slow
def test_the_same_model_on_any_number_of_nodes_and_over_grpc(fleet):
    settings = ("data.n=200", "data.m=10", "rounds=6")
    done = fleet.start("run", *settings, "runtime=grpc", "runtime.nodes=3", "out=run")
    models = [reference(*settings, f"runtime.nodes={nodes}") for nodes in (1, 7, 200)]
    done.ends(0)
    assert done.complaints == ""
    for model in models:
        np.testing.assert_allclose(model, model_of(fleet.folder / "run"), rtol=1e-8, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("algo=network/centaur", "model=mlp", "model.module.hidden=[8]"),
        ("algo=headmean", "model.pictures=60"),
    ],
)
def test_pictures_over_grpc(fleet, settings):
    settings = (
        *settings,
        "data=patterns",
        "data.n=24",
        "data.m=6",
        f"rounds={2 if 'algo=centaur' in settings else 1}",
    )
    fleet.start("run", *settings, "runtime=grpc", "runtime.nodes=2", "out=run").ends(0)
    there = np.load(fleet.folder / "run/model.npz")
    for name, array in Experiment(compose(settings)).run().model.items():
        np.testing.assert_allclose(there[name], array, rtol=1e-4, atol=1e-6)
    assert not (fleet.folder / "run/private").exists()


@pytest.mark.slow
def test_real_and_simulated_users_in_one_federation_and_a_newcomer(fleet):
    """Over TLS: alice and bob have files, fifty users are simulated; dora comes later.

    dora is not registered.
    """
    folder = fleet.folder
    make_certificates(folder / "tls", ["127.0.0.1"])
    registered = fleet.start("roster", "roster.json", "alice", "bob", "--simulated", "extra=50")
    rows = {
        name: write_csv(folder / f"{name}.csv", seed)
        for seed, name in enumerate(("alice", "bob", "dora"))
    }
    registered.ends(0)
    assert (folder / "roster.json").stat().st_mode & 0o777 == 0o600
    settings = ("eps=8", f"data.d={FEATURES}", "data.n=52", "data.m=6", "rounds=4")
    server, port = fleet.server(
        *settings,
        "out=run",
        "--roster",
        "roster.json",
        "--certificates",
        "tls",
        "--simulate",
        "--stay",
    )
    trust = ("--root-certificates", "tls/ca.crt")

    def real(name, *more):
        return fleet.client(
            port,
            name,
            "--data",
            f"{name}.csv",
            *trust,
            "--state",
            f"{name}-state",
            *more,
            tokens="tokens",
        )

    clients = [real("alice"), real("bob")]
    for client in clients:
        client.ends(0)
        assert "joined fedrep at epsilon 8" in client.said and "held-out row(s)" in client.said
    server.says("giving the model in run")
    account = json.loads((folder / "run/result.json").read_text())["privacy"]["account"]
    assert account["runs"] == 1 and account["epsilon"] == pytest.approx(8, rel=1e-3)
    assert not any(word in server.said for word in ("error of", "alice: ")), (
        "errors of real users are theirs"
    )

    port = int(server.said.rpartition("127.0.0.1:")[2].partition(",")[0])
    newcomer = fleet.start(
        *(
            "client",
            "--server",
            f"127.0.0.1:{port}",
            "--user",
            "dora",
            "--data",
            "dora.csv",
            *trust,
        ),
        *("--state", "dora-state"),
    )
    newcomer.ends(0)
    assert "got the model published by" in newcomer.said
    server.send(signal.SIGINT)
    server.ends(0)

    published = model_of(folder / "run")
    for name, (X, y) in rows.items():
        (kept,) = (folder / f"{name}-state").glob("*.npz")
        assert kept.name == f"{name}.npz" and kept.stat().st_mode & 0o777 == 0o600
        with np.load(kept) as file:
            w = file["w"]
        own = row_order(0, identities_of([name]), np.zeros(ROWS, dtype=int), (X, y))
        train = own[: ROWS - int(0.2 * ROWS)]
        v = np.linalg.lstsq(X[train] @ published, y[train], rcond=None)[0]
        np.testing.assert_allclose(w, published @ v, rtol=1e-6, atol=1e-8)
        secrets = [w, v, *X, y]
        for path in [*(folder / "run").iterdir(), server.out, server.err]:
            if path.is_file():
                assert not found(path.read_bytes(), secrets), path
    assert len(ledger_of(folder / "run")) == 5


def found(content: bytes, secrets) -> bool:
    """Whether the bytes contain any of these vectors, or a number of one.

    Numbers are searched for as 64 or 32 bits, and in decimal digits.
    """
    numbers = np.concatenate([np.ravel(secret) for secret in secrets])
    forms = {x.astype(kind).tobytes() for x in numbers for kind in ("<f8", ">f8")}
    forms |= {
        numbers[i : i + 2].astype("<f4").tobytes() for i in range(len(numbers) - 1)
    }  # four bytes may occur by chance
    forms |= {repr(float(x))[:9].encode() for x in numbers}
    return any(form in content for form in forms)


@pytest.mark.slow
def test_thirty_processes_of_one_user_each_that_do_not_need_torch(fleet):
    (fleet.folder / "traps").mkdir()
    for name in ("torch", "matplotlib", "ray"):
        (fleet.folder / f"traps/{name}.py").write_text(
            f"raise RuntimeError('{name} was imported')\n"
        )
    settings = ("data.n=30", "data.d=6", "data.m=6", "runtime.nodes=30", "rounds=3")
    server, port = fleet.server(*settings, "out=run", "--insecure")
    path = os.pathsep.join([str(fleet.folder / "traps"), os.environ.get("PYTHONPATH", "")])
    clients = [fleet.client(port, str(i), PYTHONPATH=path) for i in range(30)]
    server.ends(0)
    for client in clients:
        client.ends(0)
    np.testing.assert_allclose(model_of(fleet.folder / "run"), reference(*settings), atol=1e-8)
    assert "0 users missing" not in server.said and server.said.count("round ") == 3


class Tap:
    """Flower's bridge with a participant instead of a network; every message is kept as bytes."""

    def __init__(self, participant):
        self.participant, self.messages = participant, []
        self.client = GrpcClient(participant)

    def request(self, ins_wrapper):
        question = ServerMessage.FromString(ins_wrapper.server_message.SerializeToString())
        answer = self.client.answer(question)
        self.messages.append((question.WhichOneof("msg"), answer.SerializeToString()))
        return ResWrapper(ClientMessage.FromString(self.messages[-1][1]))

    def close(self):
        pass


@pytest.mark.parametrize("algo", ["fedrep", "altmin", "centaur", "expmech"])
def test_no_head_and_no_row_is_in_any_message(tmp_path, algo):
    """Two real users from hello to goodbye; what they say is searched for what is theirs."""
    names = ("alice", "bob")
    rows = {name: write_csv(tmp_path / f"{name}.csv", seed) for seed, name in enumerate(names)}
    roster = Roster(Member(name, 1, new_token()) for name in names)
    settings = [
        f"algo={algo}",
        "runtime=grpc",
        "data=remote",
        f"data.d={FEATURES}",
        "data.n=2",
        "eps=8",
    ]
    experiment = Experiment(compose([*settings, "rounds=2"]), roster)
    admission = AdmissionControl(
        roster, welcome=lambda node: experiment.runtime.welcome(experiment.factory, roster, node)
    )
    said, taps = [], {}
    for name in names:
        own = OwnRows(tmp_path / f"{name}.csv", "target", 0.25)
        identity = Identity(name, roster.members[name].token)
        taps[name] = Tap(Participant(identity, own, tmp_path / f"{name}-state", say=said.append))
        admission.admit(GrpcClientProxy("unknown", taps[name]))
    run_server_loop(experiment.strategy, admission, len(experiment.strategy.plan), workers=2)
    admission.dismiss(1.0)

    for name, (X, y) in rows.items():
        client, kinds = taps[name].participant.client, [kind for kind, _ in taps[name].messages]
        assert kinds[:2] == ["get_properties_ins"] * 2 and kinds[-2:] == [
            "evaluate_ins",
            "reconnect_ins",
        ]
        asked = experiment.federation.asked
        assert kinds.count("fit_ins") == sum(
            asked(step.phase.groups, step.group)[name] for step in experiment.strategy.plan
        )
        w = client.weights(client.cohort, experiment.strategy.shared)
        with np.load(tmp_path / f"{name}-state/{name}.npz") as kept:
            np.testing.assert_array_equal(kept["w"], w[0])
        head = w @ experiment.strategy.shared[0]
        for kind, message in taps[name].messages:
            assert not found(message, [w, head, X, y]), kind
        held_out = client.cohort.y.size
        assert held_out == 9 and any(f"{name}: mean squared error on 3" in line for line in said)
