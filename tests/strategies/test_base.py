"""The server trusts nobody: what a node sends is bounded, and what is malformed counts as zero."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.common import Code, EvaluateRes, FitRes, Status, ndarrays_to_parameters
from flwr.server.client_manager import SimpleClientManager

from privfed.algorithm.replies import judgements, totals_of
from privfed.algorithm.tensors import decoded
from privfed.foundation.errors import BudgetError, ConfigError, PrivfedError, RefutedError
from privfed.privacy.adaptive_clipping import AUTO
from privfed.privacy.clipping import clip
from privfed.runtimes.inprocess import LocalProxy


def reply(cid, *arrays):
    result = FitRes(
        Status(Code.OK, ""),
        ndarrays_to_parameters(list(arrays)),
        num_examples=10**6,
        metrics={"step": 1},
    )
    return LocalProxy(cid, None), result


@pytest.fixture
def strategy(experiment):
    """Three nodes of 100 users; the first step (spectral) is being answered."""
    return experiment("runtime.nodes=3", "eps=inf").strategy


def first_shape(strategy):
    return next(iter(strategy.shapes(strategy.plan[0]).values()))


def totals(strategy, *replies, bound=2.0):
    shape = first_shape(strategy)
    return totals_of(list(replies), [(shape, bound)], strategy.federation.registered, clip, 1)


def test_a_node_moves_the_sum_by_at_most_its_registered_users_times_the_clip_norm(strategy):
    size = first_shape(strategy)[0]
    total, answered = totals(strategy, reply("0", np.full(size, 1e300)))
    assert np.linalg.norm(total[0]) <= 100 * 2.0 and np.linalg.norm(total[0]) == pytest.approx(
        200.0, rel=1e-5
    )
    assert answered == ["0"]


@pytest.mark.parametrize("bad", ["nan", "inf", "shape", "dtype", "two arrays", "none"])
def test_malformed_replies_count_as_zero(strategy, bad):
    size = first_shape(strategy)[0]
    arrays = {
        "nan": [np.full(size, np.nan)],
        "inf": [np.full(size, -np.inf)],
        "shape": [np.ones(size + 1)],
        "dtype": [np.ones(size, dtype=np.float32)],
        "two arrays": [np.ones(size), np.ones(size)],
        "none": [],
    }[bad]
    total, answered = totals(strategy, reply("0", *arrays), reply("1", np.ones(size)))
    np.testing.assert_array_equal(total[0], np.ones(size))
    assert answered == ["1"]


def test_strangers_and_second_answers_are_ignored(strategy):
    size = first_shape(strategy)[0]
    total, answered = totals(
        strategy, reply("7", np.ones(size)), reply("1", np.ones(size)), reply("1", np.ones(size))
    )
    np.testing.assert_array_equal(total[0], np.ones(size))
    assert answered == ["1"]


def test_the_order_of_arrival_does_not_matter(strategy):
    rng = np.random.default_rng(0)
    size = first_shape(strategy)[0]
    replies = [reply(str(i), rng.standard_normal(size)) for i in range(3)]
    np.testing.assert_array_equal(
        totals(strategy, *replies)[0][0], totals(strategy, *replies[::-1])[0][0]
    )


def test_the_divisor_is_the_public_number_of_users_whoever_replies(strategy):
    means = []
    strategy.apply = lambda step, released: means.extend(released)
    strategy.federation.strict = False
    size = first_shape(strategy)[0]
    small = np.full(size, 1e-3)
    strategy.aggregate_fit(1, [reply("0", small)], [RuntimeError("two nodes are gone")])
    np.testing.assert_allclose(means[0], small / 300, rtol=1e-12)


def test_a_step_that_charges_nothing_is_stopped(strategy):
    strategy.release = lambda step, sums, users: [sums[step.task] / users]
    with pytest.raises(
        RefutedError, match=r"step 1 \(spectral\) used users' data without a release"
    ):
        strategy.aggregate_fit(1, [reply("0", np.zeros(first_shape(strategy)))], [])


def test_a_failing_node_stops_a_run_in_one_process(strategy):
    with pytest.raises(RuntimeError, match="bug"):
        strategy.aggregate_fit(1, [], [RuntimeError("bug")])


def test_missing_nodes_are_noticed_before_anything_is_released(strategy):
    strategy.federation.join_timeout = 0
    with pytest.raises(PrivfedError, match="0 of 3 nodes"):
        strategy.initialize_parameters(SimpleClientManager())


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': ((",
        "(" * 5000,
        "{'descr': '<f8'",
        "\x00",
        "{'descr': '<f8', 'shape': (2,)}",
        "[]",
    ],
)
def test_no_bytes_that_look_like_an_array_stop_the_server(header):
    magic = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    assert decoded(magic + header.encode() + bytes(16), (2,)) is None


def told(cid, **metrics):
    return LocalProxy(cid, None), EvaluateRes(Status(Code.OK, ""), 0.0, 1, metrics)


@pytest.mark.parametrize(
    "lies",
    [
        {},
        {"own": 1.0},
        {"own": 1.0, "oracle": 1.0, "more": 1.0},
        {"own": b"1", "oracle": 1.0},
        {"own": "x", "oracle": 1.0},
        {"own": np.nan, "oracle": 1.0},
        {"own": 1e308, "oracle": 1.0},
        {"own": -1.0, "oracle": 1.0},
    ],
)
def test_a_judgement_is_what_the_nodes_of_most_users_tell(lies):
    """The liar comes first, and must not decide what the others may tell."""
    honest = [told("1", own=2.0, oracle=1.0), told("2", own=3.0, oracle=1.0)]
    nodes = {"0": 1, "1": 1, "2": 1}
    assert judgements([told("0", **lies), *honest], nodes) == {
        "users": 2,
        "own": 5.0,
        "oracle": 2.0,
    }
    assert not judgements([told("0", **{"own": np.inf})], nodes)


def mus(strategy):
    return np.array([(step.mu, step.measure) for step in strategy.plan])


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("privacy.clip=auto",),
        ("init.clip=auto",),
        ("init=random",),
        ("privacy.init_share=0.9",),
    ],
)
def test_the_plan_spends_the_whole_budget_and_no_more(experiment, more):
    made = experiment("eps=2", *more)
    assert np.sqrt((mus(made.strategy) ** 2).sum()) == pytest.approx(made.budget.mu, rel=1e-12)


def test_shares_are_as_configured(experiment):
    made = experiment(
        "privacy.clip=auto", "privacy.clip_share=0.2", "privacy.init_share=0.5", "rounds=4"
    )
    share = (mus(made.strategy) / made.budget.mu) ** 2
    assert share[:, 1].sum() == pytest.approx(0.2)
    by_task = {
        step.task: sum(
            s[0] for s, t in zip(share, made.strategy.plan, strict=True) if t.task == step.task
        )
        for step in made.strategy.plan
    }
    assert by_task == pytest.approx({"spectral": 0.4, "gradient": 0.4})


def test_auto_measures_before_a_clip_norm_is_needed_and_while_rounds_go_on(experiment):
    plan = experiment("privacy.clip=auto").strategy.plan
    assert [(s.task, s.round, s.mu > 0, s.measure > 0) for s in plan] == [
        ("spectral", 0, False, True),
        ("spectral", 1, True, False),
        ("gradient", 0, False, True),
        ("gradient", 1, True, True),
        ("gradient", 2, True, True),
        ("gradient", 3, True, False),
    ]
    only_init = experiment("init.clip=auto").strategy
    assert only_init.clips["spectral"] == AUTO and only_init.clips["gradient"] == 0.05


def test_fixed_noise_that_costs_too_much_is_refused_before_any_data(experiment):
    with pytest.raises(BudgetError, match="4 planned releases"):
        experiment("privacy.noise_multiplier=1")
    assert experiment("privacy.noise_multiplier=20").run().result["privacy"]["epsilon"] < 1


@pytest.mark.parametrize("clip", ["0", "-1", "inf", "nan", "big"])
@pytest.mark.parametrize("key", ["privacy.clip", "algo.clip", "init.clip"])
def test_impossible_clip_norms(experiment, key, clip):
    with pytest.raises(ConfigError, match=key):
        experiment(f"{key}={clip}")


def test_a_resumed_run_goes_on_without_nodes_it_had_lost_if_enough_users_are_there(strategy):
    strategy.federation.join_timeout, strategy.federation.quorum = 0, 0.6
    manager = SimpleClientManager()
    manager.register(LocalProxy("0", None))
    strategy.done = 2
    with pytest.raises(PrivfedError, match="--resume"):
        strategy.initialize_parameters(manager)
    manager.register(LocalProxy("2", None))
    strategy.initialize_parameters(manager)
    strategy.done = 0
    with pytest.raises(PrivfedError, match="nothing was released"):
        strategy.initialize_parameters(manager)
