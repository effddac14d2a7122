"""Private initialisation of low-rank trace regression, server side.

    Lhat = (1/n) sum_i L_i,  L_i = (1/m) sum_j y_j X_j        M_0 = U diag(S) V^T of rank r, for DP-RGrad

Worst-case privacy: Lhat = (1/n) sum_i clip(L_i, psi_init) + Gaussian noise, one release of d1 d2 numbers; M_0 = SVD_r(Lhat).
Replacing a user moves the sum by at most 2 psi_init. For Gaussian X the mean of the clipped L_i is q M*, q the fraction of
users below psi_init: directions are right, singular values a factor q too small. The rounds find the scale. Dividing S by q
brings M_0 closer, gains 1 % in the end where the budget is ample, and loses where it is tight: noise would be scaled up, too.

calibration=paper (RGRAD Algorithm 1; sensitivities: strategies/gaussian_design.py) clips nothing. Three steps, a third of the
initialiser's budget each, with Uhat, Vhat the singular vectors of Lhat:

    U <- SVD_r( Uhat Uhat^T + E_U )       V <- SVD_r( Vhat Vhat^T + E_V )       Sigma = U^T Lhat V + E_Sigma

Symmetric matrices go through the isometric half-vectorisation: same Frobenius sensitivity, half the noise power off the
diagonal. As all releases they are sums over users to the ledger: n times the matrix.
"""

from __future__ import annotations

from privfed.algorithm.initialiser import Initialiser
from privfed.algorithm.phases import Step
from privfed.federation.federation import Federation
from privfed.foundation.linalg import Array, svec, top_eigenvectors, top_singular, unsvec
from strategies.gaussian_design import GaussianDesign


class Regression(Initialiser):
    """Gives U, S, V of a first matrix."""

    task = "regression"
    gives = ("U", "S", "V")

    def __init__(self, clip: float | str, d1: int, d2: int) -> None:
        self.clip, self.sizes = clip, (d1, d2)
        self.design: GaussianDesign | None = None
        self.sides: list[Array] = []
        """Algorithm 1: the U and V released so far."""

    def assume(self, design: GaussianDesign) -> None:
        """Follow Algorithm 1 with the paper's sensitivities, instead of clipping."""
        self.design, self.rounds = design, 3

    def shape(self, federation: Federation) -> tuple[int, ...]:
        """Lhat as one row."""
        return (self.sizes[0] * self.sizes[1],)

    def release(
        self, federation: Federation, step: Step, total: Array, bound: float, users: int
    ) -> Array:
        """Lhat, or in Algorithm 1 the projector of one side and then the core."""
        if self.design is None:
            return super().release(federation, step, total, bound, users)
        L = total.reshape(self.sizes) / users
        if step.round <= 2:
            side = top_singular(L, federation.k)[0 if step.round == 1 else 2]
            statistic, sensitivity = svec(side @ side.T), self.design.projector(federation)
        else:
            U, V = self.sides
            statistic, sensitivity = (U.T @ L @ V).ravel(), self.design.core(federation)
        return super().release(
            federation, step, users * statistic, sensitivity / 2.0, users
        )  # the gate doubles it

    def step(self, federation: Federation, t: int, shared: list[Array], mean: Array) -> list[Array]:
        """U, S, V from what was released."""
        r = federation.k
        if self.design is None:
            return list(top_singular(mean.reshape(self.sizes), r))
        if t <= 2:
            self.sides.append(top_eigenvectors(unsvec(mean, self.sizes[t - 1]), r))
            return self.sides
        left, S, right = top_singular(mean.reshape(r, r), r)
        U, V = self.sides
        return [U @ left, S, V @ right]
