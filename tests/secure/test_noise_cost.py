"""What a sum of rounded Gaussians is charged covers how it differs from one of them."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from privfed.privacy.accounting import SUMMED_GAUSSIANS, GaussianRelease


def rounded(s: float, reach: int) -> np.ndarray:
    """Return the probabilities of round(s Z) on -reach..reach."""
    edges = (np.arange(-reach, reach + 2) - 0.5) / s
    upper = norm.cdf(np.minimum(edges, -edges))  # tails to full relative precision
    middle = np.where(edges < 0, upper, 1 - upper)
    found = np.diff(middle)
    right = edges[:-1] > 0
    found[right] = (upper[:-1] - upper[1:])[right]
    return found


@pytest.mark.parametrize("parts", [2, 5, 9])
def test_log_ratios_of_a_sum_and_one_rounded_gaussian_are_bounded(parts):
    each, reach = 12.0, 200
    total = rounded(each, reach)
    for _ in range(parts - 1):
        total = np.convolve(total, rounded(each, reach))
    middle = len(total) // 2
    s = each * math.sqrt(parts)
    span = int(4 * s)
    x = np.arange(-span, span + 1)
    mine, one = total[middle - span : middle + span + 1], rounded(s, span)
    ratio = np.log(mine / one)
    # docs/proofs.md: -(parts + L) / (24 s^2) <= log ratio <= (parts L + 1) / (24 s^2), L = x^2/s^2
    L = (x / s) ** 2
    assert (ratio <= (parts * L + 1) / (24 * s**2) + 1e-9).all()
    assert (ratio >= -(parts + L) / (24 * s**2) - 1e-9).all()
    assert ratio.max() > 0.4 * (parts - 1) * L.max() / (24 * s**2), "the bound is not idle"


def test_the_charge_is_what_the_proof_says():
    made = GaussianRelease(
        "sum", 1, 100, 1.0, 2.0, 2.0**24, grid=1.0, noise=SUMMED_GAUSSIANS, parts=60
    )
    L = 1.02 * (100 + 2 * math.sqrt(700 * 100) + 1400)
    assert made.epsilon == pytest.approx(61 * (100 + L) / (24 * 2.0**48))
    assert 0 < made.epsilon < 1e-9
    assert made.mu > 2.0 / 2.0**24
