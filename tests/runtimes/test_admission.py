"""Who is let in: proofs, taken names, connections lost at a bad moment, what is handed out."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from flwr.common import (
    Code,
    DisconnectRes,
    EvaluateRes,
    FitIns,
    GetPropertiesRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)  # fmt: skip
from flwr.server.superlink.fleet.grpc_bidi.grpc_client_proxy import GrpcClientProxy
from support.processes import eventually
from support.puppet import Puppet

from privfed import __version__
from privfed.federation.identity import prove
from privfed.federation.node_settings import Welcome
from privfed.federation.roster import Member, Roster, new_token
from privfed.foundation.errors import PrivfedError
from privfed.runtimes.admission import AdmissionControl
from privfed.runtimes.grpc_transport import listening

OK = Status(Code.OK, "")


class Caller(GrpcClientProxy):
    """Somebody who connects, whose answers are a test's; hang_up is noted."""

    def __init__(self, name, token, **changed):
        super().__init__(name + "'s connection", self)
        self.name, self.token, self.changed = name, token, changed
        self.heard, self.ready = [], threading.Event()
        self.hung_up, self.model = False, None
        self.ready.set()

    def get_properties(self, ins, timeout, group_id):
        self.heard.append(ins.config)
        if "hello" in ins.config:
            proof = prove(self.token, self.name, ins.config["hello"])
            told = {"node": self.name, "proof": proof, "version": __version__} | self.changed
            return GetPropertiesRes(
                OK, {key: value for key, value in told.items() if value is not None}
            )
        assert self.ready.wait(10)
        if self.hung_up:
            raise ConnectionError("closed")
        return GetPropertiesRes(OK, {"ready": True})

    def close(self):
        self.hung_up = True

    def evaluate(self, ins, timeout, group_id):
        self.model = parameters_to_ndarrays(ins.parameters)
        return EvaluateRes(OK, 0.0, 1, {})

    def reconnect(self, ins, timeout, group_id):
        self.heard.append("go home")
        return DisconnectRes("")

    fit = get_parameters = None

    @property
    def refused(self):
        return next((question["refused"] for question in self.heard if "refused" in question), None)


@pytest.fixture
def roster():
    return Roster([Member("alice", 1, new_token()), Member("bob", 2, new_token())])


@pytest.fixture
def admission(roster):
    return AdmissionControl(roster, welcome)


def welcome(node):
    """Settings that say whom they are for."""
    return Welcome({}, None, {}, 0, 1, 0, range(1), 3, None, "mse", about=node)


def call(admission, name, **changed):
    """Somebody who holds the name's token comes and is dealt with."""
    member = admission.roster.members.get(name)
    caller = Caller(name, member.token if member else "x" * 40, **changed)
    admission.receive(caller)
    return caller


def test_a_registered_node_is_let_in_under_its_name(admission):
    alice = call(admission, "alice")
    assert (
        admission.all() == {"alice": alice}
        and alice.cid == "alice"
        and alice.heard[1] == {"welcome": welcome("alice").to_json()}
    )
    challenges = {call(admission, "bob", version="old").heard[0]["hello"] for _ in range(3)}
    assert len(challenges) == 3, "a proof is good once"


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("alice", {"proof": b"x" * 32}, "token is wrong"),
        ("alice", {"proof": b""}, "token is wrong"),
        ("alice", {"proof": None}, "no name or no proof"),
        ("alice", {"proof": "text"}, "no name or no proof"),
        ("alice", {"node": 7}, "no name or no proof"),
        ("alice", {"node": "bob"}, "token is wrong"),
        ("alice", {"version": "0.0.1"}, "'alice' runs privfed 0.0.1"),
        ("alice", {"version": None}, "install the same version"),
        ("mallory", {}, "'mallory' is not registered, or its token is wrong"),
        ("x" * 10_000, {}, "is not registered"),
        ("a\nforged line", {}, r"'a\nforged line' is not registered"),
    ],
)
def test_everybody_else_is_told_why_not_and_cut_off(admission, caplog, name, changed, words):
    caller = call(admission, name, **changed)
    assert words in caller.refused and len(caller.refused) < 300 and caller.hung_up
    assert not admission.all() and words in caplog.text and "\nforged" not in caplog.text


def test_strangers_cannot_find_out_who_is_registered(admission, monkeypatch):
    """The answers to a wrong token and to an unknown name are the same, and so is the work."""
    proofs = []
    monkeypatch.setattr(
        "privfed.runtimes.admission.prove",
        lambda token, node, challenge: proofs.append(len(token)) or prove(token, node, challenge),
    )
    wrong, unknown = (call(admission, name, proof=b"x" * 32) for name in ("alice", "clara"))
    assert wrong.refused.replace("alice", "clara") == unknown.refused
    assert len(wrong.heard) == len(unknown.heard) and len(proofs) == 2 and len(set(proofs)) == 1
    assert wrong.heard[-1]["later"] == unknown.heard[-1]["later"]


def test_a_proof_of_another_moment_or_name_is_none(roster):
    alice = roster.members["alice"]
    assert (
        prove(alice.token, "alice", b"1")
        != prove(alice.token, "alice", b"2")
        != prove(alice.token, "bob", b"2")
    )


def test_a_name_is_connected_once_and_free_again_afterwards(admission):
    first, second = call(admission, "alice"), call(admission, "alice")
    assert "connected already" in second.refused and second.heard[-1]["later"] is True
    assert admission.all() == {"alice": first}
    admission.unregister(second)  # the connection that was turned away ends; the first one stays
    assert admission.all() == {"alice": first}
    admission.unregister(first)
    assert not admission.all()
    assert admission.all() == {} and call(admission, "alice").refused is None


def test_whoever_leaves_while_being_welcomed_is_not_let_in_and_frees_only_its_own_place(admission):
    slow = Caller("alice", admission.roster.members["alice"].token)
    slow.ready.clear()
    thread = threading.Thread(target=admission.receive, args=(slow,))
    thread.start()
    eventually(lambda: slow.cid == "alice", "being recognised")
    assert "connected already" in call(admission, "alice").refused
    admission.unregister(slow)
    again = Caller("alice", admission.roster.members["alice"].token)
    again.ready.clear()
    second = threading.Thread(target=admission.receive, args=(again,))
    second.start()
    eventually(lambda: again.cid == "alice", "being recognised")
    slow.ready.set()  # its thread ends only now
    thread.join(10)
    assert not admission.all() and "connected already" in call(admission, "alice").refused, (
        "the second one's place is kept"
    )
    again.ready.set()
    second.join(10)
    assert admission.all() == {"alice": again}


@pytest.mark.parametrize(
    "answer", [GetPropertiesRes(Status(Code.GET_PROPERTIES_NOT_IMPLEMENTED, "no"), {}), None, 7]
)
def test_strange_answers_end_the_connection_and_nothing_else(admission, caplog, answer):
    caller = Caller("alice", "")
    caller.get_properties = lambda ins, timeout, group_id: answer
    admission.receive(caller)
    assert caller.hung_up and not admission.all() and len(caplog.records) == 1
    assert call(admission, "alice").refused is None


def test_waiting_ends_with_enough_nodes_in_time_or_with_a_failure(admission):
    assert not admission.wait_for(1, timeout=0)
    threading.Timer(0.05, lambda: call(admission, "alice")).start()
    assert admission.wait_for(1, timeout=30)
    began = time.monotonic()
    threading.Timer(0.05, lambda: admission.fail(PrivfedError("a node stopped"))).start()
    with pytest.raises(PrivfedError, match="a node stopped"):
        admission.wait_for(2, timeout=30)
    assert time.monotonic() - began < 20
    with pytest.raises(PrivfedError, match="a node stopped"):
        admission.all()


def test_the_published_model_is_given_to_whoever_comes(admission):
    admission.published = ndarrays_to_parameters([np.eye(3)])
    stranger = call(admission, "mallory", proof=b"")
    np.testing.assert_array_equal(stranger.model[0], np.eye(3))
    assert (
        stranger.heard[-1] == "go home"
        and stranger.heard[1] == {"welcome": welcome("").to_json()}
        and not admission.all()
    )


def test_who_reads_nothing_is_given_up_in_time(roster):
    """Its connection is alive, so only the clock tells; the place is free again."""
    admission = AdmissionControl(roster, hello_timeout=30)
    with (
        listening(admission, "127.0.0.1:0", None, 1 << 20, admission.places) as port,
        Puppet(port, "alice", roster.members["alice"].token) as puppet,
    ):
        puppet.introduce()
        eventually(admission.all, "being let in")
        began = time.monotonic()
        with pytest.raises(Exception, match=r"^$") as end:
            admission.all()["alice"].fit(
                FitIns(ndarrays_to_parameters([np.zeros(200_000)]), {}), timeout=0.3, group_id=None
            )
        assert type(end.value).__name__ == "GrpcBridgeClosed" and time.monotonic() - began < 15
        eventually(lambda: not admission.all(), "its leaving")
