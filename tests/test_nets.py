"""Covers cover, public candidates are what they claim, and sizes are known before enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privfed.algorithm import candidate_covers


def nearest(U, net):
    """Distance of U to the net: min over its N and over rotations O of |U - N O|.

    Its square is |U|^2 + |N|^2 - 2 (sum of singular values of N^T U).
    """
    overlap = np.linalg.svd(net.transpose(0, 2, 1) @ U, compute_uv=False).sum(1)
    return math.sqrt(max(0.0, np.min(np.sum(U**2) + np.sum(net**2, axis=(1, 2)) - 2 * overlap)))


@pytest.mark.parametrize(
    ("d", "k", "gamma"),
    [(1, 1, 0.5), (2, 1, 0.1), (3, 1, 0.25), (4, 1, 0.5), (3, 2, 0.6), (2, 2, 0.5)],
)
def test_every_orthonormal_matrix_is_within_gamma_of_the_net(d, k, gamma):
    net = candidate_covers.orthonormal_net(d, k, gamma)
    np.testing.assert_allclose(
        net.transpose(0, 2, 1) @ net, np.tile(np.eye(k), (len(net), 1, 1)), atol=1e-12
    )
    points = candidate_covers.grid_size(d * k, 1.0, candidate_covers.sphere_spacing(d, k, gamma))[1]
    assert 1 <= len(net) <= points
    probes = candidate_covers.random_orthonormal(np.random.default_rng(0), 300, d, k)
    assert max(nearest(U, net) for U in probes) <= gamma + 1e-9


@pytest.mark.parametrize(
    ("rows", "k", "gamma"), [(1, 1, 0.3), (2, 1, 0.2), (3, 1, 0.5), (2, 2, 0.6)]
)
def test_every_matrix_of_the_ball_is_within_gamma_of_the_net(rows, k, gamma):
    radius = math.sqrt(2 * k)
    net = candidate_covers.ball_net(rows, k, radius, gamma)
    assert np.linalg.norm(net, axis=(1, 2)).max() <= radius + 1e-12
    rng = np.random.default_rng(0)
    probes = rng.standard_normal((300, rows, k))
    probes *= (radius * rng.random(300) ** 0.3 / np.linalg.norm(probes, axis=(1, 2)))[:, None, None]
    assert max(nearest(U, net) for U in probes) <= gamma + 1e-9


def test_nets_hold_no_two_of_the_same_up_to_rotation():
    for net in (
        candidate_covers.orthonormal_net(3, 2, 0.6),
        candidate_covers.ball_net(2, 2, 2.0, 0.8),
    ):
        gram = net @ net.transpose(0, 2, 1)
        gaps = np.abs(gram[:, None] - gram[None]).max(axis=(2, 3)) + np.eye(len(net))
        assert gaps.min() > 1e-10
    U = candidate_covers.random_orthonormal(np.random.default_rng(1), 1, 4, 2)[0]
    turned = U @ candidate_covers.random_orthonormal(np.random.default_rng(2), 1, 2, 2)[0]
    assert len(candidate_covers.unique(np.stack([U, turned, -U]))) == 1


def test_a_finer_net_is_larger_and_sizes_grow_with_the_entries():
    assert len(candidate_covers.orthonormal_net(3, 1, 0.2)) > 2 * len(
        candidate_covers.orthonormal_net(3, 1, 0.4)
    )
    assert candidate_covers.grid_size(100, 1.0, 0.01)[1] > 1e200


def test_random_candidates_surround_the_last_choice_at_the_radius():
    rng = np.random.default_rng(0)
    U = candidate_covers.random_orthonormal(rng, 1, 20, 2)[0]
    near = candidate_covers.around(rng, U, 200, 0.1)
    np.testing.assert_array_equal(near[0], U)
    np.testing.assert_allclose(
        near.transpose(0, 2, 1) @ near, np.tile(np.eye(2), (200, 1, 1)), atol=1e-12
    )
    distances = np.array([nearest(U, near[i : i + 1]) for i in range(1, 200)])
    close, far = distances[:150], distances[150:]
    assert close.mean() == pytest.approx(0.1, rel=0.05) and close.max() < 0.2 and far.min() > 0.5
    shared = np.linalg.svd(U.T @ near[151:], compute_uv=False)
    np.testing.assert_allclose(shared[:, 0], 1.0, err_msg="one direction is kept")


def test_polar_is_the_nearest_orthonormal_matrix():
    rng = np.random.default_rng(0)
    M = rng.standard_normal((5, 2))
    best = np.linalg.norm(candidate_covers.polar(M) - M)
    assert all(
        best <= np.linalg.norm(U - M) for U in candidate_covers.random_orthonormal(rng, 500, 5, 2)
    )
