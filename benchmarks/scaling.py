"""Cost of a round as users, nodes and machines grow.

It is arithmetic on measured constants, and a simulated aggregation tree.

    n   number of users
    N   number of nodes, which is the number of messages per round, each way
    M   number of machines
    g   number of cores per machine
    P   number of numbers in a message

A flat round announces P numbers to N nodes, computes, and has one server take N answers one after
the other:

    compute   (node N + user n) / (M g)
              every node's call and every user's gradient, spread over all cores
    server    fixed + N message
              decode, check, clip again, add, and the runtime's overhead per message
    network   2 latency + N (down + up) / bandwidth
              through the server's own link

`bench_scaling.py` measures the constants; latency and bandwidth are assumed and stated.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from privfed.foundation.linalg import Array


@dataclass(frozen=True)
class Line:
    """A straight line: base + each * x."""

    base: float
    each: float

    def __call__(self, x: float) -> float:
        """Return the cost at x."""
        return self.base + self.each * x

    @classmethod
    def through(cls, x: Sequence[float], y: Sequence[float]) -> Line:
        """Return the line of least relative error through the points, with no part below zero.

        Raises:
            ValueError: if there are not two different points, or a cost is not positive.
        """
        if len(x) != len(y) or len(set(x)) < 2:
            raise ValueError(f"a line needs two different points, not x={list(x)}, y={list(y)}")
        if min(y) <= 0:
            raise ValueError(f"costs must be positive, not {min(y)}")
        weight = 1 / np.asarray(y, dtype=float)
        columns = np.stack([weight, weight * np.asarray(x, dtype=float)], axis=1)
        scale = np.linalg.norm(columns, axis=0)
        base, each = np.linalg.lstsq(columns / scale, np.ones(len(x)), rcond=None)[0] / scale
        if base < 0:
            return cls(0.0, float(columns[:, 1].sum() / (columns[:, 1] ** 2).sum()))
        if each < 0:
            return cls(float(columns[:, 0].sum() / (columns[:, 0] ** 2).sum()), 0.0)
        return cls(float(base), float(each))


@dataclass(frozen=True)
class Network:
    """An assumed network, not a measured one.

    Attributes:
        name: name of the network.
        latency: seconds one way.
        bandwidth: bytes per second of every machine's link, each way.
    """

    name: str
    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if self.latency < 0 or not self.bandwidth > 0:
            raise ValueError(
                f"{self.name}: latency must not be negative, bandwidth must be positive"
            )


DATA_CENTRE = Network("data centre", 0.5e-3, 10e9 / 8)
WIDE_AREA = Network("wide area", 30e-3, 1e9 / 8)


@dataclass(frozen=True)
class Round:
    """Seconds of one round by part."""

    compute: float
    server: float
    network: float

    @property
    def total(self) -> float:
        """Seconds of the whole round; no two parts overlap."""
        return self.compute + self.server + self.network


@dataclass(frozen=True)
class Costs:
    """Measured seconds and bytes. Lines are functions of P, the number of numbers in a message."""

    user: Line
    """Seconds of one core per user and round."""
    node: float
    """Seconds of one core per call of a node, without its users."""
    reply: Line
    """Seconds that the server needs to decode, check and add an answer."""
    fixed: dict[str, float]
    """Seconds per round that do not depend on the number of nodes, by runtime.

    They include noise, retraction and the way there and back.
    """
    overhead: dict[str, float]
    """Seconds that the server needs to send to and receive from a node, by runtime."""
    down: Line
    """Bytes of a message to a node."""
    up: Line
    """Bytes of the answer of a node."""
    memory: float
    """Bytes of a user's data."""

    def message(self, runtime: str, P: int) -> float:
        """Return the seconds of the server's one thread for a node's question and answer."""
        if runtime not in self.overhead:
            raise ValueError(f"runtime={runtime}: must be one of {', '.join(self.overhead)}")
        return self.overhead[runtime] + self.reply(P)

    def flat(
        self,
        n: int,
        nodes: int,
        machines: int,
        cores: int,
        runtime: str,
        P: int,
        network: Network | None = DATA_CENTRE,
    ) -> Round:
        """Return the cost of a round in which one server receives the answers of all nodes.

        Args:
            n: number of users.
            nodes: number of nodes.
            machines: number of machines.
            cores: number of cores per machine.
            runtime: name of the runtime.
            P: number of numbers in a message.
            network: assumed network; None if all nodes are on one machine.

        Raises:
            ValueError: if sizes do not fit together.
        """
        check_sizes(n=n, nodes=nodes, machines=machines, cores=cores, P=P)
        if nodes > n:
            raise ValueError(f"nodes={nodes}: more than the {n} users")
        compute = (self.node * nodes + self.user(P) * n) / min(machines * cores, nodes)
        server = nodes * self.message(runtime, P) + self.fixed[runtime]
        if network is None:
            return Round(compute, server, 0.0)
        return Round(
            compute,
            server,
            2 * network.latency + nodes * (self.down(P) + self.up(P)) / network.bandwidth,
        )

    def balance(self, n: int, runtime: str, P: int) -> float:
        """Return the number N of nodes at which the server takes as long as the nodes.

        Each node is a cohort with a separate core: user n / N = N message. At this N the sum of
        both is smallest; with more nodes a round gets slower.
        """
        check_sizes(n=n, P=P)
        return math.sqrt(self.user(P) * n / self.message(runtime, P))

    def hop(self, runtime: str, P: int, network: Network) -> Hop:
        """Return the cost of a level of a tree: each inner node does the work of a flat server."""
        down, up = self.down(P) / network.bandwidth, self.up(P) / network.bandwidth
        return Hop(network.latency, down, up + self.message(runtime, P))


@dataclass(frozen=True)
class Hop:
    """Costs between a node of the tree and one below it.

    Attributes:
        latency: seconds on the way.
        send: seconds to send a copy down.
        take: seconds to take in one answer.
    """

    latency: float
    send: float
    take: float


def check_sizes(**sizes: int) -> None:
    """Raise a ValueError unless all sizes are whole numbers of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}={size}: must be a whole number of at least 1")


def parents(leaves: int, fan_out: int) -> list[list[range]]:
    """Return an aggregation tree, from the leaves up.

    Args:
        leaves: number of leaves.
        fan_out: largest number of children per inner node.

    Returns:
        Per level its inner nodes, each as the range of its children one level below.

    Raises:
        ValueError: if a size is not allowed.
    """
    check_sizes(leaves=leaves)
    if isinstance(fan_out, bool) or not isinstance(fan_out, int) or fan_out < 2:
        raise ValueError(f"fan_out={fan_out}: must be a whole number of at least 2")
    levels: list[list[range]] = []
    width = leaves
    while width > 1 or not levels:
        levels.append(
            [range(first, min(first + fan_out, width)) for first in range(0, width, fan_out)]
        )
        width = len(levels[-1])
    return levels


def simulated(
    leaves: int, fan_out: int, hop: Hop, compute: Callable[[int], float] | float
) -> float:
    """Return the seconds until the root has the sum, simulated event by event.

    Parameters go down the tree, leaves compute, and sums come up. An inner node sends its copies
    one after the other, takes in answers one at a time in the order of arrival, and passes its sum
    on when it has all answers.

    Args:
        leaves: number of leaves.
        fan_out: largest number of children per inner node.
        hop: costs between two levels.
        compute: seconds per leaf, or leaf -> seconds.
    """
    levels = parents(leaves, fan_out)
    begin = [0.0]
    for level in reversed(levels):  # downwards: copies for the children leave one after the other
        start = [0.0] * level[-1].stop
        for parent, children in enumerate(level):
            for i, child in enumerate(children, 1):
                start[child] = begin[parent] + i * hop.send + hop.latency
        begin = start
    seconds = compute if callable(compute) else lambda leaf: compute
    waiting = [[len(children) for children in level] for level in levels]
    free = [[0.0] * len(level) for level in levels]
    # An event is (arrival, level, sender).
    events = [(begin[leaf] + seconds(leaf) + hop.latency, 0, leaf) for leaf in range(leaves)]
    heapq.heapify(events)
    while True:
        arrived, depth, sender = heapq.heappop(events)
        parent = sender // fan_out
        done = free[depth][parent] = max(free[depth][parent], arrived) + hop.take
        waiting[depth][parent] -= 1
        if not waiting[depth][parent]:
            if depth + 1 == len(levels):
                return done
            heapq.heappush(events, (done + hop.latency, depth + 1, parent))


def closed_form(depth: int, fan_out: int, hop: Hop, compute: float) -> float:
    """Return the same for a full tree of fan_out ** depth leaves that compute equally long.

    Copies leave one after the other, so answers arrive equally far apart. A parent is done after
    fan_out times the slower of sending and taking, plus once the faster. The same holds on higher
    levels, because parents began equally far apart, too.
    """
    check_sizes(depth=depth)
    last = fan_out * max(hop.send, hop.take) + min(hop.send, hop.take)
    return compute + depth * (2 * hop.latency + last)


def summed(values: Array, fan_out: int) -> Array:
    """Return the sum over leaves as the tree computes it; inner nodes add children in order.

    Args:
        values: values of the leaves (leaves, ...).
        fan_out: largest number of children per inner node.
    """
    for level in parents(len(values), fan_out):
        values = np.stack(
            [reduce(np.add, (values[child] for child in children)) for children in level]
        )
    return values[0]


def best_fan_out(
    leaves: int, hop: Hop, compute: float = 0.0, tried: Sequence[int] = ()
) -> tuple[int, float]:
    """Return the fan-out with the shortest simulated round, and the seconds of that round.

    A fan-out equal to the number of leaves is a flat server.
    """
    candidates = sorted(
        {*(tried or (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100, 128, 256, 512, 1000)), leaves}
    )
    allowed = [fan_out for fan_out in candidates if 2 <= fan_out <= max(2, leaves)]
    return min(
        ((fan_out, simulated(leaves, fan_out, hop, compute)) for fan_out in allowed),
        key=lambda found: found[1],
    )
