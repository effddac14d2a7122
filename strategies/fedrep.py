"""Private FedRep, server side (PMPR Algorithm 1).

    U    shared embedding (d, k), orthonormal columns        psi    clip norm of a user's gradient
    G    mean of the clipped gradients, released with noise  eta_t  step size of round t

    for t = 1..T:  U <- QR( U - eta_t G ),  keeping the Q factor

Noise: one user moves the sum by at most 2 psi (replace-one), so each round costs mu_t = 2 psi / std, and all rounds with the
initialiser mu^2 = sum mu_t^2. `step` gives eta_t in units of 1/psi: then the early rounds, where most gradients are clipped,
move U by about `step`, whatever the scale of the data.
"""

from __future__ import annotations

from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.errors import check_positive
from privfed.foundation.linalg import Array, retraction


class FedRep(PrivateStrategy):
    """Noisy gradient steps on the embedding, retracted by QR."""

    def __init__(
        self,
        federation: Federation,
        rounds: int,
        clip: float | str,
        step: float,
        decay: float,
        eta: float | None,
    ) -> None:
        for key, value in (("algo.step", step), ("algo.decay", decay), ("algo.eta", eta)):
            if value is not None:
                check_positive(key, value)
        self.relative_step, self.decay, self.eta = step, decay, eta
        super().__init__(federation, rounds, clip)

    def shape(self) -> tuple[int, ...]:
        """Clients send G^T."""
        return (self.federation.k, self.federation.d)

    def step(self, t: int, mean: Array) -> None:
        """U <- QR(U - eta_t G)."""
        eta = (
            self.eta if self.eta is not None else self.relative_step / float(self.clips[self.task])
        )
        self.shared = [retraction(self.shared[0] - eta * self.decay ** (t - 1) * mean.T)]
