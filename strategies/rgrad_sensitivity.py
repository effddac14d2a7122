"""RGRAD's own sensitivities.

They hold with high probability if the data are as assumed. They do not hold for arbitrary data.

    sigma_xi   standard deviation of the label noise
    sigma_1    largest singular value of M*
    sigma_r    smallest singular value of M*
    C2, C3     absolute constants that the paper leaves open
    n          number of users, each with one observation or the mean of several

Assumption: vec(X) is Gaussian with a known covariance, eigenvalues between C_l and C_u (1 and 1 for
independent standard normal entries), y = <X, M*> + N(0, sigma_xi^2), and M_l is within a fraction
of sigma_r of M*. Between two data sets that differ in one user, the sum over users then changes by
at most

    gradients        Delta_l n / eta = C3 (sigma_xi + sqrt(C_u) sigma_r) sqrt(C_u r (d1 + d2) log n)
    core U^T Lhat V  Delta^(2) n     = C2 (sigma_xi + sqrt(C_u r) sigma_1) sqrt(r / C_l) log n
    projectors U U^T, V V^T  Delta^(1) n     = Delta^(2) n / sigma_r

These are the paper's bounds on means (Theorem 3 for gradients, Theorem 1 for the other two), times
n. Weak privacy (Theorems 6 and 7): the neighbours share X, labels differ by noise only, and the
terms with sigma_r and sigma_1 in the brackets disappear.

The constants are part of the assumption, and 1 is not enough. On data exactly as assumed (r = 2,
sigma_xi = .1) a search over a few users with large labels moved U U^T by 1.5 and 2.2 times
Delta^(1) at d1 = d2 = 10 and 20 (n = 20000), and by 3.5 times at 40 (n = 8000). The reason is that
the bound on |L_i| behind Delta^(1) lacks the factor sqrt(d1 + d2) of |X|. Under weak privacy
gradients moved by 1.9 Delta_l. The defaults C2 = sqrt(d1 + d2) and C3 = 3 covered all cases that
were tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from privfed.data.problems.trace_regression import singular_values
from privfed.federation.federation import Federation
from privfed.foundation.errors import ConfigError, check_number, check_positive
from privfed.privacy.neighbouring import WEAK

ASSUMPTION = "under the Gaussian design assumption"


@dataclass(frozen=True)
class GaussianDesign:
    """The assumptions of calibration=paper.

    Attributes:
        sigma_xi: standard deviation of the label noise.
        sigma_1: largest singular value; None takes that of the simulated matrix.
        sigma_r: smallest singular value; None takes that of the simulated matrix.
        C2: constant of the initialiser's sensitivities.
        C3: constant of the gradients' sensitivity.
        singular: configured singular values of the simulated matrix; None for the default ones.
        rank: rank of the simulated matrix; None if data are not simulated.
        C_l: smallest eigenvalue of the covariances of vec(X).
        C_u: largest eigenvalue.
    """

    sigma_xi: float | None
    sigma_1: float | None
    sigma_r: float | None
    C2: float
    C3: float
    singular: Sequence[float] | None
    rank: int | None
    C_l: float = 1.0
    C_u: float = 1.0

    def __post_init__(self) -> None:
        for key in ("C2", "C3"):
            check_positive(f"algo.{key}", getattr(self, key))
        wanted = "calibration=paper needs it: a number of at least 0"
        check_number("algo.sigma_xi", self.sigma_xi, lambda x: 0 <= x < math.inf, wanted)
        for key, place in (("sigma_1", 0), ("sigma_r", -1)):
            if getattr(self, key) is None and self.rank is not None:
                values = sorted(singular_values(self.singular, self.rank), reverse=True)
                object.__setattr__(self, key, float(values[place]))
            wanted = "calibration=paper needs it: a positive number"
            check_number(f"algo.{key}", getattr(self, key), lambda x: 0 < x < math.inf, wanted)

    def check(self, federation: Federation) -> None:
        """Raise a ConfigError if the assumed sensitivity would be 0."""
        if self._weak(federation) and self.sigma_xi == 0:
            raise ConfigError.of(
                "algo.sigma_xi",
                self.sigma_xi,
                "weak privacy with calibration=paper hides label noise only",
            )

    def gradients(self, federation: Federation, d1: int, d2: int) -> float:
        """Return how far one user moves the sum of projected gradients."""
        assert self.sigma_xi is not None and self.sigma_r is not None
        scale = self.sigma_xi + (
            0.0 if self._weak(federation) else math.sqrt(self.C_u) * self.sigma_r
        )
        size = self.C_u * federation.k * (d1 + d2)
        return self.C3 * scale * math.sqrt(size * self._log(federation))

    def core(self, federation: Federation) -> float:
        """Return how far one user moves n U^T Lhat V, for given U and V."""
        assert self.sigma_xi is not None and self.sigma_1 is not None
        root = math.sqrt(federation.k)
        scale = self.sigma_xi + (
            0.0 if self._weak(federation) else (math.sqrt(self.C_u) * root * self.sigma_1)
        )
        return self.C2 * scale * root / math.sqrt(self.C_l) * self._log(federation)

    def projector(self, federation: Federation) -> float:
        """Return how far one user moves n U U^T or n V V^T; U and V: singular vectors of Lhat."""
        assert self.sigma_r is not None
        return self.core(federation) / self.sigma_r

    @staticmethod
    def _weak(federation: Federation) -> bool:
        return federation.gate.ledger.budget.neighbouring == WEAK

    @staticmethod
    def _log(federation: Federation) -> float:
        return math.log(max(federation.n, 3))  # log 1 = 0 would mean no sensitivity for n = 1
