"""What takes one user's place in a replay: other data, nobody, a node that lies, or puppets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.common import FitRes

from privfed.data.cohort import Cohort
from privfed.foundation.linalg import Array

CROWD, COHORT, SINGLE = "crowd", "cohort", "single"
"""Nodes of a replay: unchanged users, the users of whom one changes, and a single user."""
EVERYBODY = "everybody"
"""Stands for all nodes."""
USUAL = "as configured"
"""Name of the data that the configuration gives."""


People = dict[str, Sequence[tuple[str, ...]]]
"""Rows of a table by the name of their user."""


@dataclass(frozen=True)
class Asked:
    """What a step asks of a node.

    Attributes:
        step: number of the step.
        shapes: shapes of the arrays that are to be sent.
        bounds: clip norm of each.
        users: registered users of the node.
    """

    step: int
    shapes: list[tuple[int, ...]]
    bounds: list[float]
    users: int


@dataclass(frozen=True)
class Guise:
    """What takes one user's place at a node: other data, nobody, or a node that lies.

    Attributes:
        name: name in findings.
        node: node of the user; EVERYBODY: no client computes, all nodes send what `puppet` says.
        place: position of the user in its cohort.
        family: guises of one family are neighbours of each other; weak privacy has one family per
            choice of features.
        cohort: changes the node's cohort.
        surroundings: name of the data of all other users.
        others: changes the cohort of every node, before `cohort` does.
        table: changes the people of a table, where the data are one.
        reply: changes the node's reply; None means no reply.
        puppet: what a node sends, for EVERYBODY.
        absent: whether the user is absent.
        honest: whether the node runs the real client, so that nothing public may depend on its
            data.
    """

    name: str
    node: str = COHORT
    place: int = 0
    family: str = ""
    cohort: Callable[[Cohort], Cohort] = lambda cohort: cohort
    surroundings: str = USUAL
    others: Callable[[Cohort], Cohort] = lambda cohort: cohort
    table: Callable[[People], People] = lambda people: people
    reply: Callable[[FitRes], FitRes | None] = lambda reply: reply
    puppet: Callable[[Asked], list[Array]] = lambda asked: []
    absent: bool = False
    honest: bool = True


ITSELF = Guise("itself", node="")
"""Nobody changes."""


def floating(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return `dtype` if it is a floating-point type, else float64, for hostile users' data."""
    return dtype if np.issubdtype(dtype, np.floating) else np.dtype(np.float64)


def with_data(cohort: Cohort, place: int, X: Array, y: Array) -> Cohort:
    """Return the cohort with examples X (m, d), y (m,) for the user at position `place`."""
    Xs, ys = cohort.X.astype(floating(cohort.X.dtype)), cohort.y.copy()
    # The cohort may store its numbers in lower precision.
    with np.errstate(over="ignore"):
        Xs[place], ys[place] = X, y
    return replace(cohort, X=Xs, y=ys)


def without(cohort: Cohort, place: int) -> Cohort:
    """Return the cohort without the user at position `place`."""
    kept = np.flatnonzero(np.arange(len(cohort)) != place)
    return replace(cohort[kept], truth=None)
