"""Rounds in which every user takes part by its own coin: coins, divisor, cost, and who knows."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from opacus.accountants import PRVAccountant
from support import naive

from privfed.algorithm.announcement import Announcement
from privfed.commands import audit, replay
from privfed.commands.run import main
from privfed.config.composition import compose
from privfed.data.cohort import coins
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import BudgetError, ConfigError
from privfed.privacy.accounting import gaussian_epsilon, sampled_mu

N, Q = 12, 0.5
SMALL = (
    "algo=fedavg_ft",
    "data=patterns",
    f"data.n={N}",
    "data.m=6",
    "data.size=6",
    "model.module.hidden=[8,5]",
    "rounds=3",
)
SAMPLED = (*SMALL, f"algo.sampling={Q}")
BLOCK = 1024
IDS = np.arange(3 * BLOCK + 100)


def prepared(*settings):
    return Experiment(compose(settings))


def config(step=1, q=0.3, seed=0, secret=False):
    return {"probability": q, "secret": secret, "seed": seed, "step": step}


def test_coins_do_not_depend_on_nodes():
    whole = coins(IDS, **config())
    for part in (IDS[:1], IDS[5:17], IDS[BLOCK - 2 : BLOCK + 2], IDS[::7], IDS[-1:], IDS[:0]):
        np.testing.assert_array_equal(coins(part, **config()), whole[part])


@pytest.mark.parametrize("secret", [False, True])
@pytest.mark.parametrize("q", [1e-9, 0.01, 0.3, 0.9, 1 - 1e-16])
def test_coins_fall_as_often_as_announced(q, secret):
    thrown = np.concatenate([coins(IDS, **config(step, q, secret=secret)) for step in range(1, 9)])
    assert abs(thrown.mean() - q) <= 6 * math.sqrt(q * (1 - q) / thrown.size) + 1e-12


@pytest.mark.parametrize("secret", [False, True])
def test_coins_are_thrown_anew_in_every_step(secret):
    one, other = (coins(IDS, **config(step, secret=secret)) for step in (1, 2))
    assert abs(np.mean(one & other) - 0.3**2) < 0.03 and abs(np.corrcoef(one, other)[0, 1]) < 0.1
    blocks = one[: 3 * BLOCK].reshape(3, BLOCK)
    assert np.abs(np.corrcoef(blocks) - np.eye(3)).max() < 0.2, "and in every block of users"
    assert not np.array_equal(one, coins(IDS, **config(seed=1)))


def test_secret_coins_differ_from_call_to_call():
    assert not np.array_equal(coins(IDS, **config(secret=True)), coins(IDS, **config(secret=True)))
    np.testing.assert_array_equal(coins(IDS, **config()), coins(IDS, **config()))


@pytest.mark.parametrize(("noise", "secret"), [("seeded", False), ("discrete", True)])
def test_coins_are_as_secret_as_noise(noise, secret):
    strategy = prepared(*SAMPLED, f"privacy.noise={noise}").strategy
    told = strategy.announcement(strategy.plan[0])
    assert told.secret is secret and told.sampling == Q
    everybody = prepared(*SMALL).strategy
    assert "sampling" not in everybody.announcement(everybody.plan[0]).to_config()


@pytest.mark.parametrize("nodes", [1, 5])
def test_the_divisor_is_the_expected_number_of_users(nodes):
    experiment = prepared(
        *SAMPLED,
        "rounds=1",
        "seed=1",
        "eps=inf",
        "algo.clip=0.05",
        "algo.eta=1",
        f"runtime.nodes={nodes}",
    )
    start = [array.copy() for array in experiment.strategy.shared]
    client = experiment.factory(range(N))
    parts = [
        client.contribute(block, start, Announcement(1, "update", 1, 1, (), True)).parts
        for block in client.blocks()
    ]
    updates = np.concatenate(
        [
            np.concatenate([p.detach().double().reshape(len(p), -1) for p in some], 1)
            for some in parts
        ]
    )
    there = coins(np.arange(N), **config(q=Q, seed=1))
    assert 0 < there.sum() != Q * N, "otherwise this test says nothing"
    wanted = sum(naive.clip(update, 0.05) for update in updates[there]) / (Q * N)
    model = experiment.run().model
    moved = np.concatenate(
        [(new - old).ravel() for new, old in zip(model.values(), start, strict=True)]
    )
    np.testing.assert_allclose(moved, wanted, atol=1e-4 * np.linalg.norm(wanted))


def test_who_does_not_take_part_answers_like_everybody_else():
    """Silence or a shorter message would tell observers who took part, against the guarantee."""
    experiment = prepared(*SAMPLED)
    strategy = experiment.strategy
    told = strategy.announcement(strategy.plan[0])
    ins = FitIns(ndarrays_to_parameters(strategy.shared), told.to_config())
    there = coins(np.arange(N), **config(told.step, Q, told.seed))
    answers = [experiment.factory(range(i, i + 1)).to_client().fit(ins) for i in range(N)]
    arrays = [parameters_to_ndarrays(answer.parameters) for answer in answers]
    assert {(len(some), some[0].shape, some[0].dtype) for some in arrays} == {
        (1, strategy.size(), np.dtype(float))
    }
    assert {(answer.num_examples, tuple(answer.metrics)) for answer in answers} == {(1, ("step",))}
    assert len({len(answer.parameters.tensors[0]) for answer in answers}) == 1
    assert [bool(some[0].any()) for some in arrays] == there.tolist()


def test_nobody_is_missing_because_of_a_coin():
    outcome = prepared(*SAMPLED, f"runtime.nodes={N}", "runtime.threads=1").run()
    assert [row["missing_users"] for row in outcome.rows] == [
        0,
        0,
        0,
    ] and "notes" not in outcome.result


def test_a_user_who_does_not_take_part_keeps_its_head():
    experiment = prepared("algo=network/centaur", "model=mlp", *SAMPLED[1:])
    strategy = experiment.strategy
    client = experiment.factory(range(N))
    told = strategy.announcement(strategy.plan[0])
    client.fit(strategy.shared, told.to_config())
    there = coins(np.arange(N), **config(told.step, Q, told.seed))
    assert client.memory.now["W"].any(axis=(1, 2)).tolist() == there.tolist()


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
def test_the_ledger_accounts_for_coins_and_fills_the_budget(relation, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*SAMPLED, "eps=1", f"neighbouring={relation}", "out=o", "--quiet"]) == 0
    ledger = [json.loads(line) for line in (tmp_path / "o/ledger.jsonl").read_text().splitlines()]
    result = json.loads((tmp_path / "o/result.json").read_text())["privacy"]
    assert [line["sampling"] for line in ledger] == [Q] * 3
    assert 0.98 <= result["epsilon"] == ledger[-1]["epsilon_spent"] <= 1
    assert (
        result["epsilon_by_neighbouring"]["replace-one"]
        > result["epsilon_by_neighbouring"]["zero-out"]
    )
    spent = [line["epsilon_spent"] for line in ledger]
    assert spent == sorted(spent) and spent[0] < spent[-1]
    rows = (tmp_path / "o/rounds.csv").read_text().splitlines()
    noise = float(rows[1].split(",")[rows[0].split(",").index("noise_std")])
    assert noise == pytest.approx(ledger[0]["std"] / (Q * N)), (
        "of the mean, whose divisor is the expected number"
    )


def test_the_ledger_agrees_with_opacus():
    experiment = prepared(*SAMPLED, "eps=1", "neighbouring=zero-out")
    experiment.run()
    accountant = PRVAccountant()
    accountant.history = [(1 / experiment.ledger.releases[0].mu, Q, 3)]
    assert experiment.ledger.epsilon == pytest.approx(
        accountant.get_epsilon(experiment.budget.delta, eps_error=0.01), rel=0.02
    )


def test_everybody_taking_part_costs_the_exact_formula():
    experiment = prepared(*SMALL, "eps=1")
    experiment.run()
    mu = math.hypot(*(release.mu for release in experiment.ledger.releases))
    assert (
        experiment.ledger.epsilon
        == gaussian_epsilon(mu, experiment.budget.delta)
        == pytest.approx(1, rel=1e-4)
    )
    assert {release.sampling for release in experiment.ledger.releases} == {1.0}


def test_coins_buy_less_noise_for_a_sum():
    noise = [prepared(*SMALL, f"algo.sampling={q}").strategy.plan[0].mu for q in (1.0, Q)]
    assert noise[1] > 1.5 * noise[0]


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("q", [0.999, 0.9])
def test_what_is_planned_is_never_refused(q, replaced):
    relation = "replace-one" if replaced else "zero-out"
    mu = (
        prepared(*SMALL, f"algo.sampling={q}", "rounds=20", f"neighbouring={relation}")
        .strategy.plan[0]
        .mu
    )
    assert mu == sampled_mu(1.0, 1e-5, q, 20, replaced)


REFUSED = {
    "nobody": (("algo.sampling=0",), "algo.sampling=0: must be a probability above 0"),
    "more than everybody": (
        ("algo.sampling=1.5",),
        "algo.sampling=1.5: must be a probability above 0",
    ),
    "a word": (("algo.sampling=half",), "algo.sampling=half: must be a probability above 0"),
    "private clip norms": (
        ("privacy.clip=auto",),
        "privacy.clip=auto: is for algo.sampling=1, not for algo.sampling=0.5",
    ),
    "no delta": (("delta=0",), "delta=0: Gaussian noise needs delta above 0"),
    "noise without a budget": (
        ("eps=inf", "privacy.noise_multiplier=1"),
        "eps=inf asks for no noise",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_settings_that_are_refused(what):
    more, words = REFUSED[what]
    with pytest.raises(ConfigError, match=words):
        prepared(
            *(
                setting
                for setting in SAMPLED
                if setting.partition("=")[0] != more[0].partition("=")[0]
            ),
            *more,
        )


def test_a_noise_multiplier_is_taken_as_it_is_and_refused_over_budget():
    experiment = prepared(*SAMPLED, "eps=2", "privacy.noise_multiplier=20")
    experiment.run()
    assert [1 / release.mu for release in experiment.ledger.releases] == pytest.approx(
        [20] * 3, rel=1e-5
    )
    assert 0 < experiment.ledger.epsilon < 2
    with pytest.raises(BudgetError):
        prepared(*SAMPLED, "eps=0.1", "privacy.noise_multiplier=2")


@pytest.mark.parametrize("more", [(), ("--one-run", "--canaries", "50")])
def test_an_audit_with_coins_is_refused(more, tmp_path, monkeypatch, capsys):
    """Its canary is there in every round: it would refute what is true."""
    monkeypatch.chdir(tmp_path)
    kept = [setting for setting in SAMPLED if not setting.startswith("data.n=")]
    assert audit.main([*kept, *more]) == 2
    assert "algo.sampling=0.5: a canary takes part in every round" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_audit_of_a_network_without_coins_is_consistent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = [setting for setting in SMALL if not setting.startswith("data.n=")]
    assert audit.main([*kept, "rounds=2", "--repetitions", "200", "--quiet", "out=o"]) == 0
    found = json.loads((tmp_path / "o/result.json").read_text())["audit"]
    assert 0.3 < found["epsilon_lower"] <= found["epsilon_claimed"] <= 1


def test_a_replay_with_secret_coins_is_refused(capsys):
    assert replay.main([*SAMPLED, "privacy.noise=discrete", "--tries", "3"]) == 2
    assert "a replay needs privacy.noise=seeded" in capsys.readouterr().err
