"""A user's part of a sum is the same bit by bit wherever the user stands in a block of users.

Everybody else has zeros and adds zeros, so that the sum is the one user's part.
"""

from __future__ import annotations

import numpy as np
import pytest

from privfed.config.composition import compose
from privfed.data.cohort import Cohort
from privfed.experiment.wiring import Experiment
from privfed.foundation.compilation import choosing

D, M, K = 7, 9, 3
SETTINGS = {
    "fedrep": (),
    "fedrep, two batches": ("algo.estimator=two-batches",),
    "fedrep, pairs": ("init=pairs",),
    "fedrep, power method": ("init=ppm", "init.batch=4"),
    "centaur, cascade": ("algo=centaur", "init=cascade"),
    "fedrep, posterior": ("init=cascade", "force=true"),
    "altmin": ("algo=altmin", "rounds=1"),
    "centaur": ("algo=centaur",),
    "expmech": ("algo=expmech", "algo.candidates=40"),
    "rgrad": ("algo=rgrad", "data.d1=4", "data.d2=3"),
}
SUMMED = ("moments",)
"""Tasks whose parts have factors that do not depend on places, but are added up row by row."""


@pytest.fixture(params=["never", "always"], scope="module")
def mode(request):
    with choosing(request.param):
        yield request.param


def answers(factory, shared, config, user, users, place, stored):
    """What a node sends for one user among others who have zeros."""
    x, y = user
    X, Y = np.zeros((users, *x.shape), stored), np.zeros((users, len(y)), stored)
    named = np.arange(1000, 1000 + users, dtype=np.uint64)
    named[place] = 5

    def sent(X, Y):
        client = factory.serving(Cohort(np.arange(users), X, Y, named=named))
        return client.fit([array.copy() for array in shared], config)[0]

    silence, (X, Y) = sent(X, Y), (X.copy(), Y.copy())
    X[place], Y[place] = x, y
    # Zeros add nothing to a sum; to scores and counts they add whole numbers.
    return [one - other for one, other in zip(sent(X, Y), silence, strict=True)]


@pytest.mark.parametrize("stored", [np.float32, np.float64])
@pytest.mark.parametrize("algorithm", SETTINGS)
def test_a_part_does_not_depend_on_the_user_s_place(mode, algorithm, stored):
    sizes = ("data.n=40", f"data.m={M}")
    sizes += () if algorithm == "rgrad" else (f"data.d={D}", f"data.k={K}")
    experiment = Experiment(compose([*SETTINGS[algorithm], *sizes]))
    strategy, d = experiment.strategy, experiment.data.d
    rng = np.random.default_rng(0)

    def model(*shape):
        return np.linalg.qr(rng.normal(size=shape))[0]

    models = [model(4, 2), np.ones(2), model(3, 2)] if algorithm == "rgrad" else [model(D, K)]
    if algorithm == "fedrep, posterior":  # certain that nothing is outside: directions are rounding
        models += [np.eye(K), np.zeros(1)]
    for rare in (False, True):  # if all examples are almost the same, a head hardly exists
        x, y = rng.normal(size=(M, d)), rng.normal(size=M)
        x[1:] = x[:1] + (1e-7 * x[1:] if rare else x[1:])
        for step in {step.task: step for step in strategy.plan}.values():
            told = strategy.shared if step.phase.announce is None else step.phase.announce()
            shared = models if step.task in ("gradient", "moments", "direction") else told
            message = (experiment.factory, shared, strategy.announcement(step).to_config())
            alone = answers(*message, (x, y), 2, 0, stored)
            assert any(array.any() for array in alone)
            for users, place in ((1, 0), (2, 1), (5, 3), (8, 7), (33, 16), (70, 64), (70, 69)):
                found = answers(*message, (x, y), users, place, stored)
                for one, other in zip(alone, found, strict=True):
                    # One matrix product adds up the rows of all users, in an order of its own.
                    slack = 1e-14 * np.abs(one).max() if step.task in SUMMED else 0.0
                    np.testing.assert_allclose(one, other, 0.0, slack, err_msg=f"{users} {place}")
