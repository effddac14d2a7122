"""Nodes of several users: what one user's rows are decides about that user's part alone."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.common import EvaluateIns, FitIns, ndarrays_to_parameters, parameters_to_ndarrays

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.federation.identity import Identity
from privfed.federation.node_clients import NodeClients, Served
from privfed.federation.participant import OwnRows, Participant
from privfed.federation.roster import Member, Roster, new_token
from privfed.foundation.errors import ConfigError

D, USERS = 3, 40
ALGORITHMS = ("fedrep", "altmin", "centaur", "expmech", "jlmargin")
NAMES = [f"user{i:02}" for i in range(USERS)]
LAST = NAMES[-1]


@pytest.fixture
def clinic(tmp_path):
    """Make a node with forty users, given what becomes of the last one's lines; and its run."""

    runs = {}

    def make(algo, lines=None, sizes=lambda i: 8, said=None):
        rng = np.random.default_rng(0)
        text = ["user,a,b,c,target"]
        for i, name in enumerate(NAMES):
            rows = rng.standard_normal((12, D))
            targets = np.where(rows @ np.ones(D) > 0, 1.0, -1.0)
            numbers = np.column_stack([rows, targets])[: sizes(i)].tolist()
            mine = [",".join(map(repr, row)) for row in numbers]
            if name == LAST and lines is not None:
                mine = lines(mine)
            text += [f"{name},{line}" for line in mine]
        path = tmp_path / "clinic.csv"
        path.write_text("\n".join(text) + "\n")
        if algo not in runs:
            roster = Roster([Member("clinic", USERS, new_token())])
            settings = ["data=remote", f"data.d={D}", f"data.n={USERS}", "rounds=2", "init=random"]
            error = ["data.error=risk"] if algo == "jlmargin" else []
            runs[algo] = Experiment(compose([f"algo={algo}", *settings, *error]), roster)
        say = (lambda line: None) if said is None else said.append
        own = OwnRows(path, "target", 0.25)
        me = Participant(Identity("clinic", ""), own, tmp_path / f"state-{algo}", say=say)
        me.welcome(runs[algo].factory.welcome(range(USERS)).to_json())
        return me, runs[algo]

    return make


CHANGES = {
    "a NaN": lambda lines: [lines[0].replace(lines[0].split(",")[1], "nan"), *lines[1:]],
    "no number": lambda lines: ["x,y,z,1", *lines[1:]],
    "an extra row": lambda lines: [*lines, lines[0]],
    "one row only": lambda lines: lines[:1],
    "every row damaged": lambda lines: ["?"] * len(lines),
    "withdrawn": lambda lines: [],
}


def parts(me, run):
    """Return each user's part of the first step, by a client of that user alone."""
    found = {}
    clients = [each.client for each in me.clients.served]
    clients += [] if me.clients.absent is None else [me.clients.absent]
    for client in clients:
        for i, user in enumerate(client.cohort.ids.tolist()):
            alone = NodeClients([Served(run.factory.serving(client.cohort[i : i + 1]))])
            found[user] = sums_of(alone, run)
    return found


def sums_of(clients, run, number=1):
    step = run.strategy.plan[number - 1]
    run.strategy.done = number - 1
    told = run.strategy.announcement(step).to_config()
    shared = run.strategy.shared if step.phase.announce is None else step.phase.announce()
    answer = clients.fit(FitIns(ndarrays_to_parameters(shared), told))
    assert answer.metrics == {"step": number}
    return parameters_to_ndarrays(answer.parameters)


def check_sum(me, run):
    """Check that the node's sum is that of its users' parts; return the parts."""
    total, mine = sums_of(me.clients, run), parts(me, run)
    assert sorted(mine) == list(range(USERS))
    asked = [part for part in mine.values() if part]  # the others are in another group
    for i, found in enumerate(total):
        expected = sum(part[i] for part in asked)
        scale = 1e-9 * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=scale)
    return mine


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_one_users_lines_keep_nobody_away_and_move_nobody_else(clinic, algo):
    before = check_sum(*clinic(algo))
    for kind, change in CHANGES.items():
        after = check_sum(*clinic(algo, change))
        for user in range(USERS - 1):
            for a, b in zip(before[user], after[user], strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{kind}: user {user}")
        if kind in ("every row damaged", "withdrawn") and algo in ("fedrep", "altmin", "centaur"):
            assert all(not part.any() for part in after[USERS - 1])


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_users_with_different_numbers_of_rows_are_each_computed_alone(clinic, algo):
    me, run = clinic(algo, sizes=lambda i: 6 + i % 4)
    assert len(me.clients.served) == 4 and me.clients.absent is None
    check_sum(me, run)


def test_the_operator_is_told_and_nobody_else(clinic):
    said = []
    clinic("fedrep", CHANGES["a NaN"], said=said)
    assert any("1 row(s) left out, the first because line" in line for line in said)
    said.clear()
    clinic("fedrep", CHANGES["withdrawn"], said=said)
    assert any("1 of 40 registered user(s) have no rows and contribute nothing" in x for x in said)
    said.clear()
    clinic("fedrep", CHANGES["one row only"], said=said)
    assert any("1 user(s) with 1 row(s) contribute nothing" in line for line in said)


def test_more_users_than_registered_are_refused_before_anything_is_sent(clinic):
    with pytest.raises(ConfigError, match="has rows of 41 user"):
        clinic("fedrep", lambda lines: [*lines, *(f"1,2,3,4\nzoe,{lines[0]}",)])


def test_users_without_rows_have_no_head_and_others_have(clinic, tmp_path):
    me, run = clinic("fedrep", CHANGES["withdrawn"], sizes=lambda i: 6 + i % 3)
    model = ndarrays_to_parameters(run.strategy.shared)
    answer = me.evaluate(EvaluateIns(model, {"judge": False}))
    assert (answer.loss, answer.num_examples, answer.metrics) == (0.0, 1, {})
    heads = {path.name for path in (tmp_path / "state-fedrep").glob("*.npz")}
    assert heads == {f"{name}.npz" for name in NAMES[:-1]}


def test_a_group_whose_only_user_withdrew_still_answers(clinic):
    """A silent node would tell that the user is gone."""
    me, run = clinic("altmin", CHANGES["withdrawn"])
    alone = NodeClients([], me.clients.absent)
    for number in (1, 2):
        assert [np.count_nonzero(total) for total in sums_of(alone, run, number)] == [0, 0]
    assert all(len(sums_of(me.clients, run, number)) == 2 for number in (1, 2))
