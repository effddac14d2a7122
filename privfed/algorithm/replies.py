"""Answers of the nodes, none of which is trusted: order, shapes, sizes and numbers are checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from flwr.common import EvaluateRes, FitRes
from flwr.server.client_proxy import ClientProxy

from privfed.algorithm.tensors import decoded
from privfed.foundation.errors import PrivfedError
from privfed.foundation.linalg import Array
from privfed.privacy.summation import Total

Reply = TypeVar("Reply", FitRes, EvaluateRes)
NEEDED = {"own"}
"""Names of the errors that every answer of a simulation must hold."""
LARGEST = 1e100
"""Upper limit of a sum of errors; sums of such numbers stay finite."""


def in_order(
    results: Sequence[tuple[ClientProxy, Reply]], nodes: Iterable[str]
) -> Iterator[tuple[str, Reply]]:
    """Return the first answer of every registered node, in the order of `nodes`.

    The order is fixed so that the order of arrival does not change how sums are rounded.
    """
    answers = {node.cid: result for node, result in reversed(results)}
    return ((cid, answers[cid]) for cid in nodes if cid in answers)


def totals_of(
    results: Sequence[tuple[ClientProxy, FitRes]],
    wanted: Sequence[tuple[tuple[int, ...], float]],
    reach: Mapping[str, int],
    bounded: Callable[[Array, float], Array],
    step: int,
) -> tuple[list[Array], list[str]]:
    """Return the sums over nodes, and the nodes whose answers were taken.

    The part of each node is bounded by what those of its users who take part can send together. An
    answer to another step, of a wrong shape, or with numbers that are not finite is dropped: its
    users contribute zero.

    Args:
        results: answers of the nodes.
        wanted: per sum its shape and the bound of one user's part.
        reach: per registered node the number of users who may take part.
        bounded: (array, bound) -> array within the bound.
        step: number of the step that was announced.
    """
    totals = [Total(np.zeros(shape)) for shape, _ in wanted]
    shapes = [shape for shape, _ in wanted]
    answered = []
    for cid, result in in_order(results, reach):
        tensors = result.parameters.tensors
        if result.metrics.get("step") != step or len(tensors) != len(shapes):
            continue
        arrays = [decoded(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)]
        sound = [array for array in arrays if array is not None and np.isfinite(array).all()]
        if len(sound) < len(arrays):
            continue
        answered.append(cid)
        for total, array, (_, bound) in zip(totals, sound, wanted, strict=True):
            total.add(bounded(array, reach[cid] * bound))
    return [total.value for total in totals], answered


def check_shapes(
    results: Sequence[tuple[ClientProxy, FitRes]], task: str, shapes: Sequence[tuple[int, ...]]
) -> None:
    """Raise if a client of ours sends other sums than the phase says.

    Answers of foreign nodes are dropped instead (`totals_of`): they must not stop a run.

    Args:
        results: answers of the nodes.
        task: name of the task, for the message.
        shapes: shape of each sum that was asked for.

    Raises:
        PrivfedError: for the first answer with another number of sums, or another shape.
    """
    for _, result in results:
        arrays = [decoded(tensor) for tensor in result.parameters.tensors]
        sent = [None if array is None else array.shape for array in arrays]
        if sent != list(shapes):
            raise PrivfedError(
                f"task {task!r} sends sums of shapes {sent}, its phase asks for {list(shapes)}; "
                "nothing was released in this step"
            )


def judgements(
    results: Sequence[tuple[ClientProxy, EvaluateRes]], nodes: Mapping[str, int]
) -> dict[str, Any]:
    """Return the errors of a simulation, summed over nodes.

    A node is left out if it sends anything but errors, or other errors than the nodes of most
    users send.

    Args:
        results: answers of the nodes.
        nodes: number of users per node.
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
    """Return names and shapes of the values that a node tells."""
    return tuple(sorted((name, np.shape(value)) for name, value in values.items()))
