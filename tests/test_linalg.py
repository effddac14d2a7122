from __future__ import annotations

import numpy as np
import pytest

from privfed.foundation import linalg


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_retraction_is_orthonormal_and_keeps_the_span():
    M = random(7, 3)
    Q = linalg.retraction(M)
    np.testing.assert_allclose(Q.T @ Q, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(Q @ (Q.T @ M), M, atol=1e-12)
    np.testing.assert_allclose(linalg.retraction(Q), Q, atol=1e-12)


def test_top_eigenvectors_go_by_absolute_value():
    Q = linalg.retraction(random(6, 6))
    S = Q @ np.diag([1.0, -5.0, 0.1, 3.0, 0.2, -0.3]) @ Q.T
    assert linalg.dist(linalg.top_eigenvectors(S, 2), Q[:, [1, 3]]) < 1e-10


def test_dist_is_the_sine_of_the_angle():
    a, b = np.array([[1.0], [0.0]]), np.array([[np.cos(0.3)], [np.sin(0.3)]])
    assert linalg.dist(a, b) == pytest.approx(np.sin(0.3))
    assert linalg.dist(a, -a) == 0


def test_svec_is_an_isometry_and_invertible():
    S = random(5, 5) + random(5, 5).T
    assert np.linalg.norm(linalg.svec(S)) == pytest.approx(np.linalg.norm(S), rel=1e-12)
    np.testing.assert_allclose(linalg.unsvec(linalg.svec(S), 5), S, atol=1e-12)


def test_noise_on_svec_has_half_the_power_beside_the_diagonal():
    d = 150
    S = linalg.unsvec(random(d * (d + 1) // 2), d)
    np.testing.assert_array_equal(S, S.T)
    assert np.var(S[np.triu_indices(d, 1)]) == pytest.approx(0.5, rel=0.1)
    assert np.var(np.diag(S)) == pytest.approx(1.0, rel=0.4)
