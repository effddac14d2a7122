"""Check the whole answer of a node: a client sends what its contract says, and nothing else.

fit        arrays of 64-bit numbers with the shapes that were asked for; the number of registered
           users; {"step": the step's number}
evaluate   0.0, 1 and no metrics, unless a simulation asks for errors
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from flwr.common import parameters_to_ndarrays

from privfed.audit.transcript import Reply


def reply_findings(replies: Iterable[Reply]) -> Iterator[str]:
    """Yield what nodes send besides what they are asked for, in words.

    Args:
        replies: answers of nodes that run the real client.
    """
    for reply in replies:
        words = _fit(reply) if reply.message.kind == "fit" else _evaluate(reply)
        yield from (f"node {reply.message.cid!r} {what}" for what in words)


def _fit(reply: Reply) -> Iterator[str]:
    config, answer = reply.message.ins.config, reply.answer
    where = f"in the task {config['task']!r}"
    contract = {"step": config["step"]}
    if answer.metrics != contract or any(type(x) is not int for x in answer.metrics.values()):
        more = sorted(set(answer.metrics) - set(contract))
        told = f": {', '.join(map(repr, more))}" if more else ""
        yield f"sends metrics other than the number of the step {where}{told}"
    if answer.num_examples not in {reply.users, reply.users - reply.absent}:
        yield (
            f"says that it has {answer.num_examples} examples {where}, "
            f"not the number of its users, {reply.users}"
        )
    arrays = parameters_to_ndarrays(answer.parameters)
    if len(arrays) != len(reply.shapes):
        yield f"sends {len(arrays)} arrays {where}, {len(reply.shapes)} were asked for"
    for array, shape in zip(arrays, reply.shapes, strict=False):
        if array.shape != shape:
            yield f"sends an array of shape {array.shape} {where}, {shape} was asked for"
        if array.dtype != np.float64:
            yield f"sends numbers of type {array.dtype} {where}, not float64"


def _evaluate(reply: Reply) -> Iterator[str]:
    answer = reply.answer
    if (answer.loss, answer.num_examples, answer.metrics) != (0.0, 1, {}):
        yield "says how well it does after the last step, though nobody may ask for it"
