"""Hostile clients over real connections: none exceeds its users' bound, none stops the server."""

from __future__ import annotations

import csv
import io
import json
import os
import queue
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from flwr.common import Code, EvaluateRes, FitRes, Status, ndarrays_to_parameters, serde
from flwr.proto.transport_pb2 import ClientMessage
from support.processes import eventually, ledger_of, model_of, reference
from support.puppet import OK, Puppet, announce_gigabytes, asked, fitted, properties

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.federation.identity import Identity
from privfed.federation.participant import Participant
from privfed.runtimes.grpc import Endpoint
from privfed.runtimes.grpc_client import GrpcClient
from privfed.runtimes.grpc_transport import converse

D, K, CLIP = 6, 2, 0.05
SHAPE = (K, D)
SETTINGS = (f"data.n=61 data.d={D} data.m=6 init=random algo.clip={CLIP} runtime.nodes=2").split()
"""Two nodes: 0, with 30 users, is hostile; 1, with 31, is not."""


def pickled() -> bytes:
    """A pickle that would be noticed if anybody opened it."""

    class Bomb:
        def __reduce__(self):
            return os._exit, (77,)

    content = io.BytesIO()
    np.save(content, np.array([Bomb()], dtype=object), allow_pickle=True)
    return content.getvalue()


def npy(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def without_a_value(step) -> ClientMessage:
    message = fitted(step, np.ones(SHAPE))
    message.fit_res.metrics["step"].Clear()
    return message


ONES = np.ones(SHAPE)
LOUD = {
    "of norm 1e30": lambda t: fitted(t, 1e30 * ONES),
    "as large as numbers get": lambda t: fitted(t, -np.finfo(float).max * ONES),
    "a million users": lambda t: fitted(t, ONES, users=10**6),
    "a negative number of users": lambda t: fitted(t, np.asfortranarray(ONES), users=-5),
}
"""Well-formed answers: they count, clipped."""
MALFORMED = {
    "NaN": lambda t: fitted(t, np.nan * ONES),
    "one infinity": lambda t: fitted(t, np.where(np.eye(K, D) > 0, np.inf, 0.0)),
    "wrong shape": lambda t: fitted(t, np.ones((K, D + 1))),
    "transposed": lambda t: fitted(t, ONES.T),
    "float32": lambda t: fitted(t, ONES.astype(np.float32)),
    "whole numbers": lambda t: fitted(t, ONES.astype(np.int64)),
    "the other byte order": lambda t: fitted(t, ONES.astype(">f8")),
    "a pickle": lambda t: fitted(t, pickled()),
    "two arrays": lambda t: fitted(t, ONES, ONES),
    "no array": lambda t: fitted(t),
    "random bytes": lambda t: fitted(t, os.urandom(10_000)),
    "no bytes": lambda t: fitted(t, b""),
    "a header that does not end": lambda t: fitted(t, npy("{'descr': ((")),
    "a header in a header": lambda t: fitted(t, npy("(" * 5000)),
    "a terabyte, it says": lambda t: fitted(
        t, npy("{'descr': '<f8', 'fortran_order': False, 'shape': (137438953472,), }")
    ),
    "an old round": lambda t: fitted(t - 1, ONES),
    "a coming round": lambda t: fitted(t + 1, ONES),
    "no round": lambda t: fitted("now", ONES),
    "a round without a value": without_a_value,
    "another kind of answer": lambda t: properties(ready=True),
    "nothing": lambda t: ClientMessage(),
    "a failure": lambda t: ClientMessage(
        fit_res=serde.fit_res_to_proto(
            FitRes(Status(Code.FIT_NOT_IMPLEMENTED, "x" * 9999), ndarrays_to_parameters([]), 1, {})
        )
    ),
}
"""Answers that count as none."""


def test_no_answer_moves_a_sum_by_more_than_its_users_may():
    """The server runs in this process, on a real port, so that what enters its gate is seen."""
    poisons = {**LOUD, **MALFORMED}
    experiment = Experiment(
        compose(
            [
                *SETTINGS,
                "runtime=grpc",
                "runtime.join_timeout=60",
                "eps=inf",
                f"rounds={len(poisons)}",
            ]
        )
    )
    experiment.runtime.spawn = False
    experiment.runtime.outside = Endpoint("127.0.0.1:0", None)
    tokens = {member.name: member.token for member in experiment.roster}
    ports, sums, honest = queue.SimpleQueue(), [], []
    experiment.runtime.on_listening = ports.put
    release = experiment.federation.gate.release

    def recording(name, total, **settings):
        sums.append(total.copy())
        return release(name, total, **settings)

    experiment.federation.gate.release = recording
    me = GrpcClient(Participant(Identity("1", tokens["1"]), None, say=lambda text: None))

    def answer(message):
        reply = me.answer(message)
        if message.WhichOneof("msg") == "fit_ins":
            honest.append(np.load(io.BytesIO(reply.fit_res.parameters.tensors[0])))
        return reply

    with ThreadPoolExecutor(2) as pool:
        run = pool.submit(experiment.run)
        port = ports.get(timeout=60)
        friend = pool.submit(converse, f"127.0.0.1:{port}", None, answer, lambda: me.finished)
        with Puppet(port, "0", tokens["0"]) as puppet:
            puppet.enter()
            for step, poison in enumerate(poisons.values(), start=1):
                assert asked(puppet.listen())["step"] == step
                puppet.say(poison(step))
            assert puppet.listen().WhichOneof("msg") == "evaluate_ins"
            lies = EvaluateRes(OK, -1.0, 10**6, {"own": 1e308, "oracle": 1.0, "mine": b"12345678"})
            puppet.say(ClientMessage(evaluate_res=serde.evaluate_res_to_proto(lies)))
            assert puppet.listen().WhichOneof("msg") == "reconnect_ins"
        friend.result(60)
        result = run.result(60).result

    for name, total, mine in zip(poisons, sums, honest, strict=True):
        assert np.linalg.norm(total - mine) <= (30 * CLIP if name in LOUD else 0.0), name
    assert [row["missing_users"] for row in experiment.rows] == [0] * len(LOUD) + [30] * len(
        MALFORMED
    )
    assert result["metrics"]["mse"] < 100 and experiment.strategy.sums["users"] == 31


@pytest.mark.slow
def test_a_server_survives_strangers_floods_and_thieves_of_names(fleet):
    """Node 0 is hostile; node 1 sends zeros, and delays each step until the abuse is over."""
    settings = (*SETTINGS, "runtime.nodes=3", "eps=4", "rounds=8")
    server, port = fleet.server(*settings, "runtime.round_timeout=20", "out=run", "--insecure")
    folder = fleet.folder / "run/private/tokens"
    tokens = [(folder / f"{name}.token").read_text().strip() for name in "01"]
    silent = socket.create_connection(("127.0.0.1", port))
    with socket.create_connection(("127.0.0.1", port)) as noisy:
        noisy.sendall(os.urandom(100_000))
    honest = fleet.client(port, "2")
    holder = Puppet(port, "1", tokens[1]).enter()
    villain = Puppet(port, "0", tokens[0]).enter()

    def abuse(step):
        """One step of the hostile node, and what strangers do meanwhile."""
        villain.listen()
        if step == 1:
            with Puppet(
                port, "0", tokens[0]
            ) as twin:  # a second holder of the name, while the first is there
                twin.introduce()
                assert "connected already" in asked(twin.listen())["refused"]
            with Puppet(port, "0", "not the token, but as long as one") as thief:
                thief.introduce()
                refused = asked(thief.listen())["refused"]
            with Puppet(port, "stranger") as stranger:
                stranger.introduce()
                told = asked(stranger.listen())["refused"]
            assert told.replace("'stranger'", "'0'") == refused and "not registered" in told
        elif step == 2:
            with Puppet(port) as flood:  # many messages nobody asked for
                flood.say(*[fitted(step, ONES)] * 2000)
                assert flood.is_cut_off()
        elif step == 3:  # by its length prefix alone: what is announced is never allocated
            assert b"grpc-status" in announce_gigabytes(port, 2**31 - 1)
        elif step == 4:  # longer than any honest answer
            villain.say(fitted(step, np.zeros(4_000_000)))
            assert villain.is_cut_off()
        elif step == 5:  # the next step's answer, before that was asked for, with this one's
            villain.say(fitted(step, 0 * ONES), fitted(step + 1, 1e30 * ONES))
        if step not in (4, 5):
            villain.say(fitted(step, 0 * ONES))

    for step in range(1, 9):
        assert asked(holder.listen())["step"] == step
        if step <= 5:
            abuse(step)
        if step == 6:  # it had spoken ahead of this step
            assert villain.is_cut_off()
        if step in (4, 6):
            villain = Puppet(port, "0", tokens[0]).enter()
        holder.say(fitted(step, 0 * ONES))
        if step == 7:  # back, alive, and reading nothing
            eventually(
                lambda: server.complaints.count("0 has left") == 3,
                "the end of a connection that reads nothing",
            )
    assert holder.listen().WhichOneof("msg") == "evaluate_ins"  # so the last answer was heard
    holder.close()
    server.ends(0)
    honest.ends(0)
    silent.close()

    folder = fleet.folder / "run"
    with (folder / "rounds.csv").open() as file:
        missing = [int(row["missing_users"]) for row in csv.DictReader(file)]
    assert missing == [0, 0, 0, 20, 0, 20, 20, 20]
    # Nodes that sent zeros or nothing moved nothing: the honest node's run, with everybody's
    # noise and divisor.
    np.testing.assert_array_equal(
        model_of(folder), reference(*settings, absent=lambda step: {"0", "1"})
    )
    assert (
        len(ledger_of(folder)) == 8
        and json.loads((folder / "result.json").read_text())["privacy"]["epsilon"] <= 4
    )
    assert "Traceback" not in server.complaints and peak(folder) < 1000


def peak(folder):
    """Megabytes the server has held at most."""
    return json.loads((folder / "result.json").read_text())["peak_rss_mb"]
