"""The protocol between nodes and server: exact totals whatever is lost, and what nodes refuse."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.secure_checks import (
    check_messages_say_nothing,
    check_no_node_stands_alone,
    check_noise_is_whole,
    check_seeds_are_long,
    check_steps_have_masks_of_their_own,
)
from support.secure_federation import Town, without_noise

from privfed.foundation.errors import ConfigError, PrivfedError
from privfed.secure.journal import Journal
from privfed.secure.node import ENTRY, SEALED, SecureNode
from privfed.secure.terms import Terms, packed, sums_to_json

SIZE = 7
STAGES = ("announce", "masked", "survivors", "unmask")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from(STAGES)), max_size=3), st.data())
def test_every_tolerated_pattern_of_losses_gives_the_sum_of_the_survivors(losses, data):
    """A quarter of the nodes is lost at any stages; they are back in the next step."""
    town = Town([1] * 12, honest=0.75)
    town.begin()
    x = np.random.default_rng(0).integers(-1000, 1000, (12, SIZE)).astype(float)
    total = without_noise(SIZE, 1.0)
    town.gone = {
        stage: {who for who, when in losses if STAGES.index(when) <= place}
        for place, stage in enumerate(STAGES)
    }
    sent = [who for who in range(12) if who not in town.gone["masked"]]
    assert (town.step(1, x, total) == x[sent].sum(axis=0)).all()
    town.gone = {}
    assert (town.step(2, x, total) == x.sum(axis=0)).all()


@pytest.mark.parametrize("lost", [(), (0, 17), (5, 11, 29, 30, 31, 59)])
def test_a_sparse_graph_gives_the_same(lost):
    town = Town([1] * 60)
    assert town.terms.degrees.neighbours <= 30
    town.begin()
    x = np.arange(60 * SIZE, dtype=float).reshape(60, SIZE)
    town.gone = {"masked": lost}
    kept = [i for i in range(60) if i not in lost]
    assert (town.step(1, x, without_noise(SIZE, 1.0)) == x[kept].sum(axis=0)).all()


def test_below_the_threshold_nothing_is_unmasked():
    town = Town([1] * 12, honest=0.75)
    town.begin()
    town.gone = {"masked": (0, 1, 2, 3)}
    with pytest.raises(PrivfedError, match="only 8 of 12 users answered"):
        town.step(1, np.ones((12, SIZE)), without_noise(SIZE))
    assert not [stage for _, stage, _ in town.seen if stage in ("survivors", "unmask")]


def test_too_few_shares_unmask_nothing():
    town = Town([1] * 12, honest=0.75)
    town.begin()
    town.gone = {"unmask": range(7)}
    with pytest.raises(PrivfedError, match="nothing was unmasked"):
        town.step(1, np.ones((12, SIZE)), without_noise(SIZE))


def test_a_clinic_counts_with_all_its_users():
    town = Town([5, *[1] * 15])
    town.begin()
    town.gone = {"masked": (0,)}
    with pytest.raises(PrivfedError, match="only 15 of 20 users"):
        town.step(1, np.ones((16, SIZE)), without_noise(SIZE))


def at_unmasking() -> Town:
    """Return a federation whose nodes have sent their sums of step 1."""
    town = Town([1] * 5)
    town.begin()
    for place, message in town.server.announce(1, [without_noise(2)], range(5)).items():
        town.masked(place, message, 1, np.ones(2))
    return town


def test_a_node_vouches_for_one_set_of_survivors_only():
    town = at_unmasking()
    everybody = packed(np.ones(5, dtype=bool))
    ask = {"secure": "survivors", "step": 1, "survivors": everybody}
    first = town.nodes[0].answer(ask)
    assert town.nodes[0].answer(ask) == first
    town.terms.__dict__["most_lost"] = 1
    other = packed(np.array([1, 1, 1, 1, 0], dtype=bool))
    with pytest.raises(ConfigError, match="other survivors"):
        town.nodes[0].answer({**ask, "survivors": other})


def test_a_node_reveals_nothing_unless_its_neighbours_were_told_the_same():
    town = at_unmasking()
    everybody = packed(np.ones(5, dtype=bool))
    town.nodes[0].answer({"secure": "survivors", "step": 1, "survivors": everybody})
    k = town.terms.degrees.neighbours
    forged = {"secure": "unmask", "step": 1, "tags": bytes(32 * k), "shares": bytes(SEALED * k)}
    with pytest.raises(ConfigError, match="told other survivors"):
        town.nodes[0].answer(forged)
    assert town.nodes[0].journal.unmasked == []


def test_a_node_that_is_called_lost_reveals_nothing():
    town = at_unmasking()
    without_me = packed(np.array([0, 1, 1, 1, 1], dtype=bool))
    with pytest.raises(ConfigError, match="not those who took part"):
        town.nodes[0].answer({"secure": "survivors", "step": 1, "survivors": without_me})


def test_a_step_is_answered_once():
    town = at_unmasking()
    message = {"present": packed(np.ones(5, dtype=bool)), "step": 1}
    message["sums"] = town.nodes[0].journal.sums
    again, _ = town.nodes[0].masked(message, [np.ones(2)], b"request")
    sent = [answer["words"] for place, stage, answer in town.seen if stage == "masked"]
    assert (again == sent[0]).all()
    with pytest.raises(ConfigError, match="answered before"):
        town.nodes[0].masked(message, [np.zeros(2)], b"other parameters")


def test_a_restarted_node_goes_on_and_still_answers_once(tmp_path):
    town = Town([1] * 5)
    town.nodes[0].journal = Journal(path=tmp_path / "journal.json")
    town.begin()
    x = np.arange(10.0).reshape(5, 2)
    town.step(1, x, without_noise(2, 1.0))
    town.nodes[0] = SecureNode(town.nodes[0].key, Journal.at(tmp_path / "journal.json"))
    assert (town.step(2, x, without_noise(2, 1.0)) == x.sum(axis=0)).all()
    assert town.nodes[0].journal.unmasked == [1, 2]
    reborn = SecureNode(town.nodes[0].key, Journal.at(tmp_path / "journal.json"))
    message = {"present": packed(np.ones(5, dtype=bool)), "step": 2}
    message["sums"] = town.nodes[0].journal.sums
    with pytest.raises(ConfigError, match="answered before"):
        reborn.masked(message, [np.zeros(2)], b"another question")
    assert (tmp_path / "journal.json").stat().st_mode & 0o777 == 0o600


def session_of(town: Town, nonce: bytes) -> dict:
    terms, keys = town.terms.to_json(), town.server.keys
    return {"secure": "join", "terms": terms, "keys": keys, "nonce": nonce, "step": 1}


@pytest.mark.parametrize("other_run", [False, True])
def test_a_session_that_was_left_is_never_entered_again(other_run):
    """A server that leads a node away and back would see one step with other masks taken off.

    The same step with one neighbour less differs by the mask of that pair, and nothing else.
    """
    town = Town([1] * 12, honest=0.75)
    town.begin()
    node, total = town.nodes[0], without_noise(2)
    told = town.server.announce(1, [total], range(12))[0]
    first, _ = node.masked({**told, "step": 1}, [np.ones(2)], b"request")
    away = session_of(town, b"another")
    if other_run:
        terms = replace(town.terms, run="another run").to_json()
        answers = [each.answer({"secure": "keys", "terms": terms}) for each in town.nodes]
        away |= {"terms": terms, "keys": b"".join(bytes(each["key"]) for each in answers)}
    node.answer(away)
    with pytest.raises(ConfigError, match="given up"):
        node.answer(session_of(town, b""))
    if not other_run:  # the step may be begun again, with masks of its own
        again, _ = node.masked({**told, "step": 1}, [np.ones(2)], b"request")
        assert (again != first).all()


def test_another_roster_than_told_is_refused():
    town = Town([1] * 5)
    town.nodes[2].roster = bytes(32)
    ask = {"secure": "keys", "terms": town.terms.to_json()}
    with pytest.raises(ConfigError, match=r"roster has the hash .* nothing was sent"):
        town.nodes[2].answer(ask)
    town.nodes[2].roster = town.terms.roster
    assert town.nodes[2].answer(ask)["key"]


def test_a_server_cannot_put_its_own_key_in_a_node_s_place():
    town = Town([1] * 5)
    town.begin()
    forged = bytearray(town.server.keys)
    forged[96:128] = bytes(range(32))
    ask = {**session_of(town, b""), "keys": bytes(forged)}
    with pytest.raises(ConfigError, match="has not signed"):
        town.nodes[0].answer(ask)


def test_nodes_whose_keys_the_server_leaves_out_count_as_absent():
    """Else a server could leave out all keys but one, and know every mask of that node."""
    town = Town([1] * 12, honest=0.75)
    town.begin()
    keys, each = bytearray(town.server.keys), 96
    for j in (3, 4, 5):
        keys[each * j : each * (j + 1)] = bytes(each)
    node = town.nodes[0]
    bundle = node.answer({**session_of(town, b"fewer"), "keys": bytes(keys)})["bundle"]
    beside = node.session.beside.tolist()
    for j in (3, 4, 5):  # and nothing is said that the server could read in their stead
        at = beside.index(j)
        assert bundle[ENTRY * at : ENTRY * (at + 1)] == bytes(ENTRY)
    everybody = {"present": packed(np.ones(12, dtype=bool)), "step": 1}
    everybody["sums"] = sums_to_json([without_noise(2)])
    with pytest.raises(ConfigError, match="have not joined"):
        node.masked(everybody, [np.ones(2)], b"request")
    keys[:each] = bytes(each)
    with pytest.raises(ConfigError, match="another key for this node"):
        node.answer({**session_of(town, b"fewer"), "keys": bytes(keys)})


@pytest.mark.parametrize(
    ("honest", "colluding", "match"),
    [
        (0.0, 0.0, "privacy.honest"),
        (1.5, 0.0, "privacy.honest"),
        (0.5, 0.5, "privacy.colluding"),
        (0.1, 0.09, "privacy.honest"),
    ],
)
def test_fractions_that_leave_no_noise_are_one_line(honest, colluding, match):
    with pytest.raises(ConfigError, match=match):
        assert Terms("r", ("00", "11", "22"), (1, 1, 1), honest, colluding).degrees


def test_no_node_stands_alone():
    check_no_node_stands_alone()


def test_steps_have_masks_of_their_own():
    check_steps_have_masks_of_their_own()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_noise_is_whole_at_every_loss(lost):
    std = check_noise_is_whole(lost)
    assert abs(std - 1) < 0.05


def test_with_all_present_noise_is_that_of_a_trusted_server():
    """Ten draws of 4,000 numbers: the standard deviation is known to half a percent."""
    stds = [check_noise_is_whole(0, nodes) for nodes in range(10, 20)]
    assert abs(np.mean(np.square(stds)) - 1) < 0.02


def test_noise_is_whole_without_what_colluding_nodes_know():
    check_noise_is_whole(0, colluding=2)


def test_seeds_are_long():
    check_seeds_are_long()


def test_messages_say_nothing():
    check_messages_say_nothing()
