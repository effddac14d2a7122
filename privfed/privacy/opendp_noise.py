"""Noise from OpenDP, a library whose mechanisms are proved and reviewed by others.

Its Gaussian noise on whole numbers is a discrete Gaussian: x with probability proportional to
exp(-x^2 / (2 s^2)). Ours is a rounded one: round(s Z). For s of 2^20 and more the two can hardly be
told apart; `privfed.privacy.accounting.GaussianRelease` charges the difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from privfed.foundation.errors import ConfigError
from privfed.foundation.linalg import Array
from privfed.privacy.accounting import DISCRETE_GAUSSIAN
from privfed.privacy.exact_sampling import Whole


class OpenDPNoise:
    """Draws of the library opendp: discrete Gaussians, and permute-and-flip for choices."""

    name, repeatable = "opendp", False
    distribution, margin, parts = DISCRETE_GAUSSIAN, 1e-5, 1

    def __init__(self) -> None:
        try:
            import opendp.prelude as dp
        except ImportError as error:
            raise ConfigError.of(
                "privacy.noise", self.name, "needs the library: pip install 'privfed[opendp]'"
            ) from error
        dp.enable_features("contrib")
        self._library: Any = dp

    def normal(self, size: int, s: int, name: str, round: int) -> Whole:
        """Draw discrete Gaussians of parameter s; see :class:`privfed.privacy.noise.NoiseSource`.

        About 70 microseconds per number.
        """
        dp = self._library
        whole = dp.vector_domain(dp.atom_domain(T="i64"), size=size)
        draw = dp.m.make_gaussian(whole, dp.l2_distance(T=float), scale=float(s))
        return np.array(draw([0] * size), dtype=np.int64)

    def choice(self, exponents: Array, name: str, round: int) -> int:
        """Draw an index by permute-and-flip: the largest exponent plus exponential noise.

        It costs what the exponential mechanism costs, and is never worse.
        """
        dp = self._library
        scores = dp.vector_domain(dp.atom_domain(T=float, nan=False))
        draw = dp.m.make_noisy_max(
            scores, dp.linf_distance(T=float), dp.max_divergence(), scale=1.0
        )
        return int(draw([float(each) for each in exponents]))
