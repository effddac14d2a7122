"""Where networks start, how they are cut in two, and what becomes of pictures on their way in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.small_networks import MLP, net, network
from torch import nn

from privfed.config.composition import compose
from privfed.data.cohort import draws
from privfed.experiment.wiring import Experiment
from privfed.models import architectures
from privfed.models.augmentation import MARGIN, augmented


def test_the_start_is_the_seed_s():
    for module, shape in (
        (architectures.mlp((1, 6, 6), 4, [8, 5]), (1, 6, 6)),
        (architectures.lenet((1, 16, 16), 4, [2, 3], [5]), (1, 16, 16)),
    ):
        state = torch.random.get_rng_state()
        one, again, other = (
            network(module, shape=shape).initial(seed, whole=True) for seed in (0, 0, 1)
        )
        assert torch.equal(state, torch.random.get_rng_state()), (
            "nobody else's random numbers are touched"
        )
        for a, b, c in zip(one, again, other, strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == np.float64 and not np.array_equal(a, c) and np.abs(a).max() < 1
        shared = network(module, shape=shape).initial(0, whole=False)
        assert len(shared) == len(one) - 2
        for a, b in zip(shared, one, strict=False):
            np.testing.assert_array_equal(a, b)


def test_the_start_is_the_same_in_all_threads():
    """Two threads that start networks at the same time must not share torch's generator.

    It belongs to all threads at once.
    """
    made = network(architectures.mlp((1, 6, 6), 4, [64, 64, 64, 5]))
    wanted = made.initial(0, whole=True)
    with ThreadPoolExecutor(8) as pool:
        for start in pool.map(lambda _: made.initial(0, whole=True), range(200)):
            assert all(np.array_equal(a, b) for a, b in zip(start, wanted, strict=True))


def test_the_start_does_not_depend_on_what_the_module_held():
    torch.manual_seed(5)
    one = network(net(nn.ReLU())).initial(0, whole=True)
    torch.manual_seed(6)
    for a, b in zip(one, network(net(nn.ReLU())).initial(0, whole=True), strict=True):
        np.testing.assert_array_equal(a, b)


def test_halves_make_the_whole():
    made = network(net(nn.ReLU()))
    assert made.k == 5 and made.names(True) == [
        "first.weight",
        "first.bias",
        "head.weight",
        "head.bias",
    ]
    assert made.sizes(True) == [(5, 36), (5,), (4, 5), (4,)] and made.sizes(False) == [
        (5, 36),
        (5,),
    ]
    body, head = made.received(made.initial(0, whole=True))
    assert list(body) == ["first.weight", "first.bias"] and list(head) == ["weight", "bias"]
    assert made.received(made.initial(0, whole=False))[1] == {}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_pixels_become_numbers_between_minus_one_and_one(dtype):
    X = np.array([0, 255, 51, 204] * 9, dtype=dtype).reshape(1, 1, 36)
    images = network(net()).images(X)
    assert images.shape == (1, 1, 6, 6) and images.dtype == torch.float32
    np.testing.assert_allclose(images.ravel()[:4], [-1, 1, -0.6, 0.6], atol=1e-6)


def test_pictures_are_shifted_and_mirrored():
    x = torch.arange(1.0, 1 + 2 * 3 * 5 * 6).reshape(2, 3, 5, 6)

    def place(shift):
        return (shift + MARGIN + 0.5) / (2 * MARGIN + 1)

    def moved(picture, dy, dx):
        """What is seen through a window moved by dy, dx, grey outside."""
        seen = torch.zeros_like(picture)
        for i in range(5):
            for j in range(6):
                if 0 <= i + dy < 5 and 0 <= j + dx < 6:
                    seen[:, i, j] = picture[:, i + dy, j + dx]
        return seen

    for dy, dx in ((0, 0), (-MARGIN, MARGIN), (2, -1), (MARGIN, 0)):
        numbers = np.array([place(dy), place(dx), 0.7, place(0), place(0), 0.2])
        still, mirrored = augmented(x, numbers)
        torch.testing.assert_close(still, moved(x[0], dy, dx))
        torch.testing.assert_close(mirrored, x[1].flip(2))
    numbers = np.array([place(1), place(2), 0.2] * 2)
    torch.testing.assert_close(augmented(x, numbers)[0], moved(x[0], 1, 2).flip(2))
    ends = augmented(x, np.array([0.0, 0.0, 0.9, 1 - 1e-9, 1 - 1e-9, 0.9]))
    torch.testing.assert_close(ends[0], moved(x[0], -MARGIN, -MARGIN))
    torch.testing.assert_close(ends[1], moved(x[1], MARGIN, MARGIN))


def test_random_numbers_are_the_user_s_own():
    ids = np.array([3, 900, 1023, 1024, 1030, 5000])
    whole = draws(0, ids, 6, "augment", 1, 2)
    for some in ([0, 1], [1, 3, 5], [4]):
        np.testing.assert_array_equal(draws(0, ids[some], 6, "augment", 1, 2), whole[some])
    assert len(np.unique(whole)) == whole.size and draws(0, ids[:0], 6, "augment").shape == (0, 6)
    for other in (
        draws(1, ids, 6, "augment", 1, 2),
        draws(0, ids, 6, "augment", 2, 2),
        draws(0, ids, 6, "batches", 1, 2),
    ):
        assert not np.isin(other, whole).any()


def test_augmented_runs_differ_in_heads_only_where_asked():
    base = ("algo=network/centaur", "model=mlp", *MLP[1:], "eps=inf", "algo.lr=0.1")
    never, final, always = (
        Experiment(compose([*base, f"algo.augment={when}"])).run()
        for when in ("never", "final", "always")
    )
    same = [np.array_equal(never.model[name], final.model[name]) for name in never.model]
    other = [np.array_equal(never.model[name], always.model[name]) for name in never.model]
    assert all(same) and not any(other)
