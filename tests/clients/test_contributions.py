"""What a cohort sends is exactly the sum of its users' clipped contributions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import naive

from clients.fedrep import FedRepClient
from clients.initialisers.spectral import SpectralTask as Spectral
from privfed.algorithm.announcement import Announcement
from privfed.data.cohort import Cohort, draw_orders
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import retraction, unsvec
from privfed.kernels.gradients import FITS, JUDGES
from privfed.kernels.tolerances import CANCELLATION
from privfed.privacy.clipping import Dense


def cohort(n, m, d, seed=0, first=0):
    rng = np.random.default_rng(seed)
    return Cohort(
        np.arange(first, first + n), rng.standard_normal((n, m, d)), rng.standard_normal((n, m))
    )


def settings_for(task, clip, release=True, measure=""):
    return {
        "step": 1,
        "task": task,
        "round": 1,
        "seed": 0,
        "clip": np.array([clip]).tobytes(),
        "release": release,
        "measure": measure,
    }


def client(users, estimator="leave-one-out", train="all", **options):
    options = {"heads": "all", "head_batch": None, "batch": None} | options
    return FedRepClient(users, Spectral(), estimator=estimator, train=train, **options)


@settings(max_examples=60, deadline=None)
@example(2, 2, 1, 1e-3, 4)
@given(
    st.integers(1, 6),
    st.integers(2, 7),
    st.integers(1, 8),
    st.floats(1e-3, 1e3),
    st.integers(0, 9999),
)
def test_spectral_sum_is_the_sum_of_clipped_second_moments(n, m, d, clip, seed):
    users = cohort(n, m, d, seed)
    sums, count, metrics = client(users).fit([], settings_for("spectral", clip))

    def part(x, y):
        """Z clipped; its norm counts as at least CANCELLATION times what it is a difference of."""
        Z, a = naive.second_moment(x, y), x * y[:, None]
        terms = (np.sum(np.sum(a, axis=0) ** 2) + np.sum(a * a)) / (m * (m - 1))
        return Z * min(1.0, clip / max(np.linalg.norm(Z), CANCELLATION * terms))

    wanted = sum(part(x, y) for x, y in zip(users.X, users.y, strict=True))
    assert (count, metrics) == (n, {"step": 1})
    np.testing.assert_allclose(unsvec(sums[0], d), wanted, atol=1e-5 * clip + 1e-9)


def test_spectral_norms_survive_cancellation():
    """Nearly parallel examples: the sums of all pairs and of the diagonal are close."""
    users = cohort(4, 5, 6)
    users.X[:] = users.X[:, :1] + 1e-4 * users.X
    norms = Spectral().spectral(users, [], None).norms
    np.testing.assert_allclose(
        norms,
        [np.linalg.norm(naive.second_moment(x, y)) for x, y in zip(users.X, users.y, strict=True)],
    )


@pytest.mark.parametrize("train", ["all", "s0"])
def test_gradient_sum_is_the_sum_of_clipped_gradients(train):
    users = cohort(700, 10, 50)
    U = retraction(cohort(1, 50, 2).X[0])
    own = client(users, train=train)
    rows = slice(5) if train == "s0" else slice(10)
    sums, _, _ = own.fit([U], settings_for("gradient", 0.5))
    wanted = sum(
        naive.clip(naive.leave_one_out_gradient(x[rows], y[rows], U), 0.5)
        for x, y in zip(users.X, users.y, strict=True)
    )
    np.testing.assert_allclose(sums[0].T, wanted, rtol=1e-5, atol=1e-6)


def test_two_batches_are_disjoint_redrawn_and_the_paper_s():
    users = cohort(40, 8, 6)
    U = retraction(cohort(1, 6, 2).X[0])
    own = client(users, estimator="two-batches", train="s0", head_batch=2, batch=1)
    announced = settings_for("gradient", 0.7)
    order = draw_orders(0, 1, np.arange(40), 4)
    assert not np.array_equal(order, draw_orders(0, 2, np.arange(40), 4))
    wanted = sum(
        naive.clip(
            naive.two_batch_gradient(users.X[i], users.y[i], U, order[i, :2], order[i, 2:3]), 0.7
        )
        for i in range(40)
    )
    np.testing.assert_allclose(own.fit([U], announced)[0][0].T, wanted, rtol=1e-5, atol=1e-6)


def test_fresh_batches_share_a_user_s_examples_among_all_rounds():
    """The analysis needs examples that no earlier round has seen."""
    users, T = cohort(30, 12, 6), 3
    own = client(users, estimator="two-batches", batches="fresh", rounds=T)
    assert (own.b_head, own.b) == (2, 2)
    U, seen = retraction(cohort(1, 6, 2).X[0]), []
    for t in range(1, T + 1):
        told = Announcement.from_config(settings_for("gradient", 0.7) | {"round": t})
        seen.append(own.gradient(users, [U], told).batches)
        fits, judges = (np.count_nonzero(seen[-1] == mark, axis=1) for mark in (FITS, JUDGES))
        assert np.all(fits == 2) and np.all(judges == 2)
    assert np.all(np.count_nonzero(seen, axis=0) == 1), "every example serves in exactly one round"
    assert len({batches.tobytes() for batches in seen[0]}) > 1, "users draw for themselves"


def test_fresh_batches_need_examples_for_every_round():
    with pytest.raises(ConfigError, match="need 10 training examples or more, and a user has 5"):
        client(cohort(3, 10, 6), "two-batches", "s0", batches="fresh", rounds=5)
    with pytest.raises(ConfigError, match=r"rounds=None: must be given with algo\.batches=fresh"):
        client(cohort(3, 10, 6), "two-batches", batches="fresh")


def test_one_batch_fits_and_judges_a_head_on_the_same_examples():
    users = cohort(40, 8, 6)
    U = retraction(cohort(1, 6, 2).X[0])
    own = client(users, estimator="one-batch", train="s0")
    rows = np.arange(4)
    wanted = sum(
        naive.clip(naive.two_batch_gradient(x, y, U, rows, rows), 0.7)
        for x, y in zip(users.X, users.y, strict=True)
    )
    got = own.fit([U], settings_for("gradient", 0.7))[0][0].T
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_orders_do_not_depend_on_how_users_are_spread():
    whole = draw_orders(3, 2, np.arange(2 * 1024), 6)
    for first, last in ((0, 1), (1024 - 3, 1024 + 5), (5, 2 * 1024)):
        np.testing.assert_array_equal(
            draw_orders(3, 2, np.arange(first, last), 6), whole[first:last]
        )


def test_measuring_sends_counts_only():
    users = cohort(30, 6, 5)
    sums, _, _ = client(users).fit(
        [], settings_for("spectral", 0.0, release=False, measure="histogram")
    )
    assert len(sums) == 1 and sums[0].sum() == 30
    _, below = client(users).fit([], settings_for("spectral", 1e9, measure="below"))[0]
    assert below == [15.0]


@pytest.mark.parametrize("task", ["spectral", "gradient"])
def test_a_user_whose_numbers_overflow_contributes_nothing_and_disturbs_nobody(task):
    users = cohort(20, 6, 5)
    U = retraction(cohort(1, 5, 2).X[0])
    for estimator in ("leave-one-out", "two-batches", "one-batch"):
        users.X[7], users.y[7] = 0.0, 0.0
        without = client(users, estimator).fit([U], settings_for(task, 1.0))[0][0]
        users.X[7], users.y[7] = 1e200, 1e200
        with_it = client(users, estimator).fit([U], settings_for(task, 1.0))[0][0]
        np.testing.assert_allclose(with_it, without, rtol=1e-12, atol=1e-14)


def test_errors_of_real_users_are_not_told():
    with pytest.raises(ValueError, match="noise gate"):
        client(cohort(3, 6, 5)).evaluate([retraction(np.ones((5, 1)))], {"judge": True})


def test_an_array_of_contributions_is_clipped_user_by_user():
    G = np.random.default_rng(0).standard_normal((5, 2, 3))
    G[3] = np.inf
    total, norms = Dense(G).clipped(1.0)
    np.testing.assert_allclose(
        norms, [0.0 if i == 3 else np.linalg.norm(g) for i, g in enumerate(G)]
    )
    np.testing.assert_allclose(
        total, sum(naive.clip(g, 1.0) for i, g in enumerate(G) if i != 3), rtol=1e-5
    )
