"""Costs of several runs together: against the accounting of all their releases at once."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from privfed.privacy.account_totals import as_gaussian, counted, factor, total, worst_user
from privfed.privacy.accounting import Planned, composed, gaussian_epsilon, prices, total_epsilon
from privfed.privacy.neighbouring import RELATIONS, REPLACE_ONE, WEAK, ZERO_OUT

DELTA = 1e-6
COST = st.one_of(
    st.builds(Planned, mu=st.floats(0.01, 0.5)), st.builds(Planned, epsilon=st.floats(0.01, 0.5))
)
RUNS = st.lists(st.lists(COST, min_size=1, max_size=5), min_size=1, max_size=5)


@given(RUNS)
@settings(max_examples=60, deadline=None)
def test_runs_together_cost_what_their_releases_cost_together(runs):
    together = total([(REPLACE_ONE, prices(run)) for run in runs], DELTA, REPLACE_ONE)
    assert together == pytest.approx(total_epsilon([c for run in runs for c in run], DELTA))


@given(RUNS, st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_the_order_of_runs_does_not_matter(runs, random):
    costs = [(random.choice((REPLACE_ONE, ZERO_OUT)), prices(run)) for run in runs]
    before = [total(costs, DELTA, relation) for relation in RELATIONS]
    random.shuffle(costs)
    assert [total(costs, DELTA, relation) for relation in RELATIONS] == pytest.approx(before)


def test_four_runs_of_a_sweep():
    """What four released runs at epsilon 1 and 2 cost is no claim of any of them."""
    from privfed.privacy.accounting import gaussian_mu

    mus = [gaussian_mu(epsilon, DELTA) for epsilon in (1, 1, 2, 2)]
    runs = [(REPLACE_ONE, prices([Planned(mu / math.sqrt(10))] * 10)) for mu in mus]
    spent = total(runs, DELTA, REPLACE_ONE)
    assert spent == pytest.approx(gaussian_epsilon(math.hypot(*mus), DELTA)) and 3.3 < spent < 3.4


@given(
    st.lists(
        st.builds(
            Planned,
            mu=st.floats(0, 1),
            epsilon=st.floats(0, 1),
            group=st.sampled_from([None, 0, 1, 2]),
        ),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_no_user_of_any_group_pays_more_than_the_worst_user(costs):
    worst = composed(worst_user(prices(costs)), DELTA)
    groups = {cost.group for cost in costs} - {None} or {None}
    for group in groups:
        own = [cost for cost in costs if cost.group in (None, group)]
        assert worst >= total_epsilon(own, DELTA) - 1e-9
    if len({cost.epsilon for cost in costs}) == 1 and len({cost.mu for cost in costs}) == 1:
        assert worst == pytest.approx(total_epsilon(costs, DELTA))


def test_groups_are_parallel_within_a_run_and_sequential_over_runs():
    run = prices([Planned(0.3, group=group) for group in range(5)])
    one = total([(REPLACE_ONE, run)], DELTA, REPLACE_ONE)
    two = total([(REPLACE_ONE, run), (REPLACE_ONE, run)], DELTA, REPLACE_ONE)
    assert one == pytest.approx(gaussian_epsilon(0.3, DELTA))
    assert two == pytest.approx(gaussian_epsilon(0.3 * math.sqrt(2), DELTA)), (
        "nobody knows which group of the second run a user of the first was in"
    )


def test_relations():
    run = prices([Planned(0.5)])
    assert total([(ZERO_OUT, run)], DELTA, REPLACE_ONE) == pytest.approx(
        gaussian_epsilon(1.0, DELTA)
    )
    assert total([(ZERO_OUT, run)], DELTA, ZERO_OUT) == pytest.approx(gaussian_epsilon(0.5, DELTA))
    assert total([(REPLACE_ONE, run)], DELTA, ZERO_OUT) == pytest.approx(
        gaussian_epsilon(0.5, DELTA)
    )
    mixed = [(ZERO_OUT, run), (REPLACE_ONE, run)]
    assert total(mixed, DELTA, REPLACE_ONE) == pytest.approx(
        gaussian_epsilon(math.hypot(1.0, 0.5), DELTA)
    )
    assert math.isinf(total([(WEAK, run)], DELTA, REPLACE_ONE))
    assert total([(WEAK, run)], DELTA, WEAK) == pytest.approx(gaussian_epsilon(0.5, DELTA))
    assert factor(REPLACE_ONE, WEAK) == 1 and factor(ZERO_OUT, WEAK) == 2


def test_sampled_releases_are_composed_and_not_counted_as_if_all_took_part():
    run = prices([Planned(0.4, sampling=0.1)] * 20)
    twice = total([(REPLACE_ONE, run), (REPLACE_ONE, run)], DELTA, REPLACE_ONE)
    assert twice == pytest.approx(total_epsilon([Planned(0.4, sampling=0.1)] * 40, DELTA))
    assert twice < 0.5 * gaussian_epsilon(0.4 * math.sqrt(40), DELTA)
    changed = total([(ZERO_OUT, run)], DELTA, REPLACE_ONE)
    assert changed == pytest.approx(total_epsilon([Planned(0.8, sampling=0.1)] * 20, DELTA))


@given(st.floats(0.01, 30))
def test_a_pure_release_is_dominated_by_its_gaussian(epsilon):
    """No test of an epsilon-private release beats the same test of the Gaussian one."""
    mu = as_gaussian(epsilon)
    alpha = np.linspace(1e-9, 1 - 1e-9, 200)
    gaussian = norm.cdf(norm.ppf(1 - alpha) - mu)
    pure = np.maximum(0, np.maximum(1 - np.exp(epsilon) * alpha, np.exp(-epsilon) * (1 - alpha)))
    assert (gaussian <= pure + 1e-9).all()
    # It is the smallest such: the curves touch where both errors are equal.
    corner = 1 / (1 + math.exp(epsilon))
    assert norm.cdf(norm.ppf(1 - corner) - mu) == pytest.approx(corner)


def test_the_filter_is_the_odometer_for_one_kind_and_stricter_for_two():
    gaussian, pure = prices([Planned(0.3)] * 3), prices([Planned(epsilon=0.2)] * 3)
    for run in (gaussian, pure):
        costs = [(REPLACE_ONE, run)] * 2
        assert counted(costs, DELTA, REPLACE_ONE) == total(costs, DELTA, REPLACE_ONE)
    both = [(REPLACE_ONE, gaussian), (REPLACE_ONE, pure)]
    expected = gaussian_epsilon(math.sqrt(3 * 0.3**2 + 3 * as_gaussian(0.2) ** 2), DELTA)
    assert counted(both, DELTA, REPLACE_ONE) == pytest.approx(expected)
    assert total([], DELTA, REPLACE_ONE) == 0 and worst_user(Counter()) == Counter()
