"""What came back from the nodes, trusted with nothing: order, shapes, sizes and numbers are all checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from flwr.common import EvaluateRes, FitRes, parameters_to_ndarrays
from flwr.server.client_proxy import ClientProxy

from privfed.linalg import Array

Reply = TypeVar("Reply", FitRes, EvaluateRes)


def in_order(results: Sequence[tuple[ClientProxy, Reply]], nodes: Iterable[str]) -> Iterator[tuple[str, Reply]]:
    """First answer of every registered node, in a fixed order: arrival changes no last digit."""
    answers = {node.cid: result for node, result in reversed(results)}
    return ((cid, answers[cid]) for cid in nodes if cid in answers)


def totals_of(
    results: Sequence[tuple[ClientProxy, FitRes]],
    wanted: Sequence[tuple[tuple[int, ...], float]],
    asked: Mapping[str, int],
    bounded: Callable[[Array, float], Array],
) -> tuple[list[Array], int]:
    """Sums over nodes, each bounded by what its users who were asked can send, and the number of users behind them.

    wanted: shape of each sum and bound of one user's part. asked: users of each registered node. What has the wrong shape or
    is not finite is dropped: its users contribute zero.
    """
    totals = [np.zeros(shape) for shape, _ in wanted]
    shapes = [shape for shape, _ in wanted]
    present = 0
    for cid, result in in_order(results, asked):
        arrays = parameters_to_ndarrays(result.parameters)
        fits = [a.shape for a in arrays] == shapes and all(a.dtype == np.float64 and np.isfinite(a).all() for a in arrays)
        if not fits:
            continue
        present += asked[cid]
        for total, array, (_, bound) in zip(totals, arrays, wanted, strict=True):
            total += bounded(array, asked[cid] * bound)
    return totals, present
