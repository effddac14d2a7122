"""The server side of algorithms with networks: clipped updates move the shared parameters.

    theta   shared parameters                 zeta    clip norm of a user's update
    G       mean of the clipped updates,      eta_g   step size of the server
            released with noise as one vector p_g     probability with which a user takes part

    each round:  v <- beta v + G,  theta <- theta + eta_g v

Privacy: with everybody taking part, one user moves the sum by at most 2 zeta (replace-one), and T
rounds compose exactly. With p_g < 1 every user throws its own coin (Poisson sampling), and
rounds are accounted as subsampled Gaussians. The divisor is the expected number p_g n, never the
number of users who took part. Momentum beta and averaging the last rounds are post-processing.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from privfed.algorithm.phases import Everybody, Phase, Poisson, Sum
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.constraints import POSITIVE, Number, Rounds
from privfed.foundation.linalg import Array
from privfed.models.network import Network
from privfed.privacy.settings import Clip

BELOW_ONE = Number(lambda x: 0 <= x < 1, "must be at least 0, below 1")
PROBABILITY = Number(lambda x: 0 < x <= 1, "must be a probability above 0")


class NetworkStrategy(PrivateStrategy):
    """Noisy steps along the users' mean update."""

    whole = True
    """Whether the head is shared as well."""

    def __init__(
        self,
        federation: Federation,
        rounds: Rounds,
        clip: Clip,
        model: Network,
        eta: Annotated[float, POSITIVE],
        server_momentum: Annotated[float, BELOW_ONE],
        average: Annotated[float, BELOW_ONE],
        sampling: Annotated[float, PROBABILITY],
    ) -> None:
        super().__init__(federation)
        self.rounds, self.clip, self.model = rounds, clip, model
        self.eta, self.beta, self.averaged, self.sampling = eta, server_momentum, average, sampling
        self.publishes = tuple(model.names(self.whole))

    def start(self) -> list[Array]:
        """Return a public random network."""
        shared = self.model.initial(self.federation.seed, self.whole)
        self.iterate = np.concatenate([array.ravel() for array in shared])
        self.velocity = np.zeros_like(self.iterate)
        self.total, self.added = np.zeros_like(self.iterate), 0.0
        return shared

    def phases(self) -> list[Phase]:
        """Return T rounds; all parameters travel in one vector."""
        G = Sum(self.size, self.clip)
        who = Poisson(self.sampling) if self.sampling < 1 else Everybody()
        return [
            Phase("update", G, self.update, self.rounds, participants=who, announce=self.rounds_at)
        ]

    def size(self) -> tuple[int, ...]:
        """Return the shape of a user's update."""
        return self.iterate.shape

    def rounds_at(self) -> list[Array]:
        """Return the current iterate; the published model may be an average of several iterates."""
        return self.parameters(self.iterate)

    def update(self, t: int, G: Array) -> list[Array]:
        """Return the model to publish after theta <- theta + eta_g v."""
        self.velocity = self.beta * self.velocity + G
        self.iterate = self.iterate + self.eta * self.velocity
        if t > (1 - self.averaged) * self.rounds:
            self.total, self.added = self.total + self.iterate, self.added + 1
        return self.parameters(self.total / self.added if self.added else self.iterate)

    def parameters(self, flat: Array) -> list[Array]:
        """Return a vector as the arrays of the network."""
        sizes = self.model.sizes(self.whole)
        edges = np.cumsum([int(np.prod(size)) for size in sizes])[:-1]
        parts = np.split(flat, edges)
        return [part.reshape(size) for part, size in zip(parts, sizes, strict=True)]

    def memory(self) -> dict[str, Array]:
        """Return iterate, velocity and the running sum of the average."""
        added = np.array(self.added)
        return {
            "iterate": self.iterate,
            "velocity": self.velocity,
            "total": self.total,
            "added": added,
        }

    def recall(self, memory: dict[str, Array]) -> None:
        """Restore iterate, velocity and the running sum of the average."""
        names = ("iterate", "velocity", "total")
        self.iterate, self.velocity, self.total = (memory[name] for name in names)
        self.added = float(memory["added"])
