"""Private FedRep, server side (PMPR Algorithm 1).

    U    shared embedding (d, k), orthonormal columns       psi     clip norm of a user's gradient
    G    mean of the clipped gradients, released with noise eta_t   step size of round t

    for t = 1..T:  U <- QR( U - eta_t G ), keeping the Q factor

Privacy: one user moves the sum by at most 2 psi (replace-one), so each round costs
mu_t = 2 psi / std, and all rounds with the initialiser cost mu^2 = sum_t mu_t^2.

`step` gives eta_t in units of 1/psi. Early rounds, in which most gradients are clipped, then move
U by about `step`, whatever the scale of the data.

`estimator=posterior` needs far fewer users and no clip norm: see strategies/posterior_fedrep.py. It
is taken with `init=cascade`, unless a setting of gradient steps is given. With `init=auto` it is
taken for few users: if the information S^2 that all rounds could have is below MANY.
"""

from __future__ import annotations

from typing import Annotated

from privfed.algorithm.linear_strategy import LinearStrategy
from privfed.algorithm.phases import Phase, Sum
from privfed.algorithm.strategy import PrivateStrategy
from privfed.federation.federation import Federation
from privfed.foundation.constraints import (
    AT_LEAST_ZERO,
    FLAG,
    POSITIVE,
    WHOLE,
    Choice,
    Key,
    Rounds,
)
from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array, retraction
from privfed.privacy.adaptive_clipping import AUTO
from privfed.privacy.bounds import NormBound
from privfed.privacy.settings import Clip
from strategies.initialisers.automatic import AutomaticStart
from strategies.initialisers.cascade import CascadeStart
from strategies.posterior_fedrep import PosteriorFedRep
from strategies.rehearsal import information

USUAL_ROUNDS, USUAL_CLIP, USUAL_STEP, USUAL_DECAY = 30, 0.05, 0.4, 0.88
"""Settings of gradient steps that are not given."""
MANY = 1000.0
"""S^2 from which gradient steps, which have a compiled kernel, are about as good: 9,000 users at
epsilon 1 for d=50, k=2, m=10. It was looked at for these sizes only."""


class FedRep(LinearStrategy):
    """Noisy gradient steps on the embedding, retracted by QR."""

    def __init__(
        self,
        federation: Federation,
        rounds: Rounds,
        clip: Clip,
        step: Annotated[float, POSITIVE],
        decay: Annotated[float, POSITIVE],
        eta: Annotated[float, POSITIVE] | None,
        safety: Annotated[bool, FLAG] = False,
    ) -> None:
        super().__init__(federation, safety)
        self.rounds, self.clip = rounds, clip
        self.relative_step, self.decay, self.eta = step, decay, eta

    def phases(self) -> list[Phase]:
        """Return the initialiser's phases, T rounds of gradients G^T (k, d), and a judgement."""
        G = Sum((self.federation.k, self.federation.d), self.clip)
        return self.judged_at_last(Phase("gradient", G, self.update, self.rounds))

    def update(self, t: int, G: Array) -> list[Array]:
        """Return U <- QR( U - eta_t G ); the argument G is the released G^T (k, d)."""
        psi = float(self.clips["gradient"])
        eta = self.eta if self.eta is not None else self.relative_step / psi
        U = self.shared[0]
        return [retraction(U - eta * self.decay ** (t - 1) * G.T)]


def fedrep(
    federation: Federation,
    rounds: Annotated[int, WHOLE, Key("rounds")] | None,
    clip: Clip | None,
    step: Annotated[float, POSITIVE] | None,
    decay: Annotated[float, POSITIVE] | None,
    eta: Annotated[float, POSITIVE] | None,
    estimator: Annotated[
        str, Choice("auto", "leave-one-out", "two-batches", "one-batch", "posterior")
    ],
    m: Annotated[int, WHOLE],
    noise: Annotated[float, AT_LEAST_ZERO],
    force: Annotated[bool, FLAG],
    safety: Annotated[bool, FLAG],
) -> PrivateStrategy:
    """Return the server side for an estimator; its settings are those of conf/algo/fedrep.yaml."""
    steps = {"clip": clip, "step": step, "decay": decay, "eta": eta}
    given = [f"algo.{name}" for name, value in steps.items() if value is not None]
    init = federation.init
    cascade = isinstance(init, CascadeStart) or (
        isinstance(init, AutomaticStart)
        and init.open
        and (estimator == "posterior" or few_users(federation, m))
    )
    if estimator == "auto":
        estimator = "posterior" if cascade and not given else "leave-one-out"
    if estimator == "posterior":
        if not cascade:
            raise ConfigError.of("algo.estimator", estimator, "starts from init=cascade")
        if given:
            allowed = "is of gradient steps: set algo.estimator=leave-one-out"
            raise ConfigError(f"{given[0]}: {allowed}; directions have norm 1 and known lengths")
        return PosteriorFedRep(federation, rounds, m, noise, force)
    return FedRep(
        federation,
        rounds or USUAL_ROUNDS,
        USUAL_CLIP if clip is None else clip,
        USUAL_STEP if step is None else step,
        USUAL_DECAY if decay is None else decay,
        eta,
        safety,
    )


def few_users(federation: Federation, m: int) -> bool:
    """Return whether posterior directions are the better choice, from public numbers alone."""
    budget = federation.gate.ledger.budget
    privacy = federation.privacy
    if privacy.clip == AUTO or privacy.noise_multiplier is not None or federation.error != "mse":
        return False
    sensitivity = NormBound(1.0).sensitivity(budget.neighbouring)
    S2 = information(federation.n, federation.d, federation.k, m, budget.mu, sensitivity)
    return 0.0 < S2 < MANY
