"""Tables, server side: what is seen in noise, and what is released at which cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.tables import item_table, shared_table

from privfed.algorithm import table_outlook as outlook
from privfed.algorithm.table_estimates import (
    completed,
    fullest,
    item_biases,
    peak,
    root_inverse,
    shrunk,
    signal,
)
from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import BudgetError, ConfigError


def spiked(d, values, v, seed=0):
    """A symmetric matrix with these eigenvalues, and its true eigenvectors.

    Beside the diagonal there is noise of variance v.
    """
    rng = np.random.default_rng(seed)
    noise = math.sqrt(v) * rng.standard_normal((d, d))
    U = np.linalg.qr(rng.standard_normal((d, len(values))))[0]
    return U @ np.diag(values) @ U.T + (np.tril(noise) + np.tril(noise, -1).T), U


@pytest.mark.parametrize("d", [20, 100, 200])
def test_signal_finds_the_spikes_and_their_strength(d):
    v = 1.0 / d  # noise alone reaches up to 2
    Z, U = spiked(d, [12.0, 6.0, 4.0, 0.5], v)
    values, vectors = np.linalg.eigh(Z)
    found = signal(values[::-1], v)
    assert np.sum(found > 0) == 3
    kept = [(vectors[:, -1 - i] @ U[:, i]) ** 2 for i in range(3)]
    s = np.array([12.0, 6.0, 4.0])
    np.testing.assert_allclose(found[:3], s * (1 - 1 / s**2), rtol=0.05 if d > 20 else 0.3)
    np.testing.assert_allclose(kept, 1 - 1 / s**2, atol=0.03 if d > 20 else 0.15)


@pytest.mark.parametrize("d", [1, 2, 5, 30, 100])
def test_noise_alone_shows_nothing(d):
    false = 0
    for seed in range(30):
        values = np.linalg.eigvalsh(spiked(d, [], 0.01, seed)[0])
        false += bool(np.any(signal(values[::-1], 0.01) > 0))
    assert false <= (15 if d < 5 else 6)
    assert not signal(np.zeros(d), 0.0).any() and not signal(-np.ones(d), 0.0).any()


def test_without_noise_signal_is_what_there_is():
    np.testing.assert_array_equal(
        signal(np.array([3.0, 1.0, 0.0, -2.0]), 0.0), [3.0, 1.0, 0.0, 0.0]
    )


def test_a_missing_diagonal_is_completed_from_the_rest():
    d, U = 40, np.linalg.qr(np.random.default_rng(0).standard_normal((40, 2)))[0]
    whole = U @ np.diag([5.0, 3.0]) @ U.T
    unknown = np.arange(d) >= 10
    holed = whole.copy()
    holed[unknown, unknown] = 77.0  # whatever stands there
    found, vectors = completed(holed, 1e-6, unknown, 40)
    np.testing.assert_allclose(found[:2], [5.0, 3.0], rtol=0.02)
    np.testing.assert_allclose(np.abs(np.linalg.svd(vectors[:, :2].T @ U)[1]), 1.0, atol=1e-3)
    assert holed[20, 20] == 77.0, "what was given stays as it is"
    found, _ = completed(whole, 1e-6, np.zeros(d, dtype=bool), 40)
    np.testing.assert_allclose(found[:2], [5.0, 3.0], rtol=1e-3)


def test_the_fullest_bins_hold_half_of_the_values_for_sure():
    column = np.array([0.0, 0.1, 0.3, 0.25, 0.05, 0.3])
    assert fullest(column, 0.0, 0.5) == (2, 4)
    assert fullest(column, 0.07, 0.5) == (2, 6), (
        "with noise it takes more to be sure: here .3 + .25 + .05 + .3"
    )
    assert fullest(column, 1.0, 0.5) is None and fullest(np.zeros(5), 0.0, 0.5) is None
    assert fullest(np.array([1.0]), 0.1, 0.5) == (0, 1)
    assert fullest(column, 0.0, 0.9) == (2, 6)


def test_the_whitener_is_the_root_of_the_inverse():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((6, 6))
    W = root_inverse(M @ M.T, 0.5)
    np.testing.assert_allclose(W @ (M @ M.T + 0.5 * np.eye(6)) @ W, np.eye(6), atol=1e-6)
    assert np.isfinite(root_inverse(np.zeros((3, 3)), 0.0)).all(), "redundant columns do no harm"
    assert np.linalg.eigvalsh(root_inverse(-np.eye(3), 0.1)).max() < 4, "noise below 0 is cut off"


def test_estimates_are_shrunk_as_far_as_noise_explains_them():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((31, 31)) / 31
    S = M @ M.T + 0.01 * np.eye(31)
    root = np.linalg.cholesky(S)
    for size, better in ((0.0, 0.2), (0.1, 0.9), (30.0, 1.001)):
        truth = np.concatenate([[[5.0]], size * rng.standard_normal((30, 1))])
        errors = []
        for _ in range(20):
            raw = truth + root @ rng.standard_normal((31, 1))
            errors.append([np.sum((w - truth)[1:] ** 2) for w in (raw, shrunk(raw, S))])
        raw, kept = np.mean(errors, axis=0)
        assert kept <= better * raw
    np.testing.assert_array_equal(shrunk(truth, 0 * S), truth)


def test_biases_of_items_are_their_means_without_noise_and_nothing_in_noise():
    rng = np.random.default_rng(0)
    truth, N = rng.standard_normal((50, 1)), rng.uniform(0.1, 2.0, 50)
    found = item_biases(truth * N[:, None], N, 0.0, 0.0, 10**6, weighted=False)
    np.testing.assert_allclose(found, truth, rtol=1e-3)
    noise = rng.standard_normal((50, 1))
    assert np.abs(item_biases(noise, N, 1.0, 0.0, 100, weighted=True)).max() < 1.0
    some = truth * N[:, None] + 0.3 * noise
    found = item_biases(some, N, 0.3, 0.0, 10**6, weighted=True)
    assert np.sum((found - truth) ** 2) < 0.7 * np.sum((some / N[:, None] - truth) ** 2)
    assert not item_biases(0 * truth, 0 * N, 0.0, 0.0, 5, weighted=False).any()


def test_what_is_asked_follows_from_users_budget_and_columns_alone():
    assert outlook.scales(math.inf, 5, [3, 0, 1], 3).pooled == (3, 0, 1)
    assert outlook.scales(0.25, 20, [3, 0, 1], 3) == outlook.Scales(), "no scale can be had"
    few = outlook.scales(0.25, 200, [3, 0, 1, 2, 4, 5], 3)
    assert few.within == (3, 0) and not few.pooled, "the target comes first"
    some = outlook.scales(0.25, 1000, [3, 0, 1, 2, 4, 5], 3)
    assert some.within == (3, 0, 1, 2, 4, 5) and some.pooled == (3,), "its level is had first"
    many = outlook.scales(1.0, 50000, [3, 0, 1], 3)
    assert many.pooled == many.within == (3, 0, 1) and many.share == 2 * outlook.LEAST_SCALES
    assert outlook.visibility(1.0, 0.25, 100, 25) == pytest.approx(5.0)
    assert outlook.measurable(1.0, 0.02, 200) and not outlook.measurable(0.2, 0.02, 200)


@pytest.fixture
def table(tmp_path):
    """An experiment on a small table."""
    path = shared_table(tmp_path / "t.csv", n=200)

    def table(*overrides):
        return Experiment(compose(["data=table", f"data.path={path}", *overrides]))

    return table


BOUNDS = (*(f"data.bounds.x{j}=[-400,400]" for j in range(5)), "data.bounds.target=[-5,5]")
FIXED = ("algo.clip.gradient=0.1", "algo.clip.slopes=0.1")
SCALES = ["magnitudes", "locate", "locate", "spreads"]
GLOBAL = ["curvature", "gradient clip", *["gradient"] * 3]


def costs(made):
    return [
        (name, cost.mu) for step in made.strategy.plan for name, cost in made.strategy.costs(step)
    ]


def names(made):
    return [name.removesuffix(" norm") for name, _ in costs(made)]


@pytest.mark.parametrize(
    "more",
    [
        ("neighbouring=zero-out",),
        BOUNDS,
        FIXED,
        ("rounds=1",),
        ("data.k=2", "rounds=5"),
        ("algo=table/global",),
    ],
)
def test_the_plan_spends_the_whole_budget_and_no_more(table, more):
    made = table("eps=3", *more)
    assert costs(made)
    assert math.sqrt(sum(mu**2 for _, mu in costs(made))) == pytest.approx(
        made.budget.mu, rel=1e-12
    )


def test_what_is_released_in_which_order(table):
    assert names(table("eps=4")) == ["spreads", *GLOBAL, "evidence"]
    assert names(table("eps=20", "algo=table/global")) == [*SCALES, *GLOBAL]
    assert names(table("eps=20", *BOUNDS)) == [*GLOBAL, "slopes clip", "slopes", "evidence"]
    assert names(table("eps=20", *BOUNDS, *FIXED, "rounds=1")) == [
        "curvature",
        "gradient",
        "slopes",
        "evidence",
    ]
    assert names(table("eps=4", "algo=table/global")) == ["spreads", *GLOBAL]
    assert names(table("eps=0.01")) == [], "nothing could be seen, so nothing is asked"


def test_items_have_counts_and_sums(tmp_path):
    path = item_table(tmp_path / "t.csv", n=400, items=60)
    line = ["data=table", f"data.path={path}", "data.bounds.target=[-5,11]"]
    made = Experiment(compose([*line, "eps=4"]))
    assert names(made) == [*GLOBAL, "counts", "sums clip", "sums", "evidence"]
    made = Experiment(compose([*line, "eps=100"]))
    assert names(made)[-3:] == ["factors clip", "factors", "evidence"]
    assert costs(made)[-2][1] ** 2 > 0.4 * made.budget.mu**2


def test_clip_norms_that_cannot_be_measured_are_the_usual_ones(table):
    assert "gradient clip" in names(table("eps=4", *BOUNDS))
    made = table("eps=1", *BOUNDS)
    assert "gradient clip" not in names(made) and made.strategy.clips["gradient"] == 0.12


def test_the_ledger_holds_what_the_plan_says(table):
    made = table("eps=4", "algo.rivals={}")
    outcome = made.run()
    assert [release.name for release in made.ledger.releases] == [name for name, _ in costs(made)]
    assert 0.999 * 4 < outcome.result["privacy"]["epsilon"] <= 4
    c = len(made.strategy.scales.within)
    assert made.ledger.releases[0].clip == math.sqrt(c)
    assert made.ledger.releases[0].sensitivity == pytest.approx(math.sqrt(2 * c), rel=1e-5)
    curvature = next(r for r in made.ledger.releases if r.name == "curvature")
    assert curvature.sensitivity == pytest.approx(math.sqrt(2), rel=1e-5)
    assert {"mse", "mse_standalone"} <= set(outcome.result["metrics"])


def test_public_bounds_are_taken_as_they_are(table):
    made = table(*BOUNDS, "eps=inf", "algo.rivals={}")
    model = made.run().model
    np.testing.assert_allclose(model["centre"], 0.0)
    np.testing.assert_allclose(model["spread"], [800 / math.sqrt(12)] * 5 + [10 / math.sqrt(12)])


def test_scales_are_found_where_nothing_is_known(table):
    model = table("eps=inf", "algo.rivals={}").run().model
    np.testing.assert_allclose(model["spread"][:5], 100, rtol=0.4)
    assert np.all(np.abs(model["centre"][:5]) < 60) and 0.5 < model["spread"][5] < 3


def test_without_noise_the_global_model_is_generalised_least_squares(table):
    made = table(*BOUNDS, "eps=inf", "algo=table/global")
    w = made.run().model["w"][:, 0]
    left, right = 0.0, 0.0
    for block in made.data.cohort(0, made.data.n).blocks():
        for numbers, y in zip(block.rows.numbers, block.rows.y, strict=True):
            A = np.column_stack([np.ones(len(y)), numbers / (800 / math.sqrt(12))])
            V = np.linalg.inv(np.eye(len(y)) + np.ones((len(y), len(y))) / 10)
            left, right = left + A.T @ V @ A, right + A.T @ V @ (y / (10 / math.sqrt(12)))
    np.testing.assert_allclose(w, np.linalg.solve(left, right), rtol=1e-4, atol=1e-6)


def test_as_many_directions_as_asked_for(table):
    for k in (3, 1, 5):
        model = table(f"data.k={k}", "eps=4", "rounds=1", "algo.rivals={}").run().model
        assert model["U"].shape == (5, k) and model["scale"].shape == (k,)
        np.testing.assert_allclose(model["U"].T @ model["U"], np.eye(k), atol=1e-12)


def test_as_many_directions_as_stand_out(tmp_path):
    path = shared_table(tmp_path / "t.csv", n=400)
    for eps, wanted in (("inf", 2), ("20", 2), ("1", 0)):
        made = Experiment(
            compose(["data=table", f"data.path={path}", f"eps={eps}", "algo.rivals={}"])
        )
        model = made.run().model
        assert model["U"].shape[0] == 5
        found = int(np.sum(model["scale"] > 0))
        if eps == "inf":  # the covariance of users' own slopes is of rank two, but for noise
            found = int(np.sum(np.linalg.svd(model["effects"])[1] > 2))
        assert found == wanted
        assert ("No shared direction" in " ".join(made.strategy.notes())) == (wanted == 0)


def test_columns_whose_scale_cannot_be_had_stay_with_the_users(table):
    made = table("eps=1", "algo.rivals={}")
    model = made.run().model
    local = [f"x{j}" for j in range(5) if model["spread"][j] == 0]
    assert local and model["spread"][5] > 0
    said = " ".join(made.strategy.notes())
    assert f"The scale of {', '.join(local)}" in said and "data.bounds" in said


def test_few_users_are_on_their_own_and_nothing_is_released(table):
    made = table("eps=0.05", "algo.rivals={}")
    outcome = made.run()
    assert not made.ledger.releases and outcome.result["privacy"]["epsilon"] == 0
    assert outcome.result["metrics"]["mse"] == outcome.result["metrics"]["mse_standalone"]
    assert "Nothing was released" in " ".join(made.strategy.notes())


def test_fixed_noise(table):
    with pytest.raises(BudgetError, match="planned releases"):
        table("privacy.noise_multiplier=1", *BOUNDS)
    made = table("privacy.noise_multiplier=10", "eps=2", "rounds=1", "algo.rivals={}", *BOUNDS)
    assert {mu for _, mu in costs(made)} == {1 / 10}
    assert made.run().result["privacy"]["epsilon"] < 2


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("delta=0",), "delta=0.*above 0"),
        (("eps=inf", "privacy.noise_multiplier=2"), "noise_multiplier"),
        (("data.k=6",), "model.k=6.*5"),
        (("model.k=some",), "model.k=some|data.k=some"),
        (("rounds=-1",), "rounds=-1"),
        (("rounds=0",), "rounds=0"),
        (("algo.shares.gradient_columns=0",), "algo.shares.gradient_columns=0"),
        (("privacy.clip=1", "eps=20"), "several clip norms"),
        (("algo.clip.gradient=0",), "algo.clip.gradient=0"),
        (("neighbouring=weak",), "neighbouring=weak"),
        (("algo.slope_ridge=0",), "algo.slope_ridge=0"),
        (("data.evaluate=false", "eps=inf"), "simulations only"),
        (("data.evaluate=false", "privacy.noise=seeded"), "protects nobody"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_impossible_settings_are_one_clear_line(table, overrides, words):
    with pytest.raises(ConfigError, match=words) as error:
        table(*BOUNDS, *overrides)
    assert "\n" not in str(error.value)


def test_what_is_guaranteed(table, tmp_path):
    made = table()
    assert made.strategy.guarantee.startswith("under")
    (tmp_path / "schema.yaml").write_text(made.data.schema.to_yaml())
    assert table(f"data.schema={tmp_path / 'schema.yaml'}").strategy.guarantee is None


def test_the_peak_of_a_histogram_is_found_in_noise():
    rng = np.random.default_rng(0)
    column = np.zeros(192)
    column[80:84] = 0.1, 0.4, 0.3, 0.1
    found = peak(column, 0.0)
    assert found is not None and 81 < found < 83
    noisy = [peak(column + 0.08 * rng.standard_normal(192), 0.08) for _ in range(20)]
    assert sum(place is not None and 78 < place < 86 for place in noisy) >= 18
    assert peak(np.zeros(192), 0.0) is None


def test_effects_are_those_of_a_mixed_model(tmp_path):
    """Without noise, intercepts and slopes of users have the covariance they were drawn with."""
    rng = np.random.default_rng(0)
    lines = ["user,x,target"]
    for user in range(300):
        a, b = rng.multivariate_normal([1.0, 2.0], [[1.0, 0.5], [0.5, 0.6]])
        x = rng.uniform(-1, 1, 10)
        y = a + b * x + 0.5 * rng.standard_normal(10)
        lines += [f"u{user},{i:.6f},{j:.6f}" for i, j in zip(x, y, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    bounds = ("data.bounds.x=[-1,1]", "data.bounds.target=[-10,10]")
    made = Experiment(
        compose(["data=table", f"data.path={tmp_path / 't.csv'}", "eps=inf", "algo.rivals={}",
                 *bounds])
    )  # fmt: skip
    model = made.run().model
    y, s = 20 / math.sqrt(12), float(made.strategy.kept["rows"][0])
    to_raw = np.diag([y, y / (2 / math.sqrt(12))])
    D = to_raw @ model["effects"] @ model["effects"].T @ to_raw * s
    np.testing.assert_allclose(D, [[1.0, 0.5], [0.5, 0.6]], atol=0.2)
    np.testing.assert_allclose(to_raw @ model["w"][:, 0], [1.0, 2.0], atol=0.2)
    assert s * y * y == pytest.approx(0.25, rel=0.15)
