"""What came back from the nodes, trusted with nothing: order, shapes, sizes and numbers are all checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from flwr.common import EvaluateRes, FitRes
from flwr.server.client_proxy import ClientProxy

from privfed.algorithm.tensors import decoded
from privfed.foundation.linalg import Array

Reply = TypeVar("Reply", FitRes, EvaluateRes)
NEEDED = {"own"}
"""Errors without which a judgement tells nothing."""
LARGEST = 1e100
"""No sum of errors is larger; sums of such numbers stay finite."""


def in_order(
    results: Sequence[tuple[ClientProxy, Reply]], nodes: Iterable[str]
) -> Iterator[tuple[str, Reply]]:
    """First answer of every registered node, in a fixed order: arrival changes no last digit."""
    answers = {node.cid: result for node, result in reversed(results)}
    return ((cid, answers[cid]) for cid in nodes if cid in answers)


def totals_of(
    results: Sequence[tuple[ClientProxy, FitRes]],
    wanted: Sequence[tuple[tuple[int, ...], float]],
    asked: Mapping[str, int],
    bounded: Callable[[Array, float], Array],
    step: int,
) -> tuple[list[Array], int]:
    """Sums over nodes, each bounded by what its users who were asked can send, and the number of users behind them.

    wanted: shape of each sum and bound of one user's part. asked: users of each registered node. What answers another step, has
    the wrong shape or is not finite is dropped: its users contribute zero.
    """
    totals = [np.zeros(shape) for shape, _ in wanted]
    shapes = [shape for shape, _ in wanted]
    present = 0
    for cid, result in in_order(results, asked):
        tensors = result.parameters.tensors
        if result.metrics.get("step") != step or len(tensors) != len(shapes):
            continue
        arrays = [decoded(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)]
        sound = [array for array in arrays if array is not None and np.isfinite(array).all()]
        if len(sound) < len(arrays):
            continue
        present += asked[cid]
        for total, array, (_, bound) in zip(totals, sound, wanted, strict=True):
            total += bounded(array, asked[cid] * bound)
    return totals, present


def judgements(
    results: Sequence[tuple[ClientProxy, EvaluateRes]], nodes: Mapping[str, int]
) -> dict[str, Any]:
    """A simulation's errors summed over nodes; nodes: users of each.

    Left out is who sends anything but errors, or not those that the nodes of most users send.
    """
    told: dict[str, dict[str, Any]] = {}
    kinds: Counter[tuple[Any, ...]] = Counter()
    for cid, result in in_order(results, nodes):
        try:
            mine = {
                name: np.frombuffer(x) if isinstance(x, bytes) else float(x)
                for name, x in result.metrics.items()
            }
        except ValueError:
            continue
        if set(mine) >= NEEDED and all(
            np.all((value >= 0) & (value < LARGEST)) for value in mine.values()
        ):
            told[cid] = mine
            kinds[kind_of(mine)] += nodes[cid]
    usual = max(kinds, key=kinds.__getitem__, default=())
    sums: dict[str, Any] = {}
    for cid, mine in told.items():
        if kind_of(mine) == usual:
            for name, value in {"users": nodes[cid], **mine}.items():
                sums[name] = sums.get(name, 0) + value
    return sums


def kind_of(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is told, and in which shapes."""
    return tuple(sorted((name, np.shape(value)) for name, value in values.items()))
