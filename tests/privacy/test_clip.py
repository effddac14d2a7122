"""No user exceeds the clip norm: NaN, infinity, 1e308, subnormals, half precision, zeros."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache

import numpy as np
import pytest
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn

from privfed.algorithm.replies import totals_of
from privfed.audit.guise import COHORT
from privfed.audit.replay import Theatre
from privfed.config.composition import compose
from privfed.data.cohort import Cohort
from privfed.privacy.adaptive_clipping import MEASURES
from privfed.privacy.clipping import SCORE, Dense, Scaled, Scores, clamp, clip, norm
from privfed.runtimes.inprocess import LocalProxy

SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    1e308,
    -1.7e308,
    1e200,
    1e-200,
    5e-324,
    2.2e-308,
    6e4,
    6e-8,
    1e8,
    -1.0,
    1.0,
    0.0,
]
NUMBERS = st.sampled_from(SPECIAL) | st.floats(allow_nan=True, allow_infinity=True)
BOUNDS = st.floats(1e-99, 1e99)
PRECISION = st.sampled_from([np.float64, np.float32, np.float16])
M, D = 4, 3
TINY = ("data.n=8", f"data.d={D}", f"data.m={M}", "data.k=1", "rounds=1", "eps=50")
CLIENTS = {
    "leave-one-out, spectral": (),
    "two batches, pairs": ("algo.estimator=two-batches", "init=pairs"),
    "centaur, power method": ("algo=centaur", "init=ppm", "init.iterations=1", "privacy.clip=auto"),
    "altmin": ("algo=altmin",),
    "altmin, halves": (
        "algo=altmin",
        "algo.estimator=halves",
        "algo.target=labels",
        "algo.eta_c=1",
        "algo.zeta=1",
    ),
    "expmech": ("algo=expmech", "algo.candidates=5"),
    "expmech, absolute": ("algo=expmech", "algo.candidates=5", "algo.targets=absolute"),
    "jlmargin": ("algo=jlmargin", "algo.candidates=5", "algo.sketch=2"),
    "rgrad": ("algo=rgrad", "data.d1=3", "data.d2=1", "data.r=1"),
    **{
        f"{algo}, network": (f"algo={algo}", "model=mlp")
        for algo in ("network/centaur", "fedavg_ft", "ppsgd", "pmtl_ft")
    },
    "centaur, batches, augmented": (
        "algo=network/centaur",
        "model=mlp",
        "algo.batch=2",
        "algo.augment=always",
        "privacy.clip=auto",
    ),
    "fedavg_ft, convolutions": (
        "algo=fedavg_ft",
        "model=module",
        "model.module._target_=test_clip.filters",
        "model.split=head",
    ),
}
IMAGES = ("data.n=8", f"data.m={M}", "data.size=2", "data.classes=3", "rounds=1", "eps=50")


def filters():
    """A network with convolutions for images of 2 x 2 pixels."""
    layers = {
        "conv": nn.Conv2d(1, 2, 2),
        "flatten": nn.Flatten(),
        "act": nn.ReLU(),
        "head": nn.Linear(2, 3),
    }
    return nn.Sequential(OrderedDict(layers))


def lower(x, precision):
    with np.errstate(over="ignore"):
        return x.astype(precision)


@given(
    arrays.arrays(np.float64, st.tuples(st.integers(0, 3), st.integers(0, 4)), elements=NUMBERS),
    BOUNDS,
    PRECISION,
)
def test_arrays_of_contributions(values, bound, precision):
    with np.errstate(all="ignore"):
        for contributions in (
            Dense(lower(values, precision)),
            Scaled(Dense(lower(values, precision)), np.zeros(len(values))),
        ):
            total, norms = contributions.clipped(bound)
            assert norm(total) <= len(values) * bound and np.isfinite(norms).all()


@pytest.mark.parametrize("precision", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("size", [1, 1000, 200_000])
def test_norms_of_low_precision_numbers_are_not_too_small(precision, size):
    """A norm added up in half precision is wrong in the third digit, far more than the slack."""
    values = lower(np.random.default_rng(0).uniform(0.01, 0.02, (1, size)), precision)
    assert norm(Dense(values).clipped(1e-3)[0]) <= 1e-3
    assert norm(clip(values, 1e-3)) <= 1e-3


@given(
    arrays.arrays(np.float64, st.tuples(st.integers(0, 3), st.integers(1, 4)), elements=NUMBERS),
    PRECISION,
)
def test_scores(values, precision):
    total, largest = Scores(lower(values, precision)).clipped(SCORE)
    assert np.all((total >= 0) & (total <= len(values) * SCORE) & (total == np.floor(total)))
    assert np.all((largest >= 0) & (largest <= SCORE))


@given(arrays.arrays(np.float64, st.integers(0, 5), elements=NUMBERS), BOUNDS, PRECISION)
def test_the_server_s_own_bounds(x, bound, precision):
    x = lower(x, precision)
    assert norm(clip(x, bound)) <= bound
    clamped = clamp(x, np.floor(bound))
    assert np.all((clamped >= 0) & (clamped <= bound) & (clamped == np.floor(clamped)))


@given(
    arrays.arrays(np.float64, 3, elements=NUMBERS),
    st.floats(1e-99, 1e99),
    PRECISION,
    st.integers(0, 10**9),
)
def test_replies(x, bound, precision, examples):
    x = lower(x, precision)
    reply = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([x]), examples, {"step": 1})
    (total,), answered = totals_of(
        [(LocalProxy("a", None), reply)], [((3,), bound)], {"a": 2}, clip, 1
    )
    assert norm(total) <= 2 * bound
    assert answered == (["a"] if x.dtype == np.float64 and np.isfinite(x).all() else [])


@cache
def questions(name):
    """A replay's stage and one message of every kind that a node of a tiny run is sent."""
    unknown = ("data.d=", "data.k=") if name == "rgrad" else ("none",)
    images = any(setting.startswith("model=") for setting in CLIENTS[name])
    sizes = IMAGES if images else [size for size in TINY if not size.startswith(unknown)]
    hidden = ["model.module.hidden=[3]"] if "model=mlp" in CLIENTS[name] else []
    theatre = Theatre(compose([*sizes, *CLIENTS[name], *hidden]))
    sent = [
        message.ins
        for message in theatre.play().messages
        if message.kind == "fit" and message.cid == COHORT
    ]
    return theatre, [
        (
            parameters_to_ndarrays(ins.parameters),
            {**ins.config, "users": 1, "groups": 1, "group": 0},
        )
        for ins in sent
    ]


USER = st.tuples(
    arrays.arrays(np.float64, (M, D + 1), elements=NUMBERS),
    arrays.arrays(np.float64, M, elements=NUMBERS),
)


@pytest.mark.parametrize("name", CLIENTS)
@settings(max_examples=60, deadline=None)
@given(user=USER, precision=PRECISION)
def test_clients(name, user, precision):
    theatre, asked = questions(name)
    X, y = (lower(array, precision) for array in user)
    client = theatre.serving(Cohort(np.arange(1), X[None, :, : theatre.experiment.data.d], y[None]))
    for parameters, config in asked:
        sums = client.fit(parameters, config)[0]
        measure = MEASURES.get(config["measure"])
        bounds = np.frombuffer(config["clip"]).tolist() if config["release"] else []
        bounds += [measure.bound.clip] * (len(sums) - len(bounds)) if measure else []
        for array, bound in zip(sums, bounds, strict=True):
            within = np.max(array, initial=0.0) if config["task"] == "select" else norm(array)
            assert within <= bound and np.isfinite(array).all()
