"""CENTAUR with a linear representation, server side (CENTAUR Algorithm 1, section 5).

    B    shared representation (d, k), orthonormal columns   zeta   clip norm of a user's gradient
    G    mean of the clipped gradients, released with noise  eta_t  step size of round t

    for t = 1..T, everybody taking part:  B <- QR( B - eta_t G )

The step and its privacy are those of Private FedRep. The two papers differ in the users' loss,
which is 1/2 (.)^2 here, in the batches, and in the initialiser, which is the private power method
(`init=ppm`) here.
"""

from __future__ import annotations

from strategies.fedrep import FedRep


class Centaur(FedRep):
    """Noisy gradient steps on the representation, retracted by QR."""
