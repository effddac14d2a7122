"""Who shares secrets and masks with whom: a random k-regular graph, k ~ log n.

Everybody computes the graph from public randomness. What has to hold (docs/secure-aggregation.md):

1. More colluding neighbours than `colluding` have nobody, but with probability 2^-40.
2. Enough neighbours of everybody survive if the tolerated number of nodes, any random ones, is
   lost: `threshold` of them, but with probability 2^-20 per step.
3. 2 threshold > k + colluding: honest nodes reveal one of the two secrets of a node, so that no
   server gets both, even if it tells nodes different things.
4. No choice of lost nodes cuts the survivors in two groups whose sums could be told apart. A group
   that is cut off has inner degree at least threshold - colluding; the second eigenvalue of the
   graph bounds the inner degree of small groups, and says that large groups have common edges.
5. A step that was begun in one session and again in another is unmasked in one of them at most.
   Nodes that vouch in the first do not answer in the second, so they are among its lost nodes.
   They are too few to vouch for each other: a group of inner degree threshold - colluding has more
   nodes than may be lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privfed.foundation.errors import ConfigError
from privfed.secure.keys import derived, stream
from privfed.secure.shamir import MOST

SECURITY = 2.0**-40
RELIABILITY = 2.0**-20
WIDER = 1.05
"""The second eigenvalue may exceed 2 sqrt(k - 1), that of almost all graphs, by this factor."""
SWAPS = 8
"""Random numbers per node and cycle for changing edges that exist already."""
FEWEST = 3
"""Fewest nodes: of two nodes, each could compute the other's part from the sum."""


@dataclass(frozen=True)
class Degrees:
    """Numbers that the graph of a run has.

    Attributes:
        neighbours: k, the number of neighbours of every node.
        threshold: number of shares that give a secret.
        colluding: largest number of colluding neighbours that is counted with.
    """

    neighbours: int
    threshold: int
    colluding: int


@lru_cache(maxsize=256)
def degrees(nodes: int, lost: int, colluding: int) -> Degrees:
    """Return the smallest degrees for which all of 1 to 5 hold.

    Args:
        nodes: number of nodes.
        lost: largest number of nodes that may be lost in a step.
        colluding: largest number of nodes that may collude with the server.

    Raises:
        ConfigError: there are none.
    """
    if nodes < FEWEST:
        raise ConfigError(
            f"privacy.trust=nobody: needs at least {FEWEST} nodes, there are {nodes} "
            "(runtime.nodes); nothing was sent"
        )
    for k in range(4, min(nodes // 2, MOST) + 1, 2):  # denser graphs are hard to draw
        found = _sparse(nodes, lost, colluding, k)
        if found is not None:
            return found
    threshold = (nodes - 1 + colluding) // 2 + 1
    if threshold > nodes - 1 - lost or nodes - 1 > MOST:
        raise ConfigError(
            f"privacy.honest: {lost} of {nodes} nodes may be lost and {colluding} collude; the "
            f"other {nodes - lost - 1} cannot outvote them, {threshold} are needed; nothing was "
            "sent"
        )
    return Degrees(nodes - 1, threshold, colluding)


def _sparse(nodes: int, lost: int, colluding: int, k: int) -> Degrees | None:
    others = nodes - 1

    from scipy.stats import hypergeom  # half a second, which runs with a trusted server save

    def most(bad: int, probability: float) -> int:
        return int(hypergeom.isf(probability / nodes, others, bad, k)) if bad else 0

    hostile, gone = most(colluding, SECURITY), most(lost, RELIABILITY)
    threshold = k - gone
    second = WIDER * 2.0 * math.sqrt(k - 1)
    alone = (threshold - hostile - second) / k
    together = (nodes - lost - colluding) / nodes
    cannot_be_cut = alone > 0 and (
        2 * alone > together or alone * (together - alone) > (second / k) ** 2
    )
    once = alone * nodes > lost
    fits = 2 * threshold > k + hostile and cannot_be_cut and once
    return Degrees(k, threshold, hostile) if fits else None


@lru_cache(maxsize=8)
def neighbours(nodes: int, k: int, seed: bytes) -> NDArray[np.int64]:
    """Return the neighbours of every node in ascending order, (nodes, k).

    Args:
        nodes: number of nodes.
        k: number of neighbours of each: nodes - 1, or an even number.
        seed: public randomness.
    """
    if k == nodes - 1:
        everybody = np.arange(nodes)
        return np.array([np.delete(everybody, i) for i in range(nodes)])
    for attempt in range(1000):
        found = _cycles(nodes, k, derived(seed, "graph", attempt))
        if found is not None and second_eigenvalue(found) <= WIDER * 2.0 * math.sqrt(k - 1):
            return found
    raise ConfigError(f"no graph of {nodes} nodes with {k} neighbours each was found")


def mirrored(graph: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of a node among the neighbours of each of its neighbours, (nodes, k)."""
    nodes, k = graph.shape
    me = np.arange(nodes)[:, None]
    # Edges (i, j) in ascending order are those (j, i), turned round.
    return np.searchsorted((me * nodes + graph).ravel(), graph * nodes + me) % k


def _cycles(nodes: int, k: int, seed: bytes) -> NDArray[np.int64] | None:
    """Return the union of k/2 random cycles through all nodes without common edges, or None."""
    words = stream(seed, (1 + SWAPS) * nodes * k // 2)
    linked: list[set[int]] = [set() for _ in range(nodes)]
    for round in range(k // 2):
        mine = words[round * (1 + SWAPS) * nodes :][: (1 + SWAPS) * nodes]
        order = np.argsort(mine[:nodes], kind="stable").tolist()

        def used(place: int, order: list[int] = order) -> bool:
            """Whether the edge to the place before exists already."""
            return order[place] in linked[order[place - 1]]

        swaps = iter(mine[nodes:].tolist())
        a = 0
        while a < nodes:
            if not used(a):
                a += 1
                continue
            # Exchange one end of the edge with some other place, unless that spoils more edges.
            b = next(swaps, None)
            if b is None:
                return None
            b %= nodes
            ends = {a, (a + 1) % nodes, b, (b + 1) % nodes}
            before = sum(map(used, ends))
            order[a], order[b] = order[b], order[a]
            if sum(map(used, ends)) >= before:
                order[a], order[b] = order[b], order[a]
            else:
                a = 0
        for a in range(nodes):
            linked[order[a]].add(order[a - 1])
            linked[order[a - 1]].add(order[a])
    return np.array([sorted(each) for each in linked])


def second_eigenvalue(graph: NDArray[np.int64]) -> float:
    """Return the largest absolute eigenvalue of a regular graph besides its degree.

    Args:
        graph: neighbours of every node, (nodes, k).
    """
    nodes, k = graph.shape

    from scipy.sparse.linalg import LinearOperator, eigsh

    def moved(x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = x.ravel()
        return np.asarray(x[graph].sum(axis=1) - k * x.mean())

    start = np.cos(np.arange(nodes) * 1.618)
    operator = LinearOperator((nodes, nodes), matvec=moved, dtype=np.float64)
    (value,) = eigsh(operator, k=1, which="LM", v0=start, return_eigenvectors=False, tol=1e-4)
    return float(abs(value)) * (1 + 1e-3)
