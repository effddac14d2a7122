from __future__ import annotations

import numpy as np
import pytest

from privfed.privacy import quantile


@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e7])
@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_without_noise_the_quantile_is_right_to_a_bin(scale, q):
    norms = scale * np.random.default_rng(0).lognormal(size=20_000)
    found = quantile.quantile(quantile.histogram(norms), len(norms), q)
    assert np.quantile(norms, q) / 1.3 <= found <= np.quantile(norms, q) * 1.3


def test_noise_shifts_it_little_and_it_is_always_usable():
    rng = np.random.default_rng(1)
    norms = rng.lognormal(size=20_000)
    counts = quantile.histogram(norms)
    for _ in range(50):
        assert 0.3 < quantile.quantile(counts + 150 * rng.standard_normal(counts.size), 20_000, 0.5) < 3
        assert 0 < quantile.quantile(1e6 * rng.standard_normal(counts.size), 20_000, 0.5) < np.inf


def test_odd_norms_are_counted_once():
    odd = np.array([0.0, 5e-324, 1e-300, 1e300, 1.7e308])
    assert quantile.histogram(odd).sum() == 5
