"""A federation under secure aggregation in one process, without Flower: nodes, server, losses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from privfed.foundation.errors import ConfigError
from privfed.secure.aggregator import SecureAggregator
from privfed.secure.keys import NodeKey, Words
from privfed.secure.node import Message, SecureNode
from privfed.secure.terms import MaskedSum, Terms

RUN = "0123456789abcdef" * 2


class Town:
    """Nodes with their server, and a record of everything that the server ever holds.

    Args:
        users: number of users of each node.
        honest: see `Terms`.
        colluding: see `Terms`.
        salt: changes all keys.
    """

    def __init__(
        self, users: list[int], honest: float = 0.9, colluding: float = 0.0, salt: int = 0
    ) -> None:
        keys = [NodeKey.simulated("town", salt, i) for i in range(len(users))]
        public = tuple(key.public.hex() for key in keys)
        self.terms = Terms(RUN, public, tuple(users), honest, colluding)
        self.nodes = [SecureNode(key) for key in keys]
        self.server = SecureAggregator(self.terms, self.exchange)
        self.gone: dict[str, Collection[int]] = {}
        """Nodes that do not answer, by stage."""
        self.seen: list[tuple[int, str, Mapping[str, Any]]] = []
        """(node, stage, answer) of every answer that reached the server."""

    def exchange(self, messages: Mapping[int, Message]) -> dict[int, Message]:
        answers = {}
        for place, message in messages.items():
            stage = str(message["secure"])
            if place not in self.gone.get(stage, ()):
                try:
                    answers[place] = self.nodes[place].answer(message)
                except ConfigError:
                    continue
                self.seen.append((place, stage, answers[place]))
        return answers

    def begin(self, step: int = 1) -> None:
        self.server.agree(range(len(self.nodes)), step)

    def masked(self, place: int, message: Message, step: int, x: np.ndarray) -> Words:
        """Have a node send its masked sum."""
        words, more = self.nodes[place].masked({**message, "step": step}, [x], b"request")
        self.seen.append((place, "masked", {"words": words, **more}))
        self.server.take(place, words, more["bundle"])
        return words

    def step(self, step: int, x: np.ndarray, total: MaskedSum) -> np.ndarray:
        """Return the released sum of x (nodes, size), in steps of the grid."""
        places = [i for i in range(len(self.nodes)) if i not in self.gone.get("announce", ())]
        for place, message in self.server.announce(step, [total], places).items():
            if place not in self.gone.get("masked", ()):
                self.masked(place, message, step, x[place])
        self.server.close()
        (released,) = self.server.unmask()
        return released


def without_noise(size: int, grid: float = 2.0**-20) -> MaskedSum:
    """Return a sum that is masked and released exactly."""
    return MaskedSum(size, grid, 0, "norm", 1.0)
