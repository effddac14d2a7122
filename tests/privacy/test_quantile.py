from __future__ import annotations

import numpy as np
import pytest

from privfed.privacy.adaptive_clipping import MEASURES, Below, Histogram
from privfed.privacy.neighbouring import REPLACE_ONE, ZERO_OUT


@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e7])
@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_without_noise_the_quantile_is_right_to_a_bin(scale, q):
    norms = scale * np.random.default_rng(0).lognormal(size=20_000)
    found = Histogram().clip(Histogram().count(norms, 0.0), len(norms), q, 0.0)
    assert np.quantile(norms, q) / 1.3 <= found <= np.quantile(norms, q) * 1.3


def test_noise_shifts_it_little_and_it_is_always_usable():
    rng = np.random.default_rng(1)
    histogram = Histogram()
    counts = histogram.count(rng.lognormal(size=20_000), 0.0)
    for _ in range(50):
        assert (
            0.3
            < histogram.clip(counts + 150 * rng.standard_normal(counts.size), 20_000, 0.5, 0.0)
            < 3
        )
        assert 0 < histogram.clip(1e6 * rng.standard_normal(counts.size), 20_000, 0.5, 0.0) < np.inf


@pytest.mark.parametrize("q", [0.2, 0.5, 0.9])
def test_following_a_moving_scale_by_one_number_a_round(q):
    rng = np.random.default_rng(2)
    below, clip, scale = Below(), 30.0, 1.0
    for _ in range(60):
        scale *= 0.9
        norms = scale * rng.lognormal(size=5000)
        clip = below.clip(below.count(norms, clip) + 100 * rng.standard_normal(1), 5000, q, clip)
    assert np.quantile(norms, q) / 2 < clip < np.quantile(norms, q) * 2


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_every_user_answers_once_within_the_bound(measure):
    for norm in (5e-324, 1e-300, 0.7, 1.0, 1e300, 1.7e308):
        answer = measure.count(np.array([norm]), 1.0)
        assert answer.shape == (measure.size,) and np.linalg.norm(answer) == measure.bound.clip


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize("relation", [REPLACE_ONE, ZERO_OUT])
def test_one_user_moves_the_answers_by_no_more_than_is_charged(measure, relation):
    """A user whose data are emptied contributes 0, and its answer is 0, too."""
    others = np.random.default_rng(0).lognormal(size=50)
    norms = [5e-324, 1e-3, 0.7, 1.0, 3.0, 1e300]
    for norm in norms:
        for other in [0.0] if relation == ZERO_OUT else [0.0, *norms]:
            sums = (measure.count(np.append(others, x), 1.0) for x in (norm, other))
            moved = np.linalg.norm(np.subtract(*sums))
            assert moved <= measure.bound.sensitivity(relation), (norm, other)
