"""Limits of a client: what is not planned is not answered, and every answer is paid for once."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays

from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.federation.client_ledger import ClientLedger, worst_user
from privfed.federation.identity import Identity
from privfed.federation.limits import OPEN, Limits
from privfed.federation.participant import OwnRows, Participant, PlanShownError
from privfed.federation.plan import Plan
from privfed.federation.roster import Member, Roster, new_token
from privfed.foundation.errors import BudgetError, ConfigError
from privfed.privacy.accounting import composed, total_epsilon

D, USERS = 4, 40
REMOTE = ("data=remote", f"data.d={D}", f"data.n={USERS}", "rounds=3", "eps=2")


def experiment(*more):
    roster = Roster([Member("alice", 1, new_token()), Member("rest", USERS - 1, new_token())])
    return Experiment(compose([*REMOTE, *more]), roster)


@pytest.fixture
def alice(tmp_path):
    """Make alice's client; her own rows are few numbers that nothing else has."""

    def make(rows=8, state="state", said=None, **limits):
        X = np.random.default_rng(5).standard_normal((rows, D))
        y = X @ np.arange(1.0, D + 1)
        path = tmp_path / "mine.csv"
        if not path.exists():
            lines = [",".join(map(repr, row)) for row in np.column_stack([X, y]).tolist()]
            path.write_text("\n".join(["a,b,c,d,target", *lines]) + "\n")
        say = (lambda text: None) if said is None else said.append
        own = OwnRows(path, "target", 0.0)
        return Participant(
            Identity("alice", ""), own, tmp_path / state, say=say, limits=Limits(**limits)
        )

    return make


def asking(run, number, parameters=None, **changed):
    """What a server sends for a step, by its plan; `changed` settings are not."""
    strategy = run.strategy
    strategy.done = number - 1
    step = strategy.plan[number - 1]
    told = strategy.announcement(step)
    config = replace(told, **changed).to_config()
    if parameters is None and step.phase.announce is not None:
        parameters = step.phase.announce()
    elif parameters is None:  # after an initialiser that was not run here
        parameters = strategy.shared or ([np.eye(D, 2)] if number > 1 else [])
    return FitIns(ndarrays_to_parameters(parameters), config)


def joined(participant, run, node="alice"):
    participant.welcome(run.factory.welcome(run.roster.nodes[node]).to_json())
    return participant


def sums(answer):
    return parameters_to_ndarrays(answer.parameters)


def test_a_run_as_planned_is_answered_and_charged_exactly(alice):
    run = experiment()
    me = joined(alice(), run)
    for number in range(1, len(run.strategy.plan) + 1):
        assert me.fit(asking(run, number)).metrics == {"step": number}
    ledger = ClientLedger(me.state, me.rows.path)
    assert [step.step for step in ledger.steps] == [1, 2, 3, 4]
    costs = [cost for step in run.strategy.plan for _, cost in run.strategy.costs(step)]
    promised = total_epsilon(costs, run.budget.delta)
    assert composed(ledger.spent(), run.budget.delta) == pytest.approx(promised, rel=1e-12)
    assert promised == pytest.approx(2.0, rel=1e-6)
    assert ledger.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"clips": (1e90,)}, "the clip norm 1e\\+90, which is not planned"),
        ({"clips": (0.0,)}, "the clip norm 0, which is not planned"),
        ({"clips": (math.nan,)}, "the clip norm nan"),
        ({"clips": ()}, "not as planned"),
        ({"task": "gradient"}, "another 'task'"),
        ({"round": 7}, "another 'round'"),
        ({"seed": 1}, "another 'seed'"),
        ({"release": False}, "another 'release'"),
        ({"measure": "histogram"}, "another 'measure'"),
        ({"group": 1, "groups": 7}, "another 'groups'"),
        ({"sampling": 0.5}, "another 'sampling'"),
        ({"step": 5}, "step 5 is not in the plan"),
        ({"step": 0}, "step 0 is not in the plan"),
        ({"step": -1}, "step -1 is not in the plan"),
    ],
)
def test_what_is_not_in_the_plan_is_refused_and_not_charged(alice, changed, words):
    run = experiment()
    me = joined(alice(), run)
    with pytest.raises(ConfigError, match=words) as refusal:
        me.fit(asking(run, 1, **changed))
    assert refusal.value.exit_code == 2 and "\n" not in str(refusal.value)
    assert not ClientLedger(me.state, me.rows.path).steps


def test_settings_beside_the_announcement_are_refused(alice):
    run = experiment()
    me = joined(alice(), run)
    ins = asking(run, 1)
    ins.config["more"] = 1
    with pytest.raises(ConfigError, match="another 'more'"):
        me.fit(ins)


def test_a_step_is_answered_once_however_often_it_is_asked_with_other_parameters(alice):
    run = experiment("init=random")
    me = joined(alice(), run)
    rng, answered = np.random.default_rng(0), 0
    first = me.fit(asking(run, 1))
    for _ in range(1000):
        U = np.linalg.qr(rng.standard_normal(run.strategy.shared[0].shape))[0]
        with pytest.raises(ConfigError, match="step 1 was asked again with other parameters"):
            me.fit(asking(run, 1, [U]))
            answered += 1
    assert answered == 0 and len(me.guard.ledger.steps) == 1
    again = me.fit(asking(run, 1))
    assert again.parameters.tensors == first.parameters.tensors
    assert len(me.guard.ledger.steps) == 1


def test_steps_are_answered_in_order_and_may_be_missed(alice):
    run = experiment("init=random")
    me = joined(alice(), run)
    me.fit(asking(run, 1))
    me.fit(asking(run, 3))
    for number in (1, 2):
        with pytest.raises(ConfigError, match=f"step {number} was asked after step 3"):
            me.fit(asking(run, number))
    with pytest.raises(ConfigError, match="step 4 is not in the plan, which has 3"):
        me.fit(replace_step(asking(run, 3), 4))


def replace_step(ins, number):
    ins.config["step"] = number
    return ins


def test_a_published_model_asks_for_nothing(alice):
    run = experiment()
    me = alice()
    me.welcome(run.factory.welcome(range(1), published=True).to_json())
    with pytest.raises(ConfigError, match="its model is published; nothing was sent"):
        me.fit(asking(run, 1))
    # And not by sending the plan of a run afterwards either, unless it is shown and paid for.
    assert me.guard is None


def test_one_row_is_not_recovered(alice):
    """The attack: a huge clip norm, and the gradient of the only row that judges is that row."""
    run = experiment("init=random", "algo.estimator=two-batches", "data.k=1")
    me = joined(alice(rows=2), run)
    rows = me.client.cohort.X[0]
    U, found = run.strategy.shared[0], []

    def attack(fit):
        """Return the best match of an answer with a row, as a fraction of the row's length."""
        (G,) = sums(fit(asking(run, 1, [U], clips=(1e90,))))
        direction = G[0] / np.linalg.norm(G[0])
        return max(abs(row @ direction) / np.linalg.norm(row) for row in rows)

    assert attack(me.clients.fit) > 0.999999, "without limits the row is told, up to its length"
    with pytest.raises(ConfigError, match="not planned"):
        attack(me.fit)
    # As planned, an answer has at most the clip norm, and there are as many as planned.
    clip = run.strategy.announcement(run.strategy.plan[0]).clips[0]
    for number in range(1, len(run.strategy.plan) + 1):
        found += sums(me.fit(asking(run, number)))
    assert all(np.linalg.norm(G) <= clip for G in found) and len(found) == 3


@pytest.mark.parametrize(
    ("limits", "error", "words"),
    [
        ({"max_clip": 1e-3}, ConfigError, "--max-clip is 0.001"),
        ({"min_users": 41}, ConfigError, "adds up 40 user\\(s\\), --min-users is 41"),
        ({"max_epsilon": 1.9}, BudgetError, "cost epsilon=2 at delta=1e-06, --max-epsilon is 1.9"),
        ({"max_epsilon": 2.0, "max_delta": 1e-9}, BudgetError, "at delta=1e-09"),
    ],
)
def test_a_plan_beyond_the_limits_is_refused_before_anything_is_sent(alice, limits, error, words):
    me = alice(**limits)
    with pytest.raises(error, match=words):
        joined(me, experiment())
    assert me.made is None
    joined(alice(max_clip=100.0, min_users=40, max_epsilon=2.1), experiment())


def test_groups_count_the_users_that_are_added_up(alice):
    run = experiment("algo=altmin", "rounds=4", "init=random")
    joined(alice(min_users=10), run)
    with pytest.raises(ConfigError, match="adds up 10 user"):
        joined(alice(min_users=11), run)


def test_epsilon_adds_up_over_runs_and_servers(alice):
    """Two runs of epsilon 2 at two servers: the second is refused at 2.5, and answered at 3."""
    first, second = experiment(), experiment("seed=1")
    me = joined(alice(max_epsilon=2.5), first)
    for number in range(1, 5):
        me.fit(asking(first, number))
    with pytest.raises(BudgetError, match=r"--max-epsilon is 2\.5; nothing was sent"):
        joined(alice(max_epsilon=2.5), second)
    joined(alice(max_epsilon=2.5), first)  # a run that goes on is not counted twice
    assert joined(alice(max_epsilon=3.0), second).fit(asking(second, 1))
    elsewhere = alice(state="elsewhere", max_epsilon=2.5)
    assert joined(elsewhere, second).fit(asking(second, 1))


def test_what_other_processes_have_spent_in_the_meantime_counts(alice):
    """Both runs fit alone when they are joined; the step that would exceed the limit is refused."""
    first, second = experiment(), experiment("seed=1")
    here, there = (joined(alice(max_epsilon=2.5), run) for run in (first, second))
    for number in range(1, 5):
        here.fit(asking(first, number))
    with pytest.raises(BudgetError) as refusal:
        for number in range(1, 5):
            there.fit(asking(second, number))
    assert refusal.value.exit_code == 3
    ledger = ClientLedger(here.state, here.rows.path)
    assert composed(ledger.spent(), 1e-6) <= 2.5


def test_relations_and_groups_of_several_runs_compose_for_the_worst_user():
    per_group = {(0.5, 0.0, group, 1.0): 1 for group in range(3)}
    paid = Counter({(1.0, 0.0, None, 1.0): 2, **per_group, (0.25, 0.0, 0, 1.0): 1})
    expected = {(1.0, 0.0, None, 1.0): 2, (0.5, 0.0, None, 1.0): 1, (0.25, 0.0, None, 1.0): 1}
    assert worst_user(paid) == expected


def test_another_relation_is_charged_as_replace_one(alice):
    run = experiment("neighbouring=zero-out")
    me = joined(alice(), run)
    for number in range(1, 5):
        me.fit(asking(run, number))
    spent = composed(me.guard.ledger.spent(), run.budget.delta)
    assert spent == pytest.approx(run_cost_replaced(run), rel=1e-9) and spent > 3.5


def run_cost_replaced(run):
    costs = [cost for step in run.strategy.plan for _, cost in run.strategy.costs(step)]
    return total_epsilon([replace(cost, mu=2 * cost.mu) for cost in costs], run.budget.delta)


@pytest.mark.parametrize("algo", ["fedrep", "altmin", "expmech", "centaur"])
def test_a_client_that_was_restarted_gives_the_same_answer_and_pays_once(alice, algo):
    run = experiment(f"algo={algo}")
    asked = run.federation.asked
    number = next(
        i
        for i, step in enumerate(run.strategy.plan, start=1)
        if asked(step.phase.groups, step.group)["alice"]
    )
    before = joined(alice(), run).fit(asking(run, number))
    again = joined(alice(), run)
    after = again.fit(asking(run, number))
    assert before.parameters.tensors == after.parameters.tensors
    assert (before.num_examples, before.metrics) == (after.num_examples, after.metrics)
    assert len(again.guard.ledger.steps) == 1


def test_the_same_answer_even_from_other_rows(alice, tmp_path):
    """A sum of rows that were changed in the meantime would be a second release."""
    run = experiment("init=random")
    me = joined(alice(), run)
    first = me.fit(asking(run, 1))
    path = tmp_path / "mine.csv"
    path.write_text(path.read_text().replace("0.", "1."))
    changed = joined(alice(), run)
    assert changed.clients.fit(asking(run, 1)).parameters.tensors != first.parameters.tensors
    assert changed.fit(asking(run, 1)).parameters.tensors == first.parameters.tensors


def test_measured_clip_norms_change_by_measured_steps_only(alice):
    run = experiment("privacy.clip=auto", "init=random", "rounds=4")
    plan = run.factory.plan
    assert plan.stretches[0].clips == (None,) and not plan.stretches[0].release
    me = joined(alice(max_clip=64.0), run)
    me.fit(asking(run, 1))
    for clip in (1e90, 65.0, 0.0, 2.0**-40):
        with pytest.raises(ConfigError, match="clip norm"):
            me.fit(asking(run, 2, clips=(clip,)))
    me.fit(asking(run, 2, clips=(16.0,)))
    for clip in (33.0, 7.9):
        with pytest.raises(ConfigError, match="not planned"):
            me.fit(asking(run, 3, clips=(clip,)))
    me.fit(asking(run, 4, clips=(60.0,)))  # two steps measured since, one of which was missed
    with pytest.raises(ConfigError, match="--max-clip is 64"):
        me.fit(asking(run, 5, clips=(100.0,)))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda plan: {"epsilon": 0.5}, "cost epsilon=2, the plan says 0.5"),
        (lambda plan: {"relation": "none"}, "not known"),
        (lambda plan: {"users": 0}, "cannot be read"),
        (lambda plan: {"users": True}, "cannot be read"),
        (lambda plan: {"stretches": [{}]}, "cannot be read"),
        (lambda plan: {"more": 1}, "cannot be read"),
        (
            lambda plan: {"stretches": [{**each, "costs": []} for each in plan["stretches"]]},
            "no noise",
        ),
        (
            lambda plan: {
                "stretches": [{**each, "costs": [[math.inf, 0.0]]} for each in plan["stretches"]]
            },
            "no noise",
        ),
        (
            lambda plan: {"stretches": [{**each, "clips": [1e90]} for each in plan["stretches"]]},
            "--max-clip is 1e\\+09",
        ),
        (
            lambda plan: {"stretches": [{**each, "last": 10**9} for each in plan["stretches"]]},
            "cannot be read",
        ),
    ],
)
def test_a_plan_that_contradicts_itself_or_is_none_is_refused(alice, changed, words):
    run = experiment()
    settings = run.factory.welcome(range(1))
    plan = {**settings.plan, **changed(settings.plan)}
    with pytest.raises(ConfigError, match=words):
        alice().welcome(replace(settings, plan=plan).to_json())


def test_without_a_plan_or_with_another_one_later_nothing_is_sent(alice):
    run = experiment()
    settings = run.factory.welcome(range(1))
    for less in ({"plan": None}, {"run": ""}, {"run": "../../etc"}):
        with pytest.raises(ConfigError, match="did not say what it will ask"):
            alice().welcome(replace(settings, **less).to_json())
    me = joined(alice(), run)
    me.fit(asking(run, 1))
    other = experiment("rounds=2")
    with pytest.raises(ConfigError, match="changed the plan of a run that has begun"):
        alice().welcome(replace(settings, plan=other.factory.plan.to_dict()).to_json())
    with pytest.raises(ConfigError, match="the server began another run"):
        joined(me, other)


def test_the_plan_is_shown_before_any_data_are_read(alice, tmp_path):
    said = []
    me = alice(said=said)
    (tmp_path / "mine.csv").unlink()
    me.only_plan = True
    with pytest.raises(PlanShownError):
        joined(me, experiment("eps=1"))
    text = "\n".join(said)
    assert "4 step(s) with 40 user(s), epsilon 1, delta 1e-06 (replace-one)" in text
    assert "steps 2-4" in text and "gradient" in text and "clip norm" in text and "noise of" in text
    assert "0 other run(s), 1 with this one" in text and "added by the server" in text
    assert me.made is None


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("algo=altmin",),
        ("algo=expmech",),
        ("privacy.clip=auto",),
        ("algo=altmin", "privacy.clip=auto"),
        ("privacy.noise_multiplier=20",),
        ("algo=rgrad", "data=trace", "data.n=40"),
        ("algo=network/centaur", "data=patterns", "data.n=9", "data.m=4", "algo.sampling=0.5"),
    ],
)
def test_a_plan_comes_back_as_it_was_and_announces_what_is_announced(more):
    run = experiment(*more) if len(more) < 3 else Experiment(compose([*more, "rounds=3"]))
    plan = run.factory.plan
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert len(plan) == len(run.strategy.plan)
    for number in range(1, len(plan) + 1):
        told = asking(run, number).config
        assert plan.announcement(number, run.federation.seed) == {
            key: value for key, value in told.items() if key not in OPEN
        }
    costs = [cost for step in run.strategy.plan for _, cost in run.strategy.costs(step)]
    assert plan.cost() == pytest.approx(total_epsilon(costs, plan.delta), rel=1e-9)


def test_simulated_users_need_no_ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVFED_STATE", str(tmp_path / "nothing"))
    run = Experiment(compose(["data.n=20", "data.d=4", "rounds=1", "runtime.nodes=1"]))
    me = Participant(Identity("0", ""), None, say=lambda text: None)
    me.welcome(run.factory.welcome(range(20), simulated=True).to_json())
    for _ in range(2):
        assert me.fit(asking(run, 1)).metrics == {"step": 1}
    assert not (tmp_path / "nothing").exists()


KILLED = """
import sys, pathlib, os
from privfed.federation.client_ledger import ClientLedger, AnsweredStep
ledger = ClientLedger(pathlib.Path(sys.argv[1]), pathlib.Path("mine.csv"))
for step in range(1, 1000):
    entry = AnsweredStep("r", "p", step, "a", (1.0,), ((0.1, 0.0, None, 1.0),), "replace-one")
    ledger.charge(entry, None, 1e-6)
    print(step, flush=True)  # the answer leaves
"""


def test_a_killed_client_has_paid_for_all_that_left_and_for_one_step_more_at_most(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    assert process.stdout is not None
    while int(process.stdout.readline()) < 30:
        pass
    process.send_signal(signal.SIGKILL)
    left = [int(line) for line in process.stdout.read().split()] or [30]
    process.wait(60)
    (path,) = tmp_path.glob("ledger-*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"run": "r", "pl')  # as if it was killed while it wrote
    ledger = ClientLedger(tmp_path, tmp_path / "mine.csv")
    assert left[-1] <= len(ledger.steps) <= left[-1] + 1
    assert [step.step for step in ledger.steps] == list(range(1, len(ledger.steps) + 1))
    before = len(ledger.steps)
    again = replace(ledger.steps[-1])
    assert not ledger.charge(again, None, 1e-6)
    assert len(ClientLedger(tmp_path, tmp_path / "mine.csv").steps) == before


def test_a_ledger_that_was_cut_or_changed_is_refused(alice):
    run = experiment()
    me = joined(alice(), run)
    for number in (1, 2, 3):
        me.fit(asking(run, number))
    path = me.guard.ledger.path
    lines = path.read_text().splitlines(keepends=True)
    for changed in (lines[1:], [lines[0].replace('"step": 1', '"step": 2'), *lines[1:]], ["x\n"]):
        path.write_text("".join(changed))
        with pytest.raises(ConfigError, match=r"changed or is missing|is not a ledger"):
            ClientLedger(me.state, me.rows.path)


def test_a_state_folder_that_cannot_be_written_is_one_line(alice, tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ConfigError, match="cannot keep this client's ledger there"):
        joined(alice(), experiment())


@pytest.mark.parametrize(
    "limits",
    [{"max_clip": 0}, {"max_epsilon": 0.0}, {"max_delta": 1.0}, {"min_users": 0}],
)
def test_limits_that_are_none(limits):
    with pytest.raises(ConfigError, match=next(iter(limits)).replace("_", "-")):
        Limits(**limits)
