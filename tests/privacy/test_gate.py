"""The gate charges before releasing, adds the noise it claims, and refuses to exceed the budget."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from privfed.foundation.errors import BudgetError, ConfigError, PrivfedError
from privfed.privacy import distances
from privfed.privacy.bounds import NormBound
from privfed.privacy.clipping import clip, clip_factors, norm
from privfed.privacy.gate import GRID, NoiseGate
from privfed.privacy.ledger import Budget, Ledger
from privfed.privacy.noise import DiscreteNoise, SeededNoise, noise_source


def gate(epsilon=1.0, neighbouring="replace-one", source=None, path=None):
    ledger = Ledger(Budget(epsilon, 1e-6, neighbouring))
    if path is not None:
        ledger.open(path)
    return NoiseGate(ledger, source or SeededNoise(0))


@pytest.mark.parametrize(("neighbouring", "factor"), [("replace-one", 2), ("zero-out", 1)])
def test_noise_has_the_claimed_scale(neighbouring, factor):
    made = gate(10.0, neighbouring)
    noise = made.release("x", np.zeros(200_000), bound=NormBound(3.0), mu=0.5, round=1)
    entry = made.ledger.releases[0]
    assert entry.sensitivity == pytest.approx(
        factor * 3.0, rel=1e-3
    ) and entry.std == pytest.approx(entry.sensitivity / 0.5, rel=1e-7)
    # Relative error of a standard deviation from n samples is about 1 / sqrt(2 n): five of those.
    assert np.std(noise) == pytest.approx(entry.std, rel=5 / math.sqrt(2 * noise.size))


@pytest.mark.parametrize("source", [SeededNoise(1), DiscreteNoise()])
def test_sources_give_independent_standard_normals(source):
    x, y = (source.normal(100_001, 1 << 24, "a", t) / 2**24 for t in (1, 2))
    assert len(x) == 100_001
    for sample in (x, y):
        assert abs(sample.mean()) < 0.02 and sample.std() == pytest.approx(1, rel=0.02)
        assert (sample**4).mean() == pytest.approx(3, rel=0.1)
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.02
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 0.02


def test_seeded_noise_repeats_and_discrete_noise_does_not():
    assert np.array_equal(
        SeededNoise(5).normal(9, 1 << 24, "a", 1), SeededNoise(5).normal(9, 1 << 24, "a", 1)
    )
    for other in (
        SeededNoise(6).normal(9, 1 << 24, "a", 1),
        SeededNoise(5).normal(9, 1 << 24, "b", 1),
    ):
        assert not np.array_equal(SeededNoise(5).normal(9, 1 << 24, "a", 1), other)
    assert not np.array_equal(
        DiscreteNoise().normal(9, 1 << 24, "a", 1), DiscreteNoise().normal(9, 1 << 24, "a", 1)
    )
    with pytest.raises(ConfigError, match="discrete"):
        noise_source("loud", 0)


def test_the_ledger_is_on_disk_before_the_release_returns(tmp_path):
    path = tmp_path / "ledger.jsonl"
    seen = []

    class Spy(SeededNoise):
        def normal(self, size, s, name, round):
            seen.append(len(path.read_text().splitlines()))
            return super().normal(size, s, name, round)

    made = gate(1.0, source=Spy(0), path=path)
    for t in (1, 2, 3):
        made.release("x", np.zeros(2), bound=NormBound(1.0), mu=0.05, round=t)
    assert seen == [1, 2, 3]
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["release"] for entry in entries] == [1, 2, 3]
    assert entries[-1]["epsilon_spent"] == pytest.approx(made.ledger.epsilon)


def test_over_budget_is_refused_and_nothing_is_written(tmp_path):
    path = tmp_path / "ledger.jsonl"
    made = gate(1.0, path=path)
    made.release("x", np.zeros(2), bound=NormBound(1.0), mu=0.2, round=1)
    before = path.read_text()
    with pytest.raises(BudgetError, match="nothing was released"):
        made.release("x", np.zeros(2), bound=NormBound(1.0), mu=0.2, round=2)
    assert path.read_text() == before and len(made.ledger.releases) == 1


def test_the_whole_budget_can_be_spent_in_any_number_of_releases():
    for parts in (1, 7, 400):
        made = gate(0.5)
        for t in range(parts):
            made.release(
                "x",
                np.zeros(1),
                bound=NormBound(1.0),
                mu=made.ledger.budget.mu / math.sqrt(parts),
                round=t,
            )
        assert 0.99 * 0.5 <= made.ledger.epsilon <= 0.5


def test_another_run_s_ledger_is_never_touched(tmp_path):
    gate(path=tmp_path / "ledger.jsonl").release(
        "x", np.zeros(1), bound=NormBound(1.0), mu=0.1, round=1
    )
    with pytest.raises(ConfigError, match="already holds"):
        gate(path=tmp_path / "ledger.jsonl")


def test_low_bits_do_not_tell_sums_apart():
    """Floating-point noise has its own pattern of low bits; on the grid all sums look alike."""
    rng = np.random.default_rng(0)
    for total in (np.zeros(2000), 0.05 * rng.standard_normal(2000), np.full(2000, 1e-9)):
        made = gate(source=DiscreteNoise())
        out = made.release("x", total, bound=NormBound(0.05), mu=0.03, round=1)
        grid = 2.0 ** (math.floor(math.log2(0.1 / 0.03)) + GRID)
        np.testing.assert_array_equal(out / grid, np.rint(out / grid))
        assert made.ledger.releases[0].sensitivity >= 0.1 + grid * math.sqrt(2000)


@given(arrays.arrays(np.float64, 5, elements=st.floats(-1e3, 1e3)), st.integers(0, 2**30))
def test_rounding_to_the_grid_stays_within_the_sensitivity(total, seed):
    """What enters the noise (release minus noise) moves by no more than the ledger claims."""
    made, zero = gate(source=SeededNoise(seed)), gate(source=SeededNoise(seed))
    moved = total + np.array([1.0, 0, 0, 0, 0])
    a = made.release("x", total, bound=NormBound(0.5), mu=0.1, round=1)
    b = zero.release("x", moved, bound=NormBound(0.5), mu=0.1, round=1)
    assert np.linalg.norm(a - b) <= made.ledger.releases[0].sensitivity


@given(
    arrays.arrays(np.float64, st.integers(0, 6), elements=st.floats(-1e308, 1e308)),
    st.floats(1e-300, 1e300),
)
def test_clip_leaves_alone_what_is_below_the_bound(x, bound):
    clipped = clip(x, bound)
    assert norm(clipped) <= bound
    if norm(x) < bound * (1 - 1e-9):
        np.testing.assert_array_equal(clipped, x)


@given(
    arrays.arrays(np.float64, st.integers(1, 6), elements=st.floats(0, 1e308)),
    st.floats(1e-300, 1e300),
)
def test_clip_factors_bound_every_user(norms, bound):
    factors = clip_factors(norms, bound)
    assert np.all(factors * norms <= bound) and np.all((factors >= 0) & (factors <= 1))


@pytest.mark.parametrize(("relation", "refused"), [("replace-one", True), ("zero-out", False)])
def test_groups_compose_in_parallel_only_if_a_replaced_user_may_change_its_group(
    relation, refused, monkeypatch
):
    """One group loses a part of the radius, and another gains one: sqrt(2) radii together."""

    class Counts(NormBound):
        kind = "counts"

    monkeypatch.setitem(distances.DISTANCES, "counts", lambda radius, relation: radius)
    ledger = Ledger(Budget(math.inf, 1e-6, relation))
    gate = NoiseGate(ledger, SeededNoise(0))
    terms = {"mu": 0.1, "round": 1}
    gate.release("all", np.zeros(3), bound=Counts(1.0), **terms)
    gate.release("one of two", np.zeros(3), bound=NormBound(1.0), group=0, **terms)
    made = len(ledger.releases)
    if refused:
        with pytest.raises(PrivfedError, match="nothing was released"):
            gate.release("too little", np.zeros(3), bound=Counts(1.0), group=0, **terms)
        assert len(ledger.releases) == made
    else:
        gate.release("enough", np.zeros(3), bound=Counts(1.0), group=0, **terms)


@pytest.mark.parametrize(
    ("source", "said"), [(SeededNoise(0), "simulation"), (DiscreteNoise(), None)]
)
def test_every_line_of_a_simulation_says_that_it_is_one(tmp_path, source, said):
    ledger = Ledger(Budget(1.0, 1e-6, "replace-one"))
    ledger.open(tmp_path / "ledger.jsonl")
    NoiseGate(ledger, source).release("sum", np.zeros(2), bound=NormBound(1.0), mu=0.1, round=1)
    ledger.close()
    (line,) = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert json.loads(line).get("guarantee") == said
    assert Ledger(Budget(1.0, 1e-6, "replace-one")).verify(tmp_path / "ledger.jsonl") > 0
