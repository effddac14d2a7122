"""PPSGD, server side (Bietti et al. 2022).

theta <- theta + eta_g G, with G the noised mean of theta_i - theta, each clipped to zeta.
"""

from __future__ import annotations

from privfed.algorithm.network_strategy import NetworkStrategy


class PPSGD(NetworkStrategy):
    """Shares the whole network; corrections of its head stay with their users."""
