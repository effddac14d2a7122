"""Private initialisation of low-rank trace regression, server side.

    Lhat = (1/n) sum_i L_i,  L_i = (1/m) sum_j y_j X_j
    M_0  = U diag(S) V^T of rank r, for DP-RGrad

Worst-case privacy: Lhat = (1/n) sum_i clip(L_i, psi_init) + Gaussian noise, one release of d1 d2
numbers; M_0 = SVD_r(Lhat). Replacing a user moves the sum by at most 2 psi_init. For Gaussian X the
mean of the clipped L_i is q M*, with q the fraction of users below psi_init: directions are right,
and singular values are a factor q too small. The rounds find the scale. Dividing S by q brings M_0
closer, gains 1 % in the end where the budget is ample, and loses where it is tight, because noise
is scaled up as well.

calibration=paper (RGRAD Algorithm 1; sensitivities: strategies/rgrad_sensitivity.py) clips nothing.
Three steps, a third of the initialiser's budget each, with Uhat, Vhat the singular vectors of Lhat:

    U <- SVD_r( Uhat Uhat^T + E_U )     V <- SVD_r( Vhat Vhat^T + E_V )     U^T Lhat V + E_Sigma

Symmetric matrices go through the isometric half-vectorisation: the same Frobenius sensitivity, and
half the noise power off the diagonal. To the ledger they are sums over users, n times the matrix.
"""

from __future__ import annotations

from privfed.algorithm.initialiser import Initialiser
from privfed.algorithm.phases import LAST, GaussianStatistic, Measurement, Phase, Sum
from privfed.federation.federation import Federation
from privfed.foundation.linalg import Array, svec, top_eigenvectors, top_singular, unsvec
from privfed.privacy.bounds import UNCLIPPED, AssumedSensitivity, NormBound
from privfed.privacy.settings import Clip
from strategies.rgrad_sensitivity import GaussianDesign


class RegressionStart(Initialiser):
    """Gives U, S, V of a first matrix."""

    gives = ("U", "S", "V")

    def __init__(self, clip: Clip, d1: int, d2: int) -> None:
        self.clip, self.sizes = clip, (d1, d2)
        self.design: GaussianDesign | None = None
        self.sides: list[Array] = []
        """Algorithm 1: the U and V released so far."""
        self.r = 0
        self.federation: Federation | None = None

    def assume(self, design: GaussianDesign) -> None:
        """Follow Algorithm 1 with the paper's sensitivities, instead of clipping."""
        self.design = design

    def phases(self, federation: Federation) -> list[Phase]:
        """Return the one release of Lhat as one row, or the three steps of Algorithm 1."""
        self.r, self.federation = federation.k, federation
        shape = (self.sizes[0] * self.sizes[1],)
        if self.design is None:
            L = Sum(shape, self.clip, "init.clip")
            once = Measurement(again=False)
            return [Phase("regression", L, self.update, measurement=once, model=LAST)]
        L = Sum(shape, NormBound(UNCLIPPED))
        mechanism = GaussianStatistic(self.statistic, self.assumed)
        return [Phase("regression", L, self.three_steps, 3, mechanism=mechanism, model=LAST)]

    def update(self, t: int, L: Array) -> list[Array]:
        """Return U, S, V <- SVD_r(Lhat)."""
        return list(top_singular(L.reshape(self.sizes), self.r))

    # Algorithm 1.

    def statistic(self, t: int, mean: Array) -> Array:
        """Return the projector on one side's singular vectors, and at last the core U^T Lhat V."""
        L = mean.reshape(self.sizes)
        if t <= 2:
            side = top_singular(L, self.r)[0 if t == 1 else 2]
            return svec(side @ side.T)
        U, V = self.sides
        return (U.T @ L @ V).ravel()

    def assumed(self, t: int) -> AssumedSensitivity:
        """Return the paper's sensitivity of n times the statistic."""
        assert self.design is not None and self.federation is not None
        how = self.design.projector if t <= 2 else self.design.core
        return AssumedSensitivity(how(self.federation))

    def three_steps(self, t: int, released: Array) -> list[Array]:
        """Return the U and V released so far; after the third step, U, S and V of M_0."""
        if t <= 2:
            self.sides.append(top_eigenvectors(unsvec(released, self.sizes[t - 1]), self.r))
            return self.sides
        left, S, right = top_singular(released.reshape(self.r, self.r), self.r)
        U, V = self.sides
        return [U @ left, S, V @ right]

    def memory(self) -> dict[str, Array]:
        """Return the U and V of Algorithm 1 that have been released: the third step needs both."""
        return {f"side{i}": side for i, side in enumerate(self.sides)}

    def recall(self, memory: dict[str, Array]) -> None:
        """See :meth:`memory`."""
        self.sides = [memory[name] for name in sorted(memory)]
