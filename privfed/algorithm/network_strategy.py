"""What strategies with networks share: clipped updates, released as one vector, move the shared parameters.

    theta   shared parameters             zeta   clip norm of a user's update        eta_g   server's step size
    G       mean of the clipped updates,  p_g    probability with which a user takes part in a round
            released with noise

    each round:  v <- beta v + G,  theta <- theta + eta_g v

Noise: with everybody taking part, one user moves the sum by at most 2 zeta (replace-one), and T rounds compose exactly. With
p_g < 1 every user throws a coin of its own (Poisson sampling), and rounds are accounted as subsampled Gaussians. The divisor is
the expected number p_g n, never how many took part. Momentum beta and averaging the last rounds are post-processing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from flwr.common import Scalar

from privfed.algorithm.phases import Step
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.errors import ConfigError, check_number, check_positive
from privfed.foundation.linalg import Array
from privfed.models.network import Network
from privfed.privacy.accounting import sampled_mu
from privfed.privacy.clip_norms import AUTO
from privfed.privacy.ledger import ADD_REMOVE


class NetworkStrategy(PrivateStrategy):
    """Noisy steps along the users' mean update."""

    task = "update"
    uses_init = False
    whole = True
    """Whether the head is shared as well."""

    def __init__(
        self,
        federation: Federation,
        rounds: int,
        clip: float | str,
        model: Network,
        eta: float,
        server_momentum: float,
        average: float,
        sampling: float,
    ) -> None:
        self.eta = check_positive("algo.eta", eta)
        self.beta = check_number(
            "algo.server_momentum",
            server_momentum,
            lambda x: 0 <= x < 1,
            "must be at least 0, below 1",
        )
        self.averaged = check_number(
            "algo.average", average, lambda x: 0 <= x < 1, "must be at least 0, below 1"
        )
        self.sampling = check_number(
            "algo.sampling", sampling, lambda x: 0 < x <= 1, "must be a probability above 0"
        )
        self.sizes = model.sizes(self.whole)
        self.names = tuple(model.names(self.whole))
        self.start = model.initial(federation.seed, self.whole)
        self.iterate = np.concatenate([array.ravel() for array in self.start])
        self.velocity = np.zeros_like(self.iterate)
        self.total, self.added = np.zeros_like(self.iterate), 0.0
        super().__init__(federation, rounds, clip)

    def initial(self) -> list[Array]:
        """A public random network."""
        return self.start

    def shape(self) -> tuple[int, ...]:
        """All parameters in one vector."""
        return self.iterate.shape

    def steps(self) -> list[Step]:
        """The rounds; sampled ones cost what fills the budget."""
        ledger, settings = self.federation.gate.ledger, self.federation.privacy
        if self.sampling < 1 and self.clips[self.task] == AUTO:
            key = "privacy.clip" if settings.clip == AUTO else "algo.clip"
            raise ConfigError.of(
                key, AUTO, f"is for algo.sampling=1, not for algo.sampling={self.sampling}"
            )
        plan = super().steps()
        if self.sampling == 1:
            return plan
        if settings.noise_multiplier is not None:
            mu = 1.0 / settings.noise_multiplier
        else:
            budget = ledger.budget
            replaced = budget.neighbouring != ADD_REMOVE
            mu = sampled_mu(budget.epsilon, budget.delta, self.sampling, self.rounds, replaced)
        return [replace(step, mu=mu) for step in plan]

    def announcement(self, step: Step) -> dict[str, Scalar]:
        """With the probability of taking part, where that is not 1."""
        config = super().announcement(step)
        if self.sampling < 1:
            config |= {
                "sampling": self.sampling,
                "secret": not self.federation.gate.source.repeatable,
            }
        return config

    def announced(self, step: Step) -> list[Array]:
        """Where the rounds are; the published model may be an average."""
        return self.parameters(self.iterate)

    def step(self, t: int, mean: Array, **_: Any) -> None:
        """theta <- theta + eta_g v."""
        self.velocity = self.beta * self.velocity + mean
        self.iterate = self.iterate + self.eta * self.velocity
        if t > (1 - self.averaged) * self.rounds:
            self.total, self.added = self.total + self.iterate, self.added + 1
        self.shared = self.parameters(self.total / self.added if self.added else self.iterate)

    def parameters(self, flat: Array) -> list[Array]:
        """A vector as the arrays of the network."""
        edges = np.cumsum([int(np.prod(size)) for size in self.sizes])[:-1]
        return [
            part.reshape(size) for part, size in zip(np.split(flat, edges), self.sizes, strict=True)
        ]

    def memory(self) -> dict[str, Array]:
        """Iterate, velocity and the running sum of the average."""
        added = np.array(self.added)
        return {
            "iterate": self.iterate,
            "velocity": self.velocity,
            "total": self.total,
            "added": added,
        }

    def recall(self, memory: dict[str, Array]) -> None:
        """Take them back."""
        self.iterate, self.velocity, self.total = (
            memory[name] for name in ("iterate", "velocity", "total")
        )
        self.added = float(memory["added"])
