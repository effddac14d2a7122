"""Scores of candidates by NumPy and by compiled loops."""

from __future__ import annotations

import numpy as np
import pytest

from privfed.foundation.compilation import choosing
from privfed.kernels.candidate_scores import absolute_scores, margin_scores


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_numpy_and_compiled_scores_agree(k):
    rng = np.random.default_rng(k)
    P, y = rng.standard_normal((20, 10, k, 31)), rng.standard_normal((20, 10))
    P[3], V = 0.0, rng.standard_normal((6, k))
    found = []
    for mode in ("never", "always"):
        with choosing(mode):
            found.append((absolute_scores(P, y, 2.0, 1.5), margin_scores(P, np.sign(y), V, 0.2)))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_dependent_features_have_a_head():
    """A ridge decides between heads that are equally good, so scores agree to fewer digits."""
    rng = np.random.default_rng(9)
    P, y = rng.standard_normal((4, 8, 3, 5)), rng.standard_normal((4, 8))
    P[:, :, 1] = P[:, :, 0]
    found = []
    for mode in ("never", "always"):
        with choosing(mode):
            found.append(absolute_scores(P, y, 2.0, 1.5))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
