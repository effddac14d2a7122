"""Mistakes that would let the server see a node's sum, each caught by the check that stands for it.

The same checks pass without a mistake in `test_protocol.py`.
"""

from collections.abc import Callable

import numpy as np
import pytest
from support.secure_checks import (
    check_messages_say_nothing,
    check_no_node_stands_alone,
    check_noise_is_whole,
    check_seeds_are_long,
    check_steps_have_masks_of_their_own,
)

from privfed.secure import aggregator, node
from privfed.secure.keys import KEY
from privfed.secure.node import SecureNode
from privfed.secure.noise_shares import components_sum
from privfed.secure.shamir import SHARE

TRUE_SECRET, TRUE_SEEDS, TRUE_STREAM = SecureNode._secret, SecureNode._pair_seeds, node.stream


def same_self_mask_in_all_steps(patch: pytest.MonkeyPatch) -> None:
    def secret(self: SecureNode, step: int, purpose: str) -> bytes:
        return TRUE_SECRET(self, 0 if purpose == "self" else step, purpose)

    patch.setattr(SecureNode, "_secret", secret)
    same_pair_masks_in_all_steps(patch)


def same_pair_masks_in_all_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SecureNode, "_pair_seeds", lambda self, step: TRUE_SEEDS(self, 0))


def no_self_mask(patch: pytest.MonkeyPatch) -> None:
    """Nobody adds self-masks and nobody takes them off: totals are right."""
    own: set[bytes] = set()

    def secret(self: SecureNode, step: int, purpose: str) -> bytes:
        found = TRUE_SECRET(self, step, purpose)
        if purpose == "self":
            own.add(found)
        return found

    def stream(seed: bytes, count: int) -> np.ndarray:
        true = TRUE_STREAM(seed, count)
        return np.zeros_like(true) if seed in own else true

    patch.setattr(SecureNode, "_secret", secret)
    patch.setattr(node, "stream", stream)
    patch.setattr(aggregator, "stream", stream)


def no_noise_of_one_node(patch: pytest.MonkeyPatch) -> None:
    def noisy(self: SecureNode, step: int, sums: list, arrays: list) -> np.ndarray:
        silent = self.session.me % 4 == 0
        with pytest.MonkeyPatch.context() as quiet:
            if silent:
                quiet.setattr(node, "components_sum", lambda *a: np.zeros(a[3], dtype=np.int64))
            return TRUE_NOISY(self, step, sums, arrays)

    patch.setattr(SecureNode, "noisy", noisy)


TRUE_NOISY = SecureNode.noisy


def too_much_is_taken_away(patch: pytest.MonkeyPatch) -> None:
    """The share of a needed component is lost as well: the base is drawn with half its size."""
    patch.setattr(
        node,
        "components_sum",
        lambda seeds, deviations, *rest: components_sum(seeds, [s // 2 for s in deviations], *rest),
    )


def both_secrets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        node, "part_of", lambda content, *rest: (content or bytes(2 * SHARE))[: 2 * SHARE]
    )

    def combined(self: aggregator.SecureAggregator, place: int, shares: dict) -> tuple:
        first, second = TRUE_COMBINED(self, place, shares)
        survived = self.step is not None and self.step.survivors[place]
        return (second, bytes(KEY)) if survived else (first, second)

    patch.setattr(aggregator.SecureAggregator, "_combined", combined)


TRUE_COMBINED = aggregator.SecureAggregator._combined


def short_seeds(patch: pytest.MonkeyPatch) -> None:
    def seeds(self: SecureNode, step: int) -> list[bytes]:
        return [seed[:4] + bytes(KEY - 4) for seed in TRUE_SEEDS(self, step)]

    patch.setattr(SecureNode, "_pair_seeds", seeds)


def masks_of_32_bits(patch: pytest.MonkeyPatch) -> None:
    def stream(seed: bytes, count: int) -> np.ndarray:
        return TRUE_STREAM(seed, count) >> np.uint64(32)

    patch.setattr(node, "stream", stream)
    patch.setattr(aggregator, "stream", stream)


MISTAKES: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], object]]] = [
    (same_self_mask_in_all_steps, check_steps_have_masks_of_their_own),
    (same_pair_masks_in_all_steps, check_steps_have_masks_of_their_own),
    (no_self_mask, check_no_node_stands_alone),
    (both_secrets, check_no_node_stands_alone),
    (no_noise_of_one_node, check_noise_is_whole),
    (too_much_is_taken_away, check_noise_is_whole),
    (short_seeds, check_seeds_are_long),
    (masks_of_32_bits, check_messages_say_nothing),
]


@pytest.mark.parametrize(("plant", "check"), MISTAKES, ids=[each[0].__name__ for each in MISTAKES])
def test_a_planted_mistake_is_caught(monkeypatch, plant, check):
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check()
