"""Tables, server side: what is seen in noise, and what is released at which cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.tables import shared_table

from privfed.algorithm.table_strategy import fullest, likeliest
from privfed.config.composition import compose
from privfed.experiment.wiring import Experiment
from privfed.foundation.errors import BudgetError, ConfigError
from strategies.table_fedrep import completed, signal


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
    found, vectors = completed(holed, 1e-6, unknown)
    np.testing.assert_allclose(found[:2], [5.0, 3.0], rtol=0.02)
    np.testing.assert_allclose(np.abs(np.linalg.svd(vectors[:, :2].T @ U)[1]), 1.0, atol=1e-3)
    assert holed[20, 20] == 77.0, "what was given stays as it is"
    found, _ = completed(whole, 1e-6, np.zeros(d, dtype=bool))
    np.testing.assert_allclose(found[:2], [5.0, 3.0], rtol=1e-3)


def test_the_fullest_bins_hold_half_of_the_values_for_sure():
    column = np.array([0.0, 0.1, 0.3, 0.25, 0.05, 0.3])
    assert fullest(column, 0.0) == (2, 4)
    assert fullest(column, 0.05) == (2, 6), (
        "with noise it takes more to be sure: here .3 + .25 + .05 + .3"
    )
    assert fullest(column, 1.0) is None and fullest(np.zeros(5), 0.0) is None
    assert fullest(np.array([1.0]), 0.1) == (0, 1)
    assert likeliest(column) == (1, 4)


@pytest.fixture
def table(tmp_path):
    """An experiment on a small table."""
    path = shared_table(tmp_path / "t.csv", n=40)

    def table(*overrides):
        return Experiment(compose(["data=table", f"data.path={path}", *overrides]))

    return table


BOUNDS = (*(f"data.bounds.x{j}=[-400,400]" for j in range(5)), "data.bounds.target=[-5,5]")
FIXED = ("algo.clip.global=1", "algo.clip.spectral=0.1", "algo.clip.gradient=1")
TASKS = (
    "magnitudes",
    "locate",
    "locate",
    "global clip",
    *["global"] * 4,
    "spectral clip",
    "spectral",
    "gradient clip",
)


def costs(made):
    return [
        (name, cost.mu) for step in made.strategy.plan for name, cost in made.strategy.costs(step)
    ]


@pytest.mark.parametrize(
    "more",
    [
        ("neighbouring=add-remove",),
        BOUNDS,
        FIXED,
        ("rounds=0",),
        ("algo.global_rounds=1", "rounds=3"),
    ],
)
def test_the_plan_spends_the_whole_budget_and_no_more(table, more):
    made = table("eps=3", *more)
    assert math.sqrt(sum(mu**2 for _, mu in costs(made))) == pytest.approx(
        made.budget.mu, rel=1e-12
    )


def test_what_is_released_in_which_order(table):
    assert [name.removesuffix(" norm") for name, _ in costs(table())] == [
        *TASKS,
        *["gradient"] * 10,
    ]
    assert [name for name, _ in costs(table(*BOUNDS, *FIXED, "rounds=2"))] == [
        *["global"] * 4,
        "spectral",
        *["gradient"] * 2,
    ]
    assert [name for name, _ in costs(table(*FIXED, "rounds=0"))] == [
        "magnitudes",
        *["locate"] * 2,
        *["global"] * 4,
        "spectral",
    ]


def test_shares_are_as_configured_and_those_of_absent_stages_go_to_the_others(table):
    def shares(*more):
        made, share = table(*more), {}
        for name, mu in costs(made):
            share[name] = share.get(name, 0.0) + mu**2 / made.budget.mu**2
        return share

    settings = {
        "magnitudes": 0.03,
        "locate": 0.06,
        "global": 0.08,
        "spectral": 0.65,
        "gradient": 0.12,
    }
    clips = {f"{task} clip norm": 0.02 for task in ("global", "spectral", "gradient")}
    whole = sum({**settings, **clips}.values())
    assert shares() == pytest.approx(
        {name: share / whole for name, share in {**settings, **clips}.items()}
    )
    few = {"global": 0.08, "spectral": 0.65}
    assert shares(*BOUNDS, *FIXED, "rounds=0") == pytest.approx(
        {name: share / 0.73 for name, share in few.items()}
    )
    assert shares(*BOUNDS, *FIXED, "rounds=0", "algo.shares.global=0.65") == pytest.approx(
        {"global": 0.5, "spectral": 0.5}
    )


def test_the_ledger_holds_what_the_plan_says(table):
    made = table("eps=3", "rounds=2", "algo.rivals={}")
    outcome = made.run()
    assert [release.name for release in made.ledger.releases] == [name for name, _ in costs(made)]
    assert 0.999 * 3 < outcome.result["privacy"]["epsilon"] <= 3
    root = math.sqrt(6)  # five numbers and the target
    assert [made.ledger.releases[i].clip for i in range(3)] == [root] * 3
    assert made.ledger.releases[0].sensitivity == pytest.approx(2 * root, rel=1e-5)
    assert outcome.result["rounds"] == 2 and {"mse", "mse_standalone"} <= set(
        outcome.result["metrics"]
    )


def test_public_bounds_are_taken_as_they_are(table):
    made = table(*BOUNDS, "eps=inf", "rounds=0", "algo.rivals={}")
    model = made.run().model
    np.testing.assert_allclose(model["centre"], 0.0)
    np.testing.assert_allclose(model["spread"], [800 / math.sqrt(12)] * 5 + [10 / math.sqrt(12)])


def test_scales_are_found_where_nothing_is_known(table):
    model = table("eps=inf", "rounds=0", "algo.rivals={}").run().model
    np.testing.assert_allclose(model["spread"][:5], 100, rtol=0.4)
    assert np.all(np.abs(model["centre"][:5]) < 30) and 0.5 < model["spread"][5] < 3


def test_no_more_directions_than_asked_for_and_as_many(table):
    for k, wanted in (("3", 3), ("1", 1), ("5", 5)):
        model = table(f"data.k={k}", "rounds=1", "algo.rivals={}").run().model
        assert model["U"].shape == (5, wanted) and model["scale"].shape == (wanted,)
        np.testing.assert_allclose(model["U"].T @ model["U"], np.eye(wanted), atol=1e-12)


def test_as_many_directions_as_stand_out(tmp_path):
    path = shared_table(tmp_path / "t.csv", n=400)
    for eps, wanted in (("inf", 2), ("8", 2), ("0.01", 1)):
        made = Experiment(
            compose(["data=table", f"data.path={path}", f"eps={eps}", "rounds=0", "algo.rivals={}"])
        )
        model = made.run().model
        assert model["U"].shape == (5, wanted)
        said = " ".join(made.strategy.notes())
        assert ("No shared direction" in said) == (eps == "0.01") == (not model["scale"].any())
        assert ("give public bounds" in said) == (eps == "0.01")


def test_fixed_noise(table):
    with pytest.raises(BudgetError, match="planned releases"):
        table("privacy.noise_multiplier=1")
    made = table("privacy.noise_multiplier=60", "rounds=1", "algo.rivals={}")
    assert {mu for _, mu in costs(made)} == {1 / 60}
    assert made.run().result["privacy"]["epsilon"] < 1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("delta=0",), "delta=0.*above 0"),
        (("eps=inf", "privacy.noise_multiplier=2"), "noise_multiplier"),
        (("data.k=6",), "model.k=6.*5"),
        (("model.k=some",), "model.k=some|data.k=some"),
        (("rounds=-1",), "rounds=-1"),
        (("algo.global_rounds=0",), "algo.global_rounds=0"),
        (("algo.shares.global=0",), "algo.shares.global=0"),
        (("privacy.clip=1",), "several clip norms"),
        (("algo.clip.spectral=0",), "algo.clip.spectral=0"),
        (("neighbouring=weak",), "neighbouring=weak"),
        (("algo.ridge=0",), "algo.ridge=0"),
        (("algo.step=0",), "algo.step=0"),
        (("data.evaluate=false", "eps=inf"), "simulations only"),
        (("data.evaluate=false", "privacy.noise=seeded"), "protects nobody"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_impossible_settings_are_one_clear_line(table, overrides, words):
    with pytest.raises(ConfigError, match=words) as error:
        table(*overrides)
    assert "\n" not in str(error.value)


def test_private_clip_norms_for_all_stages_by_one_setting(table):
    assert [name for name, _ in costs(table("privacy.clip=auto", *FIXED))] == [
        name for name, _ in costs(table())
    ]


def test_what_is_guaranteed(table, tmp_path):
    made = table()
    assert made.strategy.guarantee.startswith("under")
    (tmp_path / "schema.yaml").write_text(made.data.schema.to_yaml())
    assert table(f"data.schema={tmp_path / 'schema.yaml'}").strategy.guarantee is None
