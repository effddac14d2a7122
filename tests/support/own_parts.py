"""Parts of single users, taken out of the sums that a client computes for a whole block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.common import FitIns, ndarrays_to_parameters

from privfed.algorithm.announcement import Announcement
from privfed.algorithm.table_parts import Sparse
from privfed.experiment.wiring import Experiment
from privfed.kernels.candidate_scores import CandidateScores
from privfed.kernels.gradients import Gradients
from privfed.privacy.clipping import Dense, Scores
from privfed.runtimes.inprocess import LocalProxy

Parts = dict[Any, list[bytes]]
"""What each user adds to each sum of a step, bit by bit."""


def played(experiment: Experiment, clients: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Run all steps with these clients; return the parameters and settings that they were told."""
    strategy, told = experiment.strategy, []
    for step in strategy.plan:
        shared = strategy.shared if step.phase.announce is None else step.phase.announce()
        config = strategy.announcement(step).to_config()
        told.append(([array.copy() for array in shared], config))
        ins = FitIns(ndarrays_to_parameters(shared), config)
        replies = [(LocalProxy(cid, None), c.to_client().fit(ins)) for cid, c in clients.items()]
        strategy.aggregate_fit(strategy.done + 1, replies, [])
    return told


def own_parts(client: Any, shared: Any, config: Any, names: Mapping[int, Any]) -> Parts:
    """Return the clipped part of every user who takes part in a step, by its name.

    Parts are computed in the same blocks as in a run. Users are taken out of a block only after
    the task has been computed for all of its users.

    Args:
        client: client of a node.
        shared: shared parameters.
        config: announcement.
        names: names of users by public number.
    """
    told = Announcement.from_config(config)
    if client.memory is not None:
        client.memory.begin(told.step)
    clips = told.clips if told.release else (1.0,)
    parts: Parts = {}
    for block in client.portions(told.task, client._asked(told)):
        mine = client.tasks()[told.task](block, [array.copy() for array in shared], told)
        for i, part in enumerate(mine if isinstance(mine, tuple) else (mine,)):
            clip = clips[min(i, len(clips) - 1)]
            held = computed(part)
            for place, user in enumerate(block.ids.tolist()):
                total, norms = only(held, place, len(block)).clipped(clip)
                parts.setdefault(names.get(user, user), []).append(
                    np.asarray(total).tobytes() + norms.tobytes()
                )
    if client.memory is not None:
        client.memory.end()
    return parts


def computed(part: Any) -> Any:
    """Return contributions whose numbers are there; some are computed when they are clipped."""
    if isinstance(part, Gradients):
        return Dense(part.some(slice(None)))
    if isinstance(part, CandidateScores):
        scores = np.empty((len(part.X), len(part.candidates)))
        seen: list[int] = []

        def score(P: Any, users: slice) -> Any:
            made = part.score(P, users)
            first = 0 if not users.start else seen.pop()
            scores[users, first : first + made.shape[1]] = made
            seen.append(first + made.shape[1] if users.stop >= len(part.X) else first)
            return made

        replace(part, score=score).clipped(1.0)
        return Scores(scores)
    return Dense(part) if isinstance(part, np.ndarray) else part


def only(part: Any, place: int, users: int) -> Any:
    """Return the contributions of one of the users of a block."""
    if isinstance(part, Sparse):
        mine = part.who == place
        return Sparse(part.who[mine] * 0, part.place[mine], part.values[mine], (1, part.shape[1]))

    def taken(value: Any) -> Any:
        if isinstance(value, np.ndarray | torch.Tensor) and len(value) == users:
            return value[place : place + 1]
        if isinstance(value, list | tuple):
            return type(value)(taken(each) for each in value)
        return only(value, place, users) if is_dataclass(value) else value

    return replace(part, **{field.name: taken(getattr(part, field.name)) for field in fields(part)})
